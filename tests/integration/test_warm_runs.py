"""`fumehood run` by a process that keeps sandboxes ready: the same as without it, sooner, and gone when it is idle."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.bounds import MIB
from fumehood.cli import warm_daemon
from fumehood.cli.warm import socket_path
from fumehood.cli.warm_processes import warm_processes

WAIT_SECONDS = 60.0


class Runs:
    """Runs of a user whose runtime folder is the test's own."""

    def __init__(self, folder: Path, idle: str) -> None:
        self.folder = folder
        # The ordinary user of another test may have set them.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
        # Sandboxes import what they need themselves: that is less than each start would preload.
        own = {"XDG_RUNTIME_DIR": str(folder), "FUMEHOOD_DAEMON": idle, "FUMEHOOD_PRELOAD": ""}
        self.envs = {**kept, **own}

    def __call__(self, *words: str, stdin: str = "", **envs: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "fumehood", "run", *words],
            cwd=self.folder,
            env={**self.envs, **envs},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def sockets(self) -> list[Path]:
        return sorted((self.folder / "fumehood").glob("*.sock"))

    def daemon(self) -> int:
        """The process behind the socket, as the kernel says."""
        (path,) = self.sockets()

        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)

        return int(struct.unpack("3i", given)[0])


def until(is_so: Callable[[], object]) -> None:
    ends_at = time.monotonic() + WAIT_SECONDS

    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def was_warm(done: subprocess.CompletedProcess[str]) -> bool:
    """The ordinary way imports the library that reads the command line."""
    return "click" not in {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a run has written to standard error itself."""
    lines = done.stderr.splitlines(keepends=True)
    # A busy machine takes longer than a second to end processes, and that is printed too.
    others = ("import time:", "fumehood: ending the processes that keep")
    return "".join(line for line in lines if not line.startswith(others))


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    # Longer than all of these tests take on a busy machine.
    runs = Runs(tmp_path_factory.mktemp("w"), "600")
    first = runs("-c", "print('first')")
    assert (first.stdout, first.returncode, was_warm(first)) == ("first\n", 0, False)
    until(runs.sockets)
    yield runs

    if runs.sockets():
        os.kill(runs.daemon(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "stdin", "out", "err", "code"),
    [
        (["-c", "print(1)"], "", "1\n", "", 0),
        (["-c", "import sys; print(sys.argv); sys.exit(3)", "a", "-b"], "", "['-c', 'a', '-b']\n", "", 3),
        (["-"], "print(6 * 7)\n'a value'", "42\n", "", 0),
        (["-c", "print(input('? '))"], "Ada\n", "? Ada\n", "", 0),
        (["-c", "import sys; print(sys.stdin.read().upper())"], "a\nb", "A\nB\n", "", 0),
        (
            ["-c", "print(input(), input()); import sys; print([*sys.stdin])"],
            "a\nb\nc\nd",
            "a b\n['c\\n', 'd']\n",
            "",
            0,
        ),
        (["-c", "import getpass; print(getpass.getpass('? '))"], "s\n", "? s\n", "", 0),
        (["-c", "import sys; print([sys.stdin.read(), sys.stdin.readline()])"], "", "['', '']\n", "", 0),
        (["-c", "input()"], "", "", "EOFError", 1),
        (["-c", "print('\x1b[2J')"], "", "\\x1b[2J\n", "", 0),
        (["--raw", "-c", "print('\x1b[2J')"], "", "\x1b[2J\n", "", 0),
        (["--env", "A=5", "-c", "import os; print(os.environ['A'])"], "", "5\n", "", 0),
        (["-c", "1 / 0"], "", "", "ZeroDivisionError: division by zero\n", 1),
        (["--timeout", "0.5", "-c", "while True: pass"], "", "", "TimeLimitExceeded", 124),
        (["--memory", "1K", "-c", "1"], "", "", "--memory=1024 is refused", 64),
        (["--template", "none", "-c", "1"], "", "", "template", 70),
    ],
)
def test_a_warm_run_does_what_a_cold_one_does(warm, words, stdin, out, err, code):
    """The same output on the same streams, and the same exit code."""
    done = warm(*words, stdin=stdin)
    assert (done.stdout, done.returncode, was_warm(done)) == (out, code, True), said(done)
    assert err in said(done)
    assert bool(err) == bool(said(done))


def test_files_are_read_and_figures_written_by_the_callers_process(warm):
    """By their names in its own folder."""
    (warm.folder / "plot.py").write_text(
        "import sys, matplotlib.pyplot as plt\nprint(sys.argv, __file__)\nplt.plot([1, 2]);\n1 / 0"
    )
    done = warm("plot.py", "x")
    assert (done.stdout, done.returncode) == ("['plot.py', 'x'] /home/user/plot.py\n", 1)
    assert "File plot.py, line 4" in said(done)
    assert (warm.folder / "plot-1.png").read_bytes().startswith(b"\x89PNG")
    assert "plot-1.png" in said(done)


def test_each_run_has_a_sandbox_of_its_own(warm):
    """Nothing of one is there in the next."""
    assert warm("-c", "x = 1; open('left', 'w').write('x')").returncode == 0
    done = warm("-c", "import os; print('x' in globals(), os.path.exists('left'))")
    assert (done.stdout, was_warm(done)) == ("False False\n", True)


@pytest.mark.parametrize(
    "words",
    [
        ["--no-daemon", "-c", "1"],
        ["--lifetime", "60", "-c", "1"],
        ["--flag"],
        ["none.py"],
        ["--file", "none.csv", "-c", "1"],
        ["--output", "/proc/none", "-c", "1"],
    ],
)
def test_what_needs_more_takes_the_ordinary_way(warm, words):
    """And so does what is wrong: it is named there."""
    done = warm(*words)
    assert not was_warm(done)
    assert done.returncode == {"--flag": 64, "none.py": 74, "--file": 74, "--output": 64}.get(words[0], 0)


def test_files_go_in_and_come_back(warm):
    """Read and written by the caller's own process, whatever their size, and under the rules of `--output`."""
    content = os.urandom(3 * MIB + 5)
    (warm.folder / "data.bin").write_bytes(content)
    code = (
        "import os, matplotlib.pyplot as plt; data = open('in.bin', 'rb').read(); plt.plot([1]);"
        "open('/mnt/data/copy.bin', 'wb').write(data); os.makedirs('a/b'); open('a/b/c.txt', 'w').write('x');"
        "print(len(data), os.path.exists('data.bin'))"
    )
    words = ["--file", "data.bin:in.bin", "--file", "data.bin", "--output", "out", "-c", code]
    done = warm(*words)
    assert (done.stdout, done.returncode, was_warm(done)) == (f"{len(content)} True\n", 0, True), said(done)
    assert (warm.folder / "out" / "copy.bin").read_bytes() == content
    assert (warm.folder / "out" / "a" / "b" / "c.txt").read_text() == "x"
    assert (warm.folder / "out" / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    assert not (warm.folder / "out" / "in.bin").exists()
    assert said(done).splitlines() == [
        "fumehood: figure 1 -> out/figure-1.png",
        "fumehood: /mnt/data/copy.bin -> out/copy.bin",
        "fumehood: /home/user/a/b/c.txt -> out/a/b/c.txt",
    ]

    # Once more: what the last run wrote is replaced, what the user has changed is not.
    (warm.folder / "out" / "a" / "b" / "c.txt").write_text("mine")
    done = warm(*words)
    assert (done.returncode, was_warm(done)) == (73, True), said(done)
    assert "/home/user/a/b/c.txt was left out: out/a/b/c.txt is already there" in said(done)
    assert "copy.bin was left out" not in said(done)
    assert (warm.folder / "out" / "a" / "b" / "c.txt").read_text() == "mine"
    done = warm("--overwrite", *words)
    assert (done.returncode, (warm.folder / "out" / "a" / "b" / "c.txt").read_text()) == (0, "x"), said(done)


def test_files_that_cannot_be_brought_back_are_named(warm):
    """An endless file costs its bound, and the ones behind it come."""
    code = (
        "import os; f = open('/mnt/data/a', 'w'); os.truncate('/mnt/data/a', 600 << 20);"
        "os.mkfifo('/mnt/data/fifo'); os.symlink('/etc/passwd', '/mnt/data/link'); open('/mnt/data/z', 'w').write('z')"
    )
    done = warm("--output", "bounded", "-c", code)
    assert (done.returncode, was_warm(done)) == (73, True), said(done)
    assert "/mnt/data/a was left out: its 629145600 bytes are too many" in said(done)
    assert os.listdir(warm.folder / "bounded") == ["z"]


@pytest.mark.parametrize("words", [["-c", "print(1); 6 * 7"], ["-c", "1 / 0"], ["--output", "j", "-c", "1"]])
def test_json_is_that_of_a_cold_run(warm, words):
    """The same fields, and on standard output nothing else."""
    found = []

    for way in ([], ["--no-daemon"]):
        done = warm("--json", *way, *words, stdin="a line")
        assert was_warm(done) == (not way), said(done)
        data = json.loads(done.stdout)
        found.append((done.returncode, shape(data), data["execution"]["logs"]["stdout"]))

    assert found[0] == found[1]


def shape(data: object) -> object:
    """The names of the fields, and theirs."""
    return {name: shape(data[name]) for name in data} if isinstance(data, dict) else type(data)


def test_other_settings_are_not_served(warm):
    """A process has the settings that it was started with."""
    done = warm("--no-daemon", "-c", "1", FUMEHOOD_POOL_SIZE="1")
    assert (done.returncode, was_warm(done)) == (0, False)
    done = warm("-c", "print(2)", FUMEHOOD_DAEMON="0")
    assert (done.stdout, was_warm(done)) == ("2\n", False)


def test_a_log_is_that_of_the_callers_process(warm):
    """Another process would write none of it where the caller looks."""
    done = warm("-c", "print(3)", FUMEHOOD_LOG_LEVEL="info")
    assert (done.stdout, done.returncode, was_warm(done)) == ("3\n", 0, False)
    assert "sandbox was handed out" in said(done)


@pytest.mark.parametrize("name", ["XDG_DATA_HOME", "PIP_INDEX_URL"])
def test_other_templates_and_indexes_are_not_served(warm, name):
    """A process looks for templates, and asks pip for its index, in the environment that it was started with."""
    words = [sys.executable, "-c", "from fumehood.cli.warm import run_warm; print(run_warm(['-c', 'pass']))"]

    for envs, answer in ((warm.envs, "0"), ({**warm.envs, name: "https://other.example.com/"}, "None")):
        done = subprocess.run(words, env=envs, cwd=warm.folder, capture_output=True, text=True, check=True)
        assert done.stdout.split() == [answer], done.stderr


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path, monkeypatch):
    """The file behind it keeps its content, and nothing serves."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("FUMEHOOD_DAEMON", "0.1")
    mine = tmp_path / "mine"
    mine.write_text("precious")
    os.symlink(mine, f"{socket_path()}.lock")

    with pytest.raises(OSError, match="symbolic links"):
        warm_daemon.main()

    assert mine.read_text() == "precious"
    assert warm_processes() == []


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can give a folder to another user")
def test_the_runtime_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    """Its owner could replace the folder that is made in it, between its check and its use."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path().startswith(str(tmp_path))
    os.rmdir(tmp_path / "fumehood")
    os.chown(tmp_path, 65534, 65534)
    assert not socket_path().startswith(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_ctrl_c_ends_a_warm_run(warm):
    """With the exit code of an interrupt, and without a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "run", "-c", "print('go'); import time; time.sleep(60)"],
        cwd=warm.folder,
        env=warm.envs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whatever has started the tests may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


def test_output_without_room_is_not_blamed_on_it(warm):
    """The disk is full, and the process that keeps sandboxes goes on."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fumehood", "run", "-c", "print(1)"],
            env=warm.envs,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=90,
            check=False,
        )

    assert (done.returncode, done.stderr) == (74, "fumehood: standard output: No space left on device\n")


def test_only_the_user_can_reach_it(warm, tmp_path):
    """The folder is the user's alone; one that others can write to is not used."""
    folder = warm.folder / "fumehood"
    assert folder.stat().st_mode & 0o777 == 0o700

    open_to_all = Runs(tmp_path, "30")
    (tmp_path / "fumehood").mkdir()
    (tmp_path / "fumehood").chmod(0o777)
    done = open_to_all("-c", "print(3)")
    assert (done.stdout, done.returncode) == ("3\n", 0)
    assert os.listdir(tmp_path / "fumehood") == []


def test_it_ends_when_it_is_idle_and_a_run_that_loses_it_is_reported(tmp_path):
    """What it kept ends with it."""
    runs = Runs(tmp_path, "4")
    assert runs("-c", "1").returncode == 0
    until(runs.sockets)
    process = runs.daemon()
    until(lambda: not runs.sockets())
    until(lambda: not os.path.exists(f"/proc/{process}"))

    assert runs("-c", "1").returncode == 0
    until(runs.sockets)
    run = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "run", "-c", "print('go'); import time; time.sleep(60)"],
        cwd=tmp_path,
        env=runs.envs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.readline() == "go\n"
    os.kill(runs.daemon(), signal.SIGKILL)
    _, err = run.communicate(timeout=30)
    assert (run.returncode, "has ended; `--no-daemon` runs without it" in err) == (70, True)


def test_a_user_sees_and_ends_it(tmp_path):
    """The doctor names the process; it ends with what runs in it, and leaves no socket."""
    runs = Runs(tmp_path, "30")
    none = runs("--stop-daemon")
    assert (none.returncode, said(none)) == (
        0,
        "fumehood: no process keeps sandboxes ready: nothing was to be ended\n",
    )

    assert runs("-c", "1").returncode == 0
    until(runs.sockets)
    process = runs.daemon()
    assert f"process {process}: " in warm_row(runs)

    run = subprocess.Popen(
        [sys.executable, "-m", "fumehood", "run", "-c", "print('go'); import time; time.sleep(60)"],
        cwd=tmp_path,
        env=runs.envs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.readline() == "go\n"
    stopped = runs("--stop-daemon")
    assert (stopped.returncode, said(stopped)) == (
        0,
        f"fumehood: process {process}, which kept sandboxes ready, has ended\n",
    )
    _, err = run.communicate(timeout=30)
    assert (run.returncode, "has ended" in err) == (70, True)
    until(lambda: not os.path.exists(f"/proc/{process}"))
    assert runs.sockets() == []
    assert "the first `fumehood run` starts one" in warm_row(runs)


@pytest.mark.parametrize("words", [["file.py"], ["-c", "1"], ["-"]])
def test_ending_it_runs_nothing(warm, words):
    """A file beside it is a mistake, and refused."""
    done = warm("--stop-daemon", *words)
    assert (done.returncode, "give it no FILE" in said(done)) == (64, True)
    assert warm.sockets()


def warm_row(runs: Runs) -> str:
    """What the doctor says of it."""
    words = [sys.executable, "-m", "fumehood", "doctor", "--json"]
    done = subprocess.run(words, env=runs.envs, capture_output=True, text=True, timeout=90, check=True)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    return f"{rows['warm runs']['why']}: {rows['warm runs']['how_to_get_it']}"
