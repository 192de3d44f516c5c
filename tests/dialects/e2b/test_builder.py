"""E2B's template builder by its unmodified SDK: steps, uploads, logs, tags, start commands, and who may do what."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import CommandExitException, Template, wait_for_file, wait_for_port
from e2b.exceptions import AuthenticationException, BuildException, TemplateException
from e2b_code_interpreter import Sandbox
from tests.conftest import RunningServer
from tests.image_homes import make_home, shared_interpreter
from tests.image_layouts import Layout, busybox_layer
from tests.waiting import until

import fumehood
from fumehood import InvalidArgumentError, build_template
from fumehood.dialects.replit.client import code_exec
from fumehood.templates.store import TemplateInfo, TemplateRecord, TemplateStore

MODULES = Path(__file__).parents[2] / "npm_programs" / "node_modules"
# As `evalctl image` and its variables set them.
REPLIT = {
    "replit_template": "evaluated",
    "replit_filename": "main.sh",
    "replit_run_command": 'sh main.sh "$WHO"',
    "replit_envs": "WHO=the image",
}
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> str:
    """The reference of a small system."""
    layout = Layout(tmp_path_factory.mktemp("layout"))
    layout.add([busybox_layer()], tag="tiny", config={"Env": ["PATH=/bin", "FROM_IMAGE=yes"]})
    return f"oci:{layout.folder}:tiny"


@pytest.fixture(scope="module")
def builder(addresses, tmp_path_factory) -> Iterator[RunningServer]:
    """A server that builds templates, which E2B's variables lead to."""
    folder = tmp_path_factory.mktemp("builder")
    make_home(folder / "fumehood", shared_interpreter(tmp_path_factory))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder))
        running = RunningServer(folder / "state", pool_size=0, template_builds=True, **REPLIT)

        for name, value in {"E2B_API_URL": running.url, "E2B_SANDBOX_URL": running.url}.items():
            patch.setenv(name, value)

        yield running
        running.stop()


@pytest.fixture(scope="module")
def client(builder) -> Iterator[httpx.Client]:
    """Requests that no SDK would send."""
    with httpx.Client(base_url=builder.url, headers={"X-API-Key": builder.token}) as client:
        yield client


@pytest.fixture(scope="module")
def ended(client) -> Callable[[str, str], dict[str, Any]]:
    """Waits for the end of a build and returns its status."""

    def wait(template: str, build_id: str) -> dict[str, Any]:
        path = f"/templates/{template}/builds/{build_id}/status"

        def look() -> dict[str, Any] | None:
            said = client.get(path).json()
            return None if said["status"] == "building" else said

        return until(look, "the build ends")

    return wait


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """Files to copy."""
    (tmp_path / "app" / "inner").mkdir(parents=True)
    (tmp_path / "app" / "main.txt").write_text("main")
    (tmp_path / "app" / "inner" / "deep.txt").write_text("deep")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "$two.txt").write_text("two")
    return tmp_path


@pytest.fixture(scope="module")
def build(builder) -> Callable[..., list[str]]:
    """Builds a template and returns its logs."""

    def make(template: Any, name: str, **options: Any) -> list[str]:
        heard: list[str] = []
        Template.build(template, name, on_build_logs=lambda entry: heard.append(entry.message), **options)
        return heard

    return make


def _steps(image: str, context: Path) -> Any:
    return (
        Template(file_context_path=str(context))
        .from_image(image)
        .set_envs({"GREETING": 'say "hello" $FROM_IMAGE', "EMPTY": ""})
        .copy("app", "app")
        .copy("one.txt", "/opt/renamed.txt", user="root", mode=0o600)
        .copy("*.txt", "/opt/all/")
        .run_cmd("id -un > who; cat app/inner/deep.txt > copied; echo $GREETING > greeting")
        .run_cmd("id -un > /opt/root; stat -c %a /opt/renamed.txt >> /opt/root", user="root")
        .make_dir("/opt/work", user="root")
        .set_workdir("/home/user/project")
        .run_cmd("touch made-by-user\necho two lines")
        .set_workdir("/home/user")
    )


def test_steps_files_tags_and_logs(build, image, context):
    """All five kinds of steps do what they do at E2B; a second build uploads and runs nothing."""
    heard = build(_steps(image, context), "stepped:v1", tags=["stable"], cpu_count=1, memory_mb=256)
    assert any("RUN id -un > who" in line for line in heard), heard
    assert Template.exists("stepped")
    assert not Template.exists("stepped:v2")
    tags = {tag.tag: tag.build_id for tag in Template.get_tags("stepped")}
    assert tags.keys() == {"stable", "v1"}

    # As Harbor does it: a build by its id.
    with Sandbox.create(f"stepped:{tags['stable']}") as sandbox:
        said = sandbox.commands.run(
            "cat who copied greeting /opt/root app/main.txt; ls /opt/all project; echo $GREETING"
        )
        assert said.stdout.split("\n") == [
            *("user", 'deepsay "hello" yes', "root", "600", "main/opt/all:", "$two.txt", "one.txt", ""),
            *("project:", "made-by-user", 'say "hello" yes', ""),
        ]
        assert sandbox.run_code("1 + 1").text == "2"
        _check_sizes_and_folders(sandbox)

    again = build(_steps(image, context), "stepped:v1")
    assert any("already cached" in line for line in again)
    assert not any("done:" in line for line in again), again


def _check_sizes_and_folders(sandbox: Sandbox) -> None:
    """The sizes of a template are its sandboxes' limits; the folders that clients write as root are each one's own."""
    info = sandbox.get_info()
    assert (info.cpu_count, info.memory_mb) == (1, 256)
    assert sandbox.commands.run("grep MemTotal /proc/meminfo").stdout.split()[1] == str(256 << 10)
    sandbox.files.write("/etc/profile.d/first.sh", "export FROM_PROFILE=yes", user="root")
    line = "mkdir -p /logs/verifier && chmod 777 /logs/verifier && echo 1 > /logs/verifier/a && ls -d /tests /solution"
    assert sandbox.commands.run(line, user="root").stdout == "/solution\n/tests\n"

    with Sandbox.create("stepped:v1") as other:
        assert not other.files.exists("/logs/verifier")
        with pytest.raises(CommandExitException, match="Read-only file system"):
            other.commands.run("mkdir /other", user="root")


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"cpuCount": "two"}, "a number of cores from 0.01 to 1,024"),
        ({"cpuCount": 10**400}, "a number of cores from 0.01 to 1,024"),
        ({"memoryMB": 1}, "a whole number of MB from 64 to 4,194,304"),
        ({"memoryMB": 512.5}, "a whole number of MB from 64 to 4,194,304"),
    ],
    ids=["no number", "too many digits", "too little", "not whole"],
)
def test_sizes_that_cannot_be_are_refused(client, sizes, said):
    """Before anything is built, by their names and in their own unit."""
    answer = client.post("/v3/templates", json={"name": "sized", **sizes})
    assert answer.status_code == 400
    message = answer.json()["message"]
    assert said in message
    assert next(iter(sizes)) in message
    # A whole number with a point is one.
    assert client.post("/v3/templates", json={"name": "sized", "memoryMB": 512.0}).status_code == 202


def test_tags_and_replits_call(build, image, builder, client):
    """A tag is given to a build that is there, and taken again; Replit's route runs in a template; one is deleted."""
    build(Template().from_image(image).set_envs({"OF": "template"}), "evaluated")
    Template.assign_tags("evaluated:default", ["v1", "v2"])
    Template.remove_tags("evaluated", ["v1"])
    assert sorted(tag.tag for tag in Template.get_tags("evaluated")) == ["default", "v2"]

    with pytest.raises(TemplateException, match="there is no template"):
        Template.assign_tags("evaluated:gone", ["v3"])

    # As `evalctl image` and its variables set it: the template, a file, a command and variables.
    code = "echo $1 $OF; cat data.txt; nothing-like-it"
    said = code_exec(f"{builder.url}/replit", builder.token, code, files={"data.txt": "data\n"})
    assert said.startswith("the image template\ndata\n")
    assert "not found" in said

    with pytest.raises(RuntimeError, match="another program than Python"):
        code_exec(f"{builder.url}/replit", builder.token, "1", interpreter_mode=True)

    # By the path of E2B's command line.
    assert client.delete("/templates/evaluated").status_code == 204
    assert not Template.exists("evaluated")
    assert client.delete("/templates/evaluated").status_code == 404


def test_a_start_command_is_waited_for(build, image):
    """E2B's checks become those of the template; the command runs in each sandbox before its first caller."""
    serve = "while true; do echo answer | nc -l -p 8123; done"
    template = Template().from_image(image).set_start_cmd(f"echo up > /tmp/up; {serve}", wait_for_port(8123))
    build(template, "starting")

    with Sandbox.create("starting") as sandbox:
        assert sandbox.files.read("/tmp/up") == "up\n"
        assert any("nc -l" in " ".join(one.args) for one in sandbox.commands.list())

    upon = Template().from_template("starting").run_cmd("echo upon > upon")
    build(
        upon.set_start_cmd("cp upon /tmp/new; mv /tmp/new /tmp/up; sleep 1000", wait_for_file("/tmp/up")),
        "starting:upon",
    )

    with Sandbox.create("starting:upon") as sandbox:
        assert sandbox.files.read("/tmp/up") == "upon\n"


def test_a_failure_names_its_step_and_words(build, image, ended):
    """The build is an error with the number of the step; nothing is published."""
    template = Template().from_image(image).run_cmd("true").run_cmd("echo last words; exit 3")

    with pytest.raises(BuildException, match=r"(?s)RUN echo last words.*ended with 3.*last words"):
        build(template, "failing")

    assert not Template.exists("failing")
    info = Template.build_in_background(template, "failing")
    said = ended("failing", info.build_id)
    assert (said["status"], said["reason"]["step"]) == ("error", "2")

    with pytest.raises(BuildException, match="no template that was made from an image"):
        build(Template().from_template("nothing-like-it").run_cmd("true"), "failing")


def test_the_javascript_sdk(builder, image, context, tmp_path):
    """The same by E2B's other SDK."""
    node = shutil.which("node")

    if node is None or not (MODULES / "e2b").is_dir():
        pytest.skip("needs node and the packages of tests/npm_programs: `make test` installs them")

    # Modules are looked for beside the program, and the tree of the tests stays as it is.
    script = shutil.copy(Path(__file__).parent / "builder.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    envs = {"E2B_API_URL": builder.url, "E2B_SANDBOX_URL": builder.url, "E2B_API_KEY": builder.token}
    done = subprocess.run(
        [node, script, image, str(context)],
        env={"PATH": os.environ["PATH"], **envs},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "name": "by-js:v1",
        "exists": [True, False],
        "read": ["hello user\n", "deep"],
        "heard": True,
        "failed": ["BuildError", True],
    }


def test_images_by_the_native_api(builder, image, tmp_path):
    """A server takes an image with steps, and the text of a Dockerfile without files; its owner's alone."""
    order = {"url": builder.url, "api_key": builder.token}
    heard: list[str] = []
    info = build_template(
        "native",
        image=image,
        steps=["RUN echo built > /built"],
        start="cat /built > /tmp/up; sleep 1000",
        ready="file:/tmp/up",
        on_progress=heard.append,
        **order,
    )
    assert info.start is not None
    assert any("RUN echo built" in line for line in heard)

    with fumehood.Sandbox("native", **order) as sandbox:
        assert sandbox.files.read("/tmp/up") == "built\n"

    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nCOPY nothing /there\n")

    with pytest.raises(InvalidArgumentError, match="files of the context"):
        build_template("native", dockerfile=str(file), **order)

    with pytest.raises(InvalidArgumentError, match="None at a server"):
        build_template("native", dockerfile=str(file), context=str(tmp_path), **order)

    # What a Dockerfile names lies at a registry, never in a folder of the server's machine.
    file.write_text(f"FROM {image}\n")

    with pytest.raises(fumehood.FumehoodError, match="registry"):
        build_template("native", dockerfile=str(file), **order)


# -- attacks


@pytest.fixture(scope="module")
def tenant(builder) -> str:
    """The token of a key that is not the owner's."""
    body = {"name": "a tenant", "scopes": ["sandboxes", "execute"]}
    answer = httpx.post(f"{builder.url}/v1/keys", json=body, headers=builder.headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def _publish(builder: RunningServer, name: str) -> None:
    """Puts a template into the store of a server, of which no sandbox is ever made."""
    info = TemplateInfo(
        name=name,
        python="3.11.9",
        preload=(),
        envs={},
        has_files=False,
        size_bytes=1,
        built_at=datetime.now(UTC),
        fingerprint="f",
    )
    store = TemplateStore(str(builder.state.parent / "fumehood" / "templates"))
    store.publish(TemplateRecord(info=info, build=f"{name}.abc", interpreter="bin/python"))


def test_only_the_owner_builds_tags_and_deletes(image, tenant, builder, server):
    """A tenant uses what there is; a server without the setting builds for its owner neither."""
    _publish(builder, "owned")
    asked = [
        ("POST", "/v3/templates", {"name": "mine"}),
        ("POST", "/v2/templates", {"name": "mine"}),
        ("GET", f"/templates/owned/files/{'0' * 64}", None),
        ("POST", f"/v2/templates/owned/builds/{uuid.uuid4()}", {"fromImage": image}),
        ("GET", f"/templates/owned/builds/{uuid.uuid4()}/status", None),
        ("POST", "/templates/tags", {"target": "owned:default", "tags": ["x"]}),
        ("DELETE", "/templates/tags", {"name": "owned", "tags": ["default"]}),
        ("DELETE", "/templates/owned", None),
    ]

    for method, path, body in asked:
        refused = httpx.request(method, builder.url + path, json=body, headers={"X-API-Key": tenant})
        assert refused.status_code == 403, (path, refused.text)

    refused = httpx.post(f"{server.url}/v3/templates", json={"name": "mine"}, headers=server.headers)
    assert refused.status_code == 403
    assert "template_builds" in refused.json()["message"]

    with pytest.raises(AuthenticationException):
        Template.build(Template().from_image(image), "mine", api_key="e2b_" + "0" * 40)


def _archive(*entries: tarfile.TarInfo, data: bytes = b"") -> bytes:
    written = io.BytesIO()

    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for entry in entries:
            entry.size = len(data) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(data) if entry.isreg() else None)

    return written.getvalue()


def _entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


HOSTILE = {
    "parent": ([_entry("app/../../../escaped")], "leaves the image|none of its files"),
    "link": ([_entry("app/link", tarfile.SYMTYPE, "/"), _entry("app/link/escaped")], "leads through"),
    "hard": ([_entry("app/hard", tarfile.LNKTYPE, "../../../etc/shadow")], "leaves the image"),
    "nothing": ([_entry("other")], "none of its files"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_archives_lead_nowhere(image, client, ended, case):
    """What is uploaded is unpacked in a jail; a name that leads out fails the build, and its step is named."""
    entries, match = HOSTILE[case]
    files_hash = uuid.uuid4().hex * 2
    link = client.get(f"/templates/hostile/files/{files_hash}").json()
    assert link["present"] is False
    assert httpx.put(link["url"], content=_archive(*entries, data=b"x")).status_code == 200
    build_id = client.post("/v3/templates", json={"name": "hostile"}).json()["buildID"]
    step = {"type": "COPY", "args": ["app", "/opt/app", "", ""], "filesHash": files_hash}
    order = {"fromImage": image, "steps": [step]}
    assert client.post(f"/v2/templates/hostile/builds/{build_id}", json=order).status_code == 202
    said = ended("hostile", build_id)
    assert said["status"] == "error"
    assert said["reason"]["step"] == "1"
    assert re.search(match, said["reason"]["message"]), said["reason"]
    assert not Template.exists("hostile")


def test_an_upload_takes_its_own_signature(client):
    """An address is for one archive of one template, and a time; a wrong hash or none is refused."""
    url = httpx.URL(client.get(f"/templates/signed/files/{'1' * 64}").json()["url"])
    others = [
        url.copy_with(path=url.path.replace("signed", "other")),
        url.copy_with(path=url.path.replace("1" * 64, "2" * 64)),
        url.copy_set_param("expires", "99999999999"),
        url.copy_remove_param("signature"),
    ]
    assert [httpx.put(one, content=b"x").status_code for one in others] == [403] * 4
    assert client.get(f"/templates/signed/files/{'1' * 64}").json()["present"] is False
    assert client.get("/templates/signed/files/..%2f..%2fetc").status_code >= 400


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ({"type": "MOUNT", "args": ["/"]}, 501),
        ({"type": "RUN", "args": []}, 400),
        ({"type": "USER", "args": ["root; reboot"]}, 400),
        ({"type": "COPY", "args": ["a", "b"], "filesHash": "../../etc/passwd"}, 400),
        ({"type": "COPY", "args": ["a", "b"], "filesHash": "3" * 64}, 202),
        ({"type": "ENV", "args": ["A B", "c"]}, 400),
    ],
)
def test_steps_that_cannot_be_are_refused(image, client, step, status):
    """By name, before anything runs; files that were not uploaded fail the build."""
    build_id = client.post("/v3/templates", json={"name": "refused"}).json()["buildID"]
    answer = client.post(f"/templates/refused/builds/{build_id}", json={"fromImage": image, "steps": [step]})
    assert answer.status_code == status, answer.text
