"""Commands and terminals by E2B's SDK: output, input, time, signals, and the end of the sandbox under them."""

from __future__ import annotations

import threading

import pytest
from e2b import (
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    TimeoutException,
)
from e2b.exceptions import SandboxNotRunningException
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import Sandbox


def test_a_command_gives_its_output_as_it_comes(shared):
    """Both streams, at once and in the result."""
    heard = []
    result = shared.commands.run(
        "echo out; echo err >&2; printf 'ü'; pwd; echo $MORE",
        envs={"MORE": "more"},
        cwd="/tmp",
        on_stdout=heard.append,
        on_stderr=heard.append,
    )

    assert result.stdout == "out\nü/tmp\nmore\n"
    assert result.stderr == "err\n"
    assert "".join(sorted("".join(heard))) == "".join(sorted(result.stdout + result.stderr))


def test_a_code_other_than_zero_raises(shared):
    """With everything that was said before."""
    with pytest.raises(CommandExitException) as caught:
        shared.commands.run("echo before; echo why >&2; exit 7")

    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (7, "before\n", "why\n")


def test_the_machine_is_reported_of(shared):
    """A login shell of the user `user` in its home, with E2B's variables."""
    script = 'echo $E2B_SANDBOX $E2B_SANDBOX_ID $USER $HOME $PWD; shopt -q login_shell && id -un; python3 -c "print(1)"'
    told = shared.commands.run(script).stdout.split()
    assert told == ["true", shared.sandbox_id, "user", "/home/user", "/home/user", "user", "1"]


def test_much_output_comes_whole(shared):
    """More than any buffer on the way holds."""
    result = shared.commands.run("seq 1 400000")
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 400_001))


def test_output_beyond_the_bound_is_not_lost_in_silence(shared):
    """The first part and the end are there, and what is missing between them is counted in words."""
    result = shared.commands.run("yes | head -c 9000000; echo the end")
    missing = 9_000_008 - (4 << 20) - (3 << 20)
    assert (
        len(result.stdout.replace(f"\n[... {missing:,} bytes of standard output left out here ...]\n", ""))
        == 7 << 20
    )
    assert result.stdout.endswith("y\nthe end\n")
    assert result.error == f"{missing} bytes of stdout dropped because of the sandbox's limits"

    whole = shared.commands.run("yes | head -c 5000000")
    assert (len(whole.stdout), whole.error) == (5_000_000, None)

    execution = shared.run_code("print('q' * 9_000_000); print('the end')")
    said = "".join(execution.logs.stdout)
    # What streams while the code runs, a notice, and the tail.
    kept = (4 << 20) + (3 << 20)
    assert f"[... {9_000_009 - kept:,} bytes of standard output left out here ...]" in said
    assert said.count("q") == kept - len("\nthe end\n")
    assert said.endswith("q\nthe end\n")
    assert execution.logs.stderr == []


def test_a_background_command_goes_on_without_its_client(shared):
    """It is listed, found again by its pid, and killed."""
    command = shared.commands.run("echo begun; exec sleep 1000", background=True, envs={"A": "1"}, cwd="/tmp")
    command.disconnect()
    (listed,) = [process for process in shared.commands.list() if process.pid == command.pid]
    assert (listed.cmd, listed.cwd, listed.envs) == ("/bin/bash", "/tmp", {"A": "1"})
    assert listed.args[:2] == ["-l", "-c"]

    again = shared.commands.connect(command.pid)
    assert next(iter(again)) == ("begun\n", None, None)
    assert shared.commands.kill(command.pid) is True

    with pytest.raises(CommandExitException) as caught:
        again.wait()

    assert caught.value.exit_code == 137
    assert command.pid not in [process.pid for process in shared.commands.list()]
    assert shared.commands.kill(command.pid) is False

    # An ended one can be asked for its end for a while.
    with pytest.raises(CommandExitException):
        shared.commands.connect(command.pid).wait()

    with pytest.raises(NotFoundException):
        shared.commands.connect(99_999)


def test_input_is_sent_and_ended(shared):
    """Piece by piece, as a stream, and its end."""
    command = shared.commands.run("cat; echo done", background=True, stdin=True)
    command.send_stdin("one ")
    shared.commands.stream_input(command.pid, ["two ", b"three ", "x" * 300_000])
    command.close_stdin()
    assert command.wait().stdout == "one two three " + "x" * 300_000 + "done\n"

    without = shared.commands.run("cat; sleep 1000", background=True)

    for call in (
        lambda: shared.commands.send_stdin(without.pid, "x"),
        lambda: shared.commands.stream_input(99_999, ["x"]),
        lambda: shared.commands.send_stdin(99_999, "x"),
        lambda: shared.commands.close_stdin(99_999),
    ):
        with pytest.raises(NotFoundException):
            call()

    without.kill()


def test_the_time_of_a_command_ends_the_command(shared, eventually):
    """It is not only the client that gives up."""
    with pytest.raises(TimeoutException):
        shared.commands.run("echo marker-of-time; exec sleep 1000", timeout=0.5)

    eventually(lambda: not [p for p in shared.commands.list() if "marker-of-time" in p.args[-1]])
    assert shared.commands.run("sleep 0.2; echo in time", timeout=0).stdout == "in time\n"


def test_what_cannot_start_says_why(shared):
    """A directory that is not there."""
    with pytest.raises(InvalidArgumentException, match="did not start"):
        shared.commands.run("true", cwd="/nowhere")


def test_a_terminal_is_a_terminal(shared):
    """Of the size that was asked for, then of the one that it was changed to."""
    shown = bytearray()
    terminal = shared.pty.create(PtySize(rows=31, cols=91), envs={"WHO": "me"}, timeout=60)
    shared.pty.send_stdin(terminal.pid, b"stty size; echo $TERM $LANG $WHO\n")
    shared.pty.resize(terminal.pid, PtySize(rows=32, cols=92))
    shared.pty.stream_input(terminal.pid, ["stty size; ", "exit 0\n"])
    terminal.wait(on_pty=shown.extend)

    assert b"32 92" in shown
    assert b"xterm-256color C.UTF-8 me" in shown

    killed = shared.pty.create(PtySize(rows=24, cols=80))
    assert shared.pty.kill(killed.pid) is True

    with pytest.raises(CommandExitException):
        killed.wait()

    assert shared.pty.kill(killed.pid) is False


def test_a_sandbox_that_is_killed_ends_its_commands(sandbox):
    """Whoever follows one hears that the sandbox is gone, at once."""
    command = sandbox.commands.run("echo begun; exec sleep 1000", background=True, timeout=0)
    assert next(iter(command)) == ("begun\n", None, None)
    heard = []

    def wait():
        try:
            command.wait()
        except SandboxException as error:
            heard.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    sandbox.kill()
    waiting.join(20)

    assert [type(error) for error in heard] == [SandboxNotRunningException]

    with pytest.raises(SandboxNotRunningException, match="was not found"):
        sandbox.commands.run("true")

    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("x")

    with pytest.raises(SandboxNotRunningException):
        sandbox.files.list(".")


def test_git_works(shared):
    """On a repository of the sandbox: there is no network."""
    if not shared.commands.run("command -v git || true").stdout:
        pytest.skip("needs git")

    shared.commands.run(
        "rm -rf repo; git init -q -b main repo; cd repo; git config user.email a@b.c; git config user.name a"
    )
    shared.files.write("repo/file", "content")
    shared.commands.run("cd repo && git add file && git commit -qm first")
    assert shared.commands.run("cd repo && git log --format=%s").stdout == "first\n"


def test_a_port_without_a_server_and_one_with(sandbox, http, headers_of, eventually):
    """By E2B's headers and a token of the sandbox; the messages are E2B's."""
    sandbox.files.write("served/hello.txt", "from inside")
    closed = http.get("/hello.txt", headers=headers_of(sandbox, 3000))
    assert closed.status_code == 502
    assert closed.json() == {
        "sandboxId": sandbox.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": 3000,
        "code": 502,
    }

    sandbox.commands.run("cd served && exec python3 -m http.server 3000", background=True, timeout=0)
    opened = eventually(
        lambda: (
            (answer := http.get("/hello.txt?x=1", headers=headers_of(sandbox, 3000))).status_code == 200
            and answer
        )
    )
    assert opened.text == "from inside"
    assert http.get("/metrics", headers=headers_of(sandbox, 3000)).status_code == 404
    assert http.get("/v1/info", headers=headers_of(sandbox, 3000)).status_code == 404

    named = headers_of(sandbox, 3000)
    del named["X-Access-Token"]
    assert http.get("/hello.txt", headers=named).status_code == 403
    traffic = {**named, "e2b-traffic-access-token": sandbox.traffic_access_token}
    assert http.get("/hello.txt", headers=traffic).status_code == 200

    sandbox.kill()
    dead = http.get("/hello.txt", headers=traffic)
    assert (dead.status_code, dead.json()["message"]) == (502, "The sandbox was not found")


def test_a_sandbox_is_found_by_its_host(start_server, http, eventually):
    """With a domain, the daemon, the interpreter and all other ports have host names of their own."""
    server = start_server(domain="boxes.test")
    sandbox = Sandbox.create(timeout=60, api_url=server.url, sandbox_url=server.url)
    assert sandbox.get_host(3000) == f"3000-{sandbox.sandbox_id}.boxes.test"

    def get(port: int, path: str, token: str, **others: str):
        headers = {"Host": f"{port}-{sandbox.sandbox_id}.boxes.test", "X-Access-Token": token, **others}
        return http.get(f"{server.url}{path}", headers=headers)

    token = sandbox._envd_access_token
    assert get(49983, "/health", token).status_code == 204
    assert get(49999, "/health", token).text == "OK"
    assert get(49983, "/health", "wrong").status_code == 401
    assert get(49999, "/contexts", "").status_code == 401

    # Other ports too, for whoever holds a token of the sandbox.
    sandbox.files.write("index.html", "served")
    sandbox.commands.run("exec python3 -m http.server 3000", background=True, timeout=0)
    traffic = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    eventually(lambda: get(3000, "/", "", **traffic).text == "served")
    assert get(3000, "/", token).text == "served"
    refused = get(3000, "/", "")
    missing = "the port is private, and the header e2b-traffic-access-token is wrong"
    assert (refused.status_code, refused.json()) == (
        403,
        {"sandboxId": sandbox.sandbox_id, "message": missing, "code": 403},
    )
    closed = get(3001, "/", token)
    assert (closed.status_code, closed.json()) == (
        502,
        {
            "sandboxId": sandbox.sandbox_id,
            "message": "The sandbox is running but port is not open",
            "port": 3001,
            "code": 502,
        },
    )
    sandbox.kill()
    dead = get(3000, "/", token)
    assert (dead.status_code, dead.json()) == (
        502,
        {"sandboxId": sandbox.sandbox_id, "message": "The sandbox was not found", "code": 502},
    )


def test_a_server_inside_is_reached_by_every_name_of_the_machine(sandbox):
    """Without the proxy: `0.0.0.0`, as servers print it, `::1` and the loopback's other names."""
    serving = "exec python3 -m http.server --bind :: 8123"
    sandbox.files.write("served/index.html", "served")
    sandbox.commands.run(serving, background=True, timeout=0, cwd="/home/user/served")
    asking = (
        "for h in 0.0.0.0 127.0.0.1 localhost '[::1]'; do "
        "curl -sS --retry 100 --retry-delay 1 --retry-connrefused --max-time 50 http://$h:8123/; done"
    )
    assert sandbox.commands.run(asking).stdout == "served" * 4
