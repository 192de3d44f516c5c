"""Commands and terminals of a sandbox."""

from __future__ import annotations

import errno

import pytest
from tests.waiting import at_some_pace, until

from fumehood import (
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    InvalidArgumentError,
    Limits,
    ProcessNotFoundError,
)


def test_a_command_gives_its_output(sandbox):
    """A line goes to the guest's shell; both streams are told apart."""
    result = sandbox.commands.run("echo out; echo err >&2")

    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)
    assert not result.truncated


def test_a_list_of_arguments_meets_no_shell(sandbox):
    """A program and its arguments are passed as they are."""
    assert sandbox.commands.run(["printf", "%s", "$HOME; *"]).stdout == "$HOME; *"


def test_arguments_may_be_as_long_as_the_kernel_takes(sandbox):
    """One argument has at most 128 KiB, all together 2 MiB with an ordinary stack."""
    parts = ["x" * 65_536] * 20
    printed = sandbox.commands.run(["bash", "-c", 'printf %s "$@" "" | wc -c', "bash", *parts]).stdout
    assert int(printed) == 20 * 65_536

    with pytest.raises(CommandStartError, match="Argument list too long"):
        sandbox.commands.run(["true", *(["x" * 65_536] * 99)])


def test_a_command_that_fails_raises_with_everything_it_wrote(sandbox):
    """An exit code other than 0 is an exception that carries output and code."""
    with pytest.raises(CommandExitError, match="ended with code 3: bad") as caught:
        sandbox.commands.run("echo some; echo bad >&2; exit 3")

    assert (caught.value.stdout, caught.value.stderr, caught.value.exit_code) == ("some\n", "bad\n", 3)


def test_the_last_lines_of_a_command_that_fails_are_in_the_message(sandbox):
    """Who does not catch it reads why: what was written to standard error, or else to standard output."""
    with pytest.raises(CommandExitError) as caught:
        sandbox.commands.run("for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 3")

    assert "ended with code 3: line 3\nline 4\nline 5\nline 6\nline 7\n\nhint" in str(caught.value)

    with pytest.raises(CommandExitError, match="ended with code 4: only out"):
        sandbox.commands.run("echo only out; exit 4")


def test_death_by_a_signal_is_an_exit_code(sandbox):
    """A signal is told as shells tell it."""
    with pytest.raises(CommandExitError) as caught:
        sandbox.commands.run(["bash", "-c", "kill -TERM $$"])

    assert caught.value.exit_code == 128 + 15


def test_directory_and_environment(sandbox):
    """`cwd` and `envs` hold for this command; the default directory is the home."""
    assert sandbox.commands.run("pwd").stdout == "/home/user\n"
    assert sandbox.commands.run("pwd; echo $A", cwd="/tmp", envs={"A": "b c"}).stdout == "/tmp\nb c\n"


def test_a_command_runs_as_the_sandboxs_user(sandbox):
    """Nothing inside runs as root."""
    assert sandbox.commands.run("id -un; id -u").stdout == "user\n1000\n"


@pytest.mark.parametrize("data", ["häß\n", "häß\n".encode()], ids=["text", "bytes"])
def test_stdin_can_be_given(sandbox, data):
    """Text or bytes are fed, and the input ends."""
    assert sandbox.commands.run("cat", stdin=data).stdout == "häß\n"


def test_a_large_stdin_passes(sandbox):
    """A megabyte goes in while as much comes out."""
    assert sandbox.commands.run("wc -c", stdin=b"x" * 1_000_000).stdout.strip() == "1000000"


def test_a_command_that_does_not_read_its_input_is_fine(sandbox):
    """Who leaves early is not blamed for it."""
    assert sandbox.commands.run("head -c 1", stdin="y" * 1_000_000).stdout == "y"


def test_without_stdin_the_input_is_empty(sandbox):
    """Nobody waits for input that will not come."""
    assert sandbox.commands.run("cat; echo done").stdout == "done\n"


def test_callbacks_hear_output(sandbox):
    """Each stream has its callback."""
    out: list[str] = []
    err: list[str] = []
    sandbox.commands.run("echo a; echo b >&2", on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err)) == ("a\n", "b\n")


def test_output_that_is_no_utf8_is_shown_as_such(sandbox):
    """Broken bytes are replaced, not dropped, and characters split between pieces are whole."""
    result = sandbox.commands.run("printf '\\xff'; printf '\\xc3'; sleep 0.05; printf '\\xa9'")
    assert result.stdout == "\ufffdé"


def test_output_beyond_the_limit_keeps_head_and_tail(face):
    """What a command writes is cut like what a cell writes: what it wrote last is there, and the gap is told."""
    sandbox = face.open(limits=Limits(stdout_bytes=100))
    heard: list[str] = []
    line = "head -c 10000 /dev/zero | tr '\\0' x; printf end"
    result = sandbox.commands.run(line, on_stdout=heard.append)

    gap = "\n[... {} bytes of standard output left out here ...]\n"
    whole = "x" * 25 + gap.format("9,903") + "x" * 72 + "end"
    assert result.stdout == whole
    assert result.truncated.stdout_bytes == 9903
    assert "".join(heard) == "x" * 100 + gap.format("9,828") + "x" * 72 + "end"

    with pytest.raises(CommandExitError) as caught:
        sandbox.commands.run(f"{line}; exit 1")

    assert (caught.value.stdout, caught.value.is_truncated) == (whole, True)


def test_output_a_little_beyond_the_limit_loses_no_more(face):
    """Characters stay whole on both sides of the gap."""
    sandbox = face.open(limits=Limits(stdout_bytes=100))
    result = sandbox.commands.run("python3 -c \"print('é' * 51, end='')\"")
    head, _, tail = result.stdout.partition("\n[... 4 bytes of standard output left out here ...]\n")
    assert (head, tail) == ("é" * 12, "é" * 37)
    assert result.truncated.stdout_bytes == 2


def test_a_command_that_takes_too_long_is_killed_with_its_children(sandbox):
    """The time limit ends the whole tree, and the error says so."""

    def scene(seconds):
        with pytest.raises(CommandTimeoutError, match=rf"of {seconds} s") as caught:
            sandbox.commands.run("echo begun; sleep 61 & sleep 62", timeout=seconds)

        assert isinstance(caught.value, TimeoutError)
        assert caught.value.stdout == "begun\n"

    at_some_pace(scene, 0.5, 5)
    # Each has been killed; the kernel takes it away when it comes to it.
    until(lambda: not sandbox.commands.run("pgrep -f 'sleep 6[12]' || true").stdout)


def test_the_limit_on_time_holds_for_commands(face):
    """Without a timeout of its own a foreground command has `wall_seconds`."""
    sandbox = face.open(limits=Limits(wall_seconds=0.5))

    with pytest.raises(CommandTimeoutError):
        sandbox.commands.run("sleep 60")


@pytest.mark.parametrize(
    ("arguments", "said", "number"),
    [
        (
            {"command": ["no-such-program"]},
            "command 'no-such-program' did not start: No such file",
            errno.ENOENT,
        ),
        (
            {"command": "true", "cwd": "/nowhere"},
            r"command 'true \(in /nowhere\)' did not start: No such file",
            errno.ENOENT,
        ),
        (
            {"command": ["/etc/passwd"]},
            "command '/etc/passwd' did not start: Permission denied",
            errno.EACCES,
        ),
    ],
    ids=["missing", "directory", "not executable"],
)
def test_a_command_that_cannot_start_is_reported(sandbox, arguments, said, number):
    """A missing program or directory is told apart from a program that fails, in the caller's words."""
    with pytest.raises(CommandStartError, match=said) as caught:
        sandbox.commands.run(**arguments)

    assert caught.value.errno == number


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": []},
        {"command": [""]},
        {"command": 5},
        {"command": b"true"},
        {"command": ["a", 5]},
        {"command": "a\0b"},
        {"command": "true", "timeout": 0},
        {"command": "true", "envs": {"A": None}},
        {"command": "true", "envs": 5},
        {"command": "true", "background": "yes"},
        {"command": "true", "on_stdout": []},
        {"command": "true", "stdin": 5},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(sandbox, arguments):
    """Nothing is started for an argument that is refused."""
    with pytest.raises(InvalidArgumentError):
        sandbox.commands.run(**arguments)

    assert sandbox.commands.list() == []


def test_a_background_command_is_held_by_a_handle(sandbox):
    """It is listed while it runs, and its handle waits for its end."""
    handle = sandbox.commands.run(["bash", "-c", "read line; echo got $line"], background=True, stdin=True)
    listed = sandbox.commands.list()

    assert [process.pid for process in listed] == [handle.pid]
    assert listed[0].argv == ("bash", "-c", "read line; echo got $line")
    assert listed[0].cwd == "/home/user"

    handle.send_stdin("word\n")
    result = handle.wait()
    assert result.stdout == "got word\n"
    assert handle.wait() == result
    assert sandbox.commands.list() == []


def test_a_background_command_outlives_foreground_work(sandbox):
    """Other verbs go on while it runs, and its output is kept for whoever comes later."""
    handle = sandbox.commands.run("echo early; read x; echo late", background=True, stdin=True)
    sandbox.run_code("1")
    handle.send_stdin("\n")
    assert handle.wait().stdout == "early\nlate\n"


def test_connect_takes_hold_of_a_running_command(sandbox):
    """A pid is enough to feed and follow a command."""
    pid = sandbox.commands.run("read x; echo $x", background=True, stdin=True).pid
    other = sandbox.commands.connect(pid)
    sandbox.commands.send_stdin(pid, "hello\n")
    assert other.wait().stdout == "hello\n"


def test_closing_stdin_ends_the_input(sandbox):
    """`cat` ends when its input does."""
    handle = sandbox.commands.run("cat", background=True, stdin=True)
    handle.send_stdin("a")
    handle.close_stdin()
    assert handle.wait().stdout == "a"


def test_kill_ends_a_command_and_tells_whether_it_ran(sandbox):
    """`kill` is told once, and `wait` says how it ended."""
    handle = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.kill(handle.pid) is True

    with pytest.raises(CommandExitError) as caught:
        handle.wait()

    assert caught.value.exit_code == 128 + 9
    assert sandbox.commands.kill(handle.pid) is False


def test_an_unknown_pid_is_reported(sandbox):
    """Only commands that were started here have handles; other processes are not reached by number."""
    with pytest.raises(ProcessNotFoundError, match="99999"):
        sandbox.commands.send_stdin(99999, "x")

    assert sandbox.commands.kill(99999) is False
    assert sandbox.commands.kill(1) is False
    assert sandbox.is_running()

    with pytest.raises(ProcessNotFoundError, match="99999"):
        sandbox.commands.connect(99999)


def test_connect_takes_hold_of_a_command_that_has_just_ended(sandbox):
    """What it wrote and how it ended is still known; that it wrote nothing makes no difference."""
    loud = sandbox.commands.run("echo word", background=True)
    quiet = sandbox.commands.run("exit 3", background=True)
    loud.wait()

    with pytest.raises(CommandExitError):
        quiet.wait()

    assert sandbox.commands.list() == []
    assert sandbox.commands.connect(loud.pid).wait().stdout == "word\n"

    with pytest.raises(CommandExitError, match="ended with code 3"):
        sandbox.commands.connect(quiet.pid).wait()


@pytest.mark.parametrize("pid", ["7", None, 7.0, True, 0, -1, 2**22 + 1], ids=repr)
def test_what_is_no_pid_is_refused(sandbox, pid):
    """By every verb that takes one: `-1` would mean everybody, and a handle is easily taken for its pid."""
    verbs = [
        sandbox.commands.connect,
        sandbox.commands.kill,
        sandbox.commands.close_stdin,
        lambda pid: sandbox.commands.send_stdin(pid, "x"),
        sandbox.pty.kill,
        lambda pid: sandbox.pty.send(pid, "x"),
        lambda pid: sandbox.pty.resize(pid, cols=80, rows=24),
    ]

    for verb in verbs:
        with pytest.raises(
            InvalidArgumentError, match=r"pid takes a number .* `commands.list\(\)` names them"
        ):
            verb(pid)


def test_an_error_in_a_callback_kills_a_foreground_command(sandbox):
    """Who gives up leaves nothing running."""

    def on_stdout(text: str) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError):
        sandbox.commands.run("echo go; sleep 60", on_stdout=on_stdout)

    assert sandbox.commands.list() == []


def test_commands_and_cells_see_the_same_files(sandbox):
    """There is one sandbox."""
    sandbox.run_code("open('made', 'w').write('by a cell')")
    assert sandbox.commands.run("cat made").stdout == "by a cell"


def _read_until(handle, wanted: bytes) -> bytes:
    seen = b""

    while wanted not in seen:
        seen += next(handle)

    return seen


def test_a_terminal_is_a_terminal(sandbox):
    """A program on it finds a tty of the size that was asked for."""
    handle = sandbox.pty.create(["bash", "-c", "test -t 0 && stty size"], cols=100, rows=30)
    output = b"".join(handle)

    assert b"30 100" in output
    assert handle.exit_code == 0


def test_a_terminal_takes_what_is_typed(sandbox):
    """Typing reaches the shell, and what it writes comes back."""
    handle = sandbox.pty.create()
    handle.send("echo $((6*7))x\n")
    _read_until(handle, b"42x")
    handle.send(b"exit 5\n")
    assert handle.wait() == 5


def test_a_terminal_can_be_resized(sandbox):
    """The program is told the new size."""
    handle = sandbox.pty.create(["bash", "-c", "read x; stty size"])
    sandbox.pty.resize(handle.pid, cols=120, rows=40)
    sandbox.pty.send(handle.pid, "\n")
    assert b"40 120" in b"".join(handle)


def test_ctrl_c_on_a_terminal_interrupts(sandbox):
    """The terminal turns the key into a signal."""
    handle = sandbox.pty.create(
        ["bash", "-c", "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.05; done"]
    )
    _read_until(handle, b"ready")
    handle.send(b"\x03")
    _read_until(handle, b"caught")
    assert handle.wait() == 0


def test_a_terminal_is_attached_to_again(sandbox):
    """From its beginning, or where an earlier handle stood; several at once have the same, and none ends it."""
    handle = sandbox.pty.create()
    handle.send("echo $((6*7))x\n")
    _read_until(handle, b"42x")
    again = sandbox.pty.connect(handle.pid, after=0)
    _read_until(again, b"42x")
    position = handle.position
    handle.send("echo $((6*8))y\n")
    _read_until(sandbox.pty.connect(handle.pid, after=position), b"48y")
    _read_until(again, b"48y")

    with pytest.raises(ProcessNotFoundError):
        sandbox.pty.connect(handle.pid + 4000)

    handle.send(b"exit 5\n")
    assert again.wait() == 5
    assert handle.wait() == 5


def test_a_terminal_can_be_killed(sandbox):
    """`kill` ends what runs on it."""
    handle = sandbox.pty.create()
    assert sandbox.pty.kill(handle.pid) is True
    assert handle.wait() == 128 + 9
    assert handle.kill() is False


@pytest.mark.parametrize("wrong", [{"command": "bash"}, {"command": None}, {"envs": "A=1"}], ids=str)
def test_a_terminal_takes_a_program_and_its_arguments(sandbox, wrong):
    """Of a text each letter would be one of them."""
    with pytest.raises(InvalidArgumentError, match="is refused"):
        sandbox.pty.create(**wrong)

    assert sandbox.commands.list() == []


@pytest.mark.parametrize("size", [{"cols": 0}, {"rows": -1}, {"cols": 100_000}, {"rows": 2.5}], ids=str)
def test_a_terminal_of_no_size_is_refused(sandbox, size):
    """Sizes are checked before anything starts."""
    with pytest.raises(InvalidArgumentError):
        sandbox.pty.create(**size)


def test_output_that_is_no_text_keeps_its_head_and_its_end(face):
    """Bytes that only continue characters are no character to be dropped whole: both ends stay, whatever they hold."""
    sandbox = face.open(limits=Limits(stdout_bytes=1000))
    done = sandbox.commands.run(r"echo begun; head -c 4000000 /dev/zero | tr '\0' '\200'; echo the end")
    assert done.stdout.startswith("begun\n")
    assert done.stdout.endswith("the end\n")
    head, notice, tail = done.stdout.split("\n", 1)[1].split("\n", 2)
    assert notice.endswith("of standard output left out here ...]"), notice
    assert set(head) == set(tail.removesuffix("the end\n")) == {"\N{REPLACEMENT CHARACTER}"}
