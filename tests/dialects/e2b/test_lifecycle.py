"""Sandboxes made, found, paused, given time and ended by E2B's SDK, and what it says when it may not."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from e2b import AuthenticationException, NotFoundException, SandboxException, SandboxQuery, SandboxState
from e2b.exceptions import RateLimitException
from e2b_code_interpreter import Sandbox


def test_a_new_sandbox_has_what_was_asked_for(sandbox):
    """Template, state, time and size are told."""
    info = sandbox.get_info()

    assert info.sandbox_id == sandbox.sandbox_id
    assert info.template_id == "code-interpreter-v1"
    assert info.state == SandboxState.RUNNING
    assert timedelta(seconds=590) < info.end_at - info.started_at <= timedelta(seconds=601)
    assert info.cpu_count >= 1
    assert info.memory_mb == 1024
    assert info.envd_version == "0.6.4"
    assert info.allow_internet_access is False
    assert sandbox.is_running()


def test_without_a_timeout_it_lives_for_five_minutes(http, addresses):
    """E2B's default, for both generations of the API."""
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}

    for path in ("/sandboxes", "/v2/sandboxes"):
        made = http.post(path, json={"templateID": "base"}, headers=headers)
        assert made.status_code == 201
        sandbox_id = made.json()["sandboxID"]
        detail = http.get(f"/sandboxes/{sandbox_id}", headers=headers).json()
        life = datetime.fromisoformat(detail["endAt"]) - datetime.fromisoformat(detail["startedAt"])
        assert timedelta(seconds=299) < life < timedelta(seconds=301)
        assert detail["templateID"] == "base"
        assert http.delete(f"/sandboxes/{sandbox_id}", headers=headers).status_code == 204


def test_environment_and_metadata_are_kept():
    """What create is given is there inside, and in the list."""
    with Sandbox.create(timeout=60, envs={"GREETING": "hello"}, metadata={"who": "me & you"}) as sandbox:
        assert sandbox.commands.run("echo $GREETING").stdout == "hello\n"
        assert sandbox.run_code("import os; os.environ['GREETING']").text == "hello"
        assert sandbox.get_info().metadata == {"who": "me & you"}

    assert not sandbox.is_running()


def test_kill_tells_whether_it_lived(sandbox):
    """True the first time, False afterwards, and a later question has a clear answer."""
    assert sandbox.kill() is True
    assert sandbox.kill() is False
    assert Sandbox.kill("nobody" * 5) is False

    with pytest.raises(NotFoundException):
        sandbox.get_info()

    with pytest.raises(NotFoundException):
        sandbox.set_timeout(10)

    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id)


def test_a_timeout_is_set_and_connecting_never_shortens_it(sandbox):
    """set_timeout moves the end in both directions, connect only to later."""
    sandbox.set_timeout(1000)
    late = sandbox.get_info().end_at
    assert late > datetime.now(UTC) + timedelta(seconds=900)

    sandbox.connect(timeout=30)
    assert sandbox.get_info().end_at == late

    sandbox.connect(timeout=2000)
    assert sandbox.get_info().end_at > late

    sandbox.set_timeout(50)
    assert sandbox.get_info().end_at < late


def test_a_timeout_of_zero_is_the_end_now(sandbox):
    """Killed at once, as its lifecycle says."""
    sandbox.set_timeout(0)
    assert not sandbox.is_running()


def test_a_timeout_of_zero_pauses_where_that_was_chosen():
    """The other action of the lifecycle, and the way back."""
    sandbox = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": False})
    sandbox.run_code("x = 41")
    sandbox.set_timeout(0)

    info = sandbox.get_info()
    assert info.state == SandboxState.PAUSED
    assert info.lifecycle == {"on_timeout": "pause", "auto_resume": False}
    assert not sandbox.is_running()

    assert Sandbox.connect(sandbox.sandbox_id).run_code("x + 1").text == "42"
    sandbox.kill()


def test_a_pause_keeps_processes_and_memory(sandbox):
    """The same pid, the same variables, and no work meanwhile."""
    command = sandbox.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
    sandbox.run_code("value = object(); name = id(value)")

    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert not sandbox.is_running()
    assert sandbox.get_info().state == SandboxState.PAUSED

    with pytest.raises(SandboxException, match="was not found"):
        sandbox.commands.run("true")

    again = Sandbox.connect(sandbox.sandbox_id, timeout=300)
    assert again.is_running()
    assert [process.pid for process in again.commands.list()] == [command.pid]
    again.commands.send_stdin(command.pid, "it\n")
    again.commands.close_stdin(command.pid)
    assert again.commands.connect(command.pid).wait().stdout == "got it\n"
    assert again.run_code("id(value) == name").text == "True"


@pytest.fixture
def pause_mode(http, addresses):
    """What the last pause of a sandbox has kept; the SDK has no name for it."""

    def read(sandbox):
        headers = {"X-API-Key": addresses["E2B_API_KEY"]}
        return http.get(f"/sandboxes/{sandbox.sandbox_id}", headers=headers).json()["pauseMode"]

    return read


def test_a_pause_of_files_only_is_a_reboot(sandbox, pause_mode):
    """Files, ids and settings are there afterwards; processes and variables are not, and the client knows before."""
    command = sandbox.commands.run("sleep 600", background=True)
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("x = 1")
    sandbox.files.write("kept.txt", "as it was")
    boot = sandbox.files.read("/proc/sys/kernel/random/boot_id")
    assert len(boot) == 37

    assert sandbox.pause(mode="filesystem") is True
    assert sandbox.pause(mode="filesystem") is False
    assert pause_mode(sandbox) == "filesystem"

    again = Sandbox.connect(sandbox.sandbox_id, timeout=300)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("kept.txt") == "as it was"
    assert again.files.read("/proc/sys/kernel/random/boot_id") != boot
    assert again.commands.list() == []
    assert again.commands.kill(command.pid) is False
    assert again.run_code("x").error.name == "NameError"
    assert again.run_code("import os; os.getcwd()", context=context).text == "/tmp"


def test_what_a_pause_has_kept_can_be_dropped_when_it_is_over(sandbox, pause_mode):
    """`on_resume="reboot"`: the pause kept the memory, and the caller does not want it."""
    sandbox.run_code("x = 1")
    sandbox.files.write("kept.txt", "as it was")
    sandbox.pause()
    assert pause_mode(sandbox) == "full"

    again = Sandbox.connect(sandbox.sandbox_id, timeout=300, on_resume="reboot")
    assert again.files.read("kept.txt") == "as it was"
    assert again.run_code("x").error.name == "NameError"


def test_a_timeout_can_keep_the_files_only(pause_mode):
    """As `pause(mode="filesystem")`, when the time is over."""
    lifecycle = {"on_timeout": {"action": "pause", "mode": "filesystem"}}

    with Sandbox.create(timeout=600, lifecycle=lifecycle) as sandbox:
        sandbox.files.write("kept.txt", "as it was")
        sandbox.set_timeout(0)
        assert pause_mode(sandbox) == "filesystem"
        assert Sandbox.connect(sandbox.sandbox_id).files.read("kept.txt") == "as it was"


def test_a_sandbox_that_resumes_by_itself_answers_while_paused():
    """auto_resume: any request wakes it."""
    with Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True}) as sandbox:
        sandbox.pause()
        assert sandbox.commands.run("echo awake").stdout == "awake\n"
        assert sandbox.get_info().state == SandboxState.RUNNING


def test_lists_are_filtered_ordered_and_paged():
    """Metadata, state and template narrow a list; pages follow one another without gaps."""
    label = {"batch": f"{uuid.uuid4().hex} & co"}
    made = [Sandbox.create("base", timeout=600, metadata={**label, "n": str(n)}) for n in range(3)]
    made[1].pause()
    ids = [sandbox.sandbox_id for sandbox in made]

    def listed(limit=None, order=None, **query):
        pages = Sandbox.list(query=SandboxQuery(metadata=label, **query), limit=limit, order=order)
        found = []

        while pages.has_next:
            page = pages.next_items()
            assert limit is None or len(page) <= limit
            found += [info.sandbox_id for info in page]

        assert pages.next_token is None
        return found

    try:
        assert listed() == ids[::-1]
        assert listed(order="asc") == ids
        assert listed(limit=2, order="asc") == ids
        assert listed(limit=1) == ids[::-1]
        assert listed(state=[SandboxState.PAUSED]) == [ids[1]]
        assert listed(state=[SandboxState.RUNNING]) == [ids[2], ids[0]]
        assert listed(template="base") == ids[::-1]
        assert listed(template="code-interpreter-v1") == []
        assert listed(started_after=datetime.now(UTC) + timedelta(days=1)) == []
    finally:
        for sandbox in made:
            sandbox.kill()


def test_metrics_are_of_this_moment(shared):
    """One point, or none for a time that is over."""
    (point,) = shared.get_metrics()

    assert point.mem_total == 1 << 30
    assert 0 < point.mem_used < point.mem_total
    assert 0 <= point.disk_used < point.disk_total
    assert shared.get_metrics(end=datetime.now(UTC) - timedelta(hours=1)) == []


def test_an_unknown_template_and_a_wrong_key_are_refused():
    """With the answers that the SDK has exceptions for."""
    with pytest.raises(SandboxException, match=r"404.*no-such-template"):
        Sandbox.create("no-such-template")

    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_0000")

    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="e2b_0000").next_items()


def test_a_quota_is_a_rate_limit_and_is_not_tried_again(new_key):
    """A key with room for one sandbox."""
    key = new_key(max_sandboxes=1)

    with Sandbox.create(timeout=60, api_key=key):
        with pytest.raises(RateLimitException, match="1 of 1 sandboxes"):
            Sandbox.create(timeout=60, api_key=key)


def test_an_idempotency_key_makes_one_sandbox(sandbox):
    """The same request is answered with the same sandbox, another one is refused."""
    key = uuid.uuid4().hex
    first = Sandbox.create(timeout=60, idempotency_key=key)
    assert Sandbox.create(timeout=60, idempotency_key=key).sandbox_id == first.sandbox_id

    with pytest.raises(SandboxException, match=r"409.*another request"):
        Sandbox.create(timeout=61, idempotency_key=key)

    first.kill()


def test_what_is_not_offered_is_reported(shared):
    """A clear error each, and no retries."""
    for call in (
        lambda: Sandbox.create(mcp={"github": {}}),
        lambda: Sandbox.create(network={"dns_servers": ["1.1.1.1"]}),
        lambda: shared.update_network({"allow_out": ["example.org"], "dns_servers": ["1.1.1.1"]}),
    ):
        with pytest.raises(SandboxException, match=r"501.*does not offer") as caught:
            call()

        assert caught.value.status_code == 501


def test_a_network_that_is_closed_further_is_no_error(shared):
    """What asks for less network than there is, is granted."""
    shared.update_network({"deny_out": ["0.0.0.0/0"]})

    with Sandbox.create(
        timeout=60, allow_internet_access=True, network={"deny_out": ["0.0.0.0/0"]}
    ) as sandbox:
        assert sandbox.get_info().allow_internet_access is False


def test_the_first_generation_of_the_api_answers_too(http, addresses, sandbox):
    """resume, connect and refreshes of older clients."""
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}
    path = f"/sandboxes/{sandbox.sandbox_id}"

    assert http.post(f"{path}/pause", headers=headers).status_code == 204
    assert http.post(f"{path}/pause", headers=headers).status_code == 409
    assert http.post(f"{path}/resume", json={"timeout": 100}, headers=headers).status_code == 201
    assert http.post(f"{path}/connect", json={"timeout": 100}, headers=headers).status_code == 200
    assert http.post(f"{path}/refreshes", json={"duration": 1000}, headers=headers).status_code == 204
    assert sandbox.get_info().end_at > datetime.now(UTC) + timedelta(seconds=900)
    assert [item["sandboxID"] for item in http.get("/sandboxes", headers=headers).json()]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/sandboxes", b"{", "JSON object"),
        ("/sandboxes", b"[]", "JSON object"),
        ("/sandboxes", b"{}", "templateID"),
        ("/sandboxes", b'{"templateID": 7}', "templateID"),
        ("/sandboxes", b'{"templateID": "base", "timeout": -1}', "timeout"),
        ("/sandboxes", b'{"templateID": "base", "timeout": NaN}', "timeout"),
        ("/sandboxes", b'{"templateID": "base", "metadata": {"a": 1}}', "metadata"),
        ("/sandboxes", b'{"templateID": "base", "metadata": {"fumehood.e2b/template": "x"}}', "metadata"),
        ("/v2/sandboxes", b"[" * 100_000, "JSON object"),
    ],
)
def test_a_create_request_without_sense_is_refused(http, addresses, path, body, says):
    """The field is named, nothing is made."""
    answer = http.post(path, content=body, headers={"X-API-Key": addresses["E2B_API_KEY"]})

    assert answer.status_code == 400
    assert answer.json()["code"] == 400
    assert says in answer.json()["message"]
    assert answer.headers["should-retry"] == "false"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "state=dead", "order=up", "nextToken=!", "startedAfter=soon"]
)
def test_a_list_request_without_sense_is_refused(http, addresses, query):
    """The parameter is named."""
    answer = http.get(f"/v2/sandboxes?{query}", headers={"X-API-Key": addresses["E2B_API_KEY"]})

    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["message"]
