"""What the children of the tests of `landlock-only` do: each function is one host process without namespaces.

Run by `launching.py` under a filter such as Docker's, as root and as an ordinary user; returns plain values.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

from fumehood import FumehoodError, IsolationUnavailableError, Limits, Sandbox
from fumehood.api.handle import default_backend
from fumehood.portal import call
from fumehood.values.sandbox import IsolationLevel

MIB = 1 << 20
os.environ["FUMEHOOD_POOL_SIZE"] = "0"

# One program for both sides: `outside` is a child of the host process, `inside` a sandbox. Prints what each attempt
# came to: ok, or the name of the errno.
ATTACK = r"""
import ctypes, errno, json, os, resource, socket, sys
at = json.loads(TARGETS)
libc = ctypes.CDLL(None, use_errno=True)

def called(result):
    if result == -1:
        raise OSError(ctypes.get_errno(), "refused")

def connected(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.connect(address if isinstance(address, str) else tuple(address))

def bound():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()

def sent_to_a_name():
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.sendto(b"x", at["datagrams"])

def written(path):
    with open(path, "w") as file:
        file.write("mine")

attempts = {
    "read a private file": lambda: open(at["canary"]).read(),
    "list a private folder": lambda: os.listdir(at["folder"]),
    "read the checkout": lambda: open(at["checkout"]).read(),
    "read another sandbox": lambda: os.listdir(at["other"]),
    "write a new file": lambda: written(at["folder"] + "/new"),
    "write into a shared folder": lambda: written(at["shared"] + "/new"),
    "overwrite a file": lambda: written(at["victim"]),
    "truncate a file": lambda: os.truncate(at["victim"], 0),
    "change a mode": lambda: os.chmod(at["victim"], 0o644),
    "change the times": lambda: os.utime(at["victim"]),
    "link a file": lambda: os.link(at["victim"], at["victim"] + ".link"),
    "rename a file": lambda: os.rename(at["victim"], at["victim"] + ".moved"),
    "watch a folder": lambda: called(libc.inotify_add_watch(libc.inotify_init(), at["folder"].encode(), 0x100)),
    "connect to a port": lambda: connected(at["port"]),
    "listen on a port": bound,
    "connect to a socket's path": lambda: connected(at["stream"]),
    "send to a socket's path": sent_to_a_name,
    "signal a process": lambda: os.kill(at["process"], 0),
    "signal the parent": lambda: os.kill(os.getppid(), 0),
    "environment of the parent": lambda: open("/proc/%d/environ" % os.getppid()).read(),
    "limit a process": lambda: resource.prlimit(at["process"], resource.RLIMIT_NOFILE, (64, 64)),
    "move a process": lambda: os.sched_setaffinity(at["process"], os.sched_getaffinity(0)),
    "slow a process": lambda: os.setpriority(os.PRIO_PROCESS, at["process"], 19),
    "command line of a process": lambda: open("/proc/%d/cmdline" % at["process"]).read(),
    "environment of a process": lambda: open("/proc/%d/environ" % at["process"]).read(),
    "memory of a process": lambda: open("/proc/%d/mem" % at["process"], "rb").close(),
    "descriptors of a process": lambda: os.listdir("/proc/%d/fd" % at["process"]),
    "shared memory": lambda: called(libc.shmget(0, 4096, 0o1600)),
    "a user namespace": lambda: called(libc.unshare(0x10000000)),
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "ok"
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
print(json.dumps(found))
"""

# What has cut every tie to its parents, and some that never have the same number for long: whether one of those lives,
# no list of processes can say; but all of them hold a lock.
SURVIVORS = """
import fcntl, os, sys
held = open(os.path.expanduser("~/held"), "a")
os.set_inheritable(held.fileno(), True)
fcntl.flock(held, fcntl.LOCK_SH)
for runs in (False, True, True, True):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while runs:
                if os.fork():
                    os._exit(0)
            os.execv({python!r}, [{python!r}, "-c", "import time; time.sleep(90)", {marker!r}])
        os._exit(0)
"""


HOST = """
import os, select
os.environ["FUMEHOOD_ISOLATION"] = "landlock-only"
from fumehood import Sandbox
sandbox = Sandbox()
sandbox.commands.run(["python", "-c", {program!r}])
print("".join(sandbox.run_code("import os; print(os.getcwd(), end='')").logs.stdout), flush=True)
select.select([], [], [], 60)
"""


def everything() -> dict[str, Any]:
    """All of what follows, with one engine and one start of the template."""
    parts = (refused, every_promise, attacks, ends, host_ends, bombs)
    return {"is_root": os.geteuid() == 0, **{part.__name__: part() for part in parts}}


def refused() -> dict[str, str]:
    """Asks for what cannot be had here, and for what it says instead."""
    seen = {}
    name: str
    floor: IsolationLevel | None

    for name, floor in (("default", None), ("floor", "namespaces"), ("weaker", "landlock-only")):
        try:
            with Sandbox(isolation=floor) as sandbox:
                seen[name] = sandbox.get_info().isolation.level
        except IsolationUnavailableError as error:
            seen[name] = f"{error.layer}: {error}"

    return seen


def every_promise() -> dict[str, Any]:
    """What works there as elsewhere."""
    with Sandbox(isolation="landlock-only") as sandbox:
        isolation = sandbox.get_info().isolation
        sandbox.run_code("x = 41")
        first = sandbox.run_code("x += 1; x")
        sandbox.files.write("folder/a.txt", "hello")
        sandbox.files.write("/tmp/b.txt", "scratch")
        handle = sandbox.commands.run("read line; echo heard $line", background=True, stdin=True)
        handle.send_stdin("word\n")
        second = sandbox.create_code_context(cwd="/tmp")
        seen = {
            "level": isolation.level,
            "layers": {layer.name: layer.state for layer in isolation.layers},
            "reply": first.isolation,
            "text": first.text,
            "error": sandbox.run_code("1 / 0").error.name,
            "read": sandbox.run_code("open('folder/a.txt').read()").text,
            "back": sandbox.files.read("/home/user/folder/a.txt"),
            "scratch": sandbox.run_code(
                "import tempfile, os; open(os.path.join(tempfile.gettempdir(), 'b.txt')).read()"
            ).text,
            "heard": handle.wait().stdout,
            "home": sandbox.run_code(
                "import os; os.getcwd() == os.environ['HOME'] == os.path.expanduser('~')"
            ).text,
            "python": sandbox.commands.run("python -c 'print(6 * 7)'").stdout,
            "bash": str(sandbox.run_code("echo $((6 * 7))", language="bash").logs),
            "other context": sandbox.run_code("'x' in globals()", context=second).text,
            "interrupted": sandbox.run_code("import time; time.sleep(60)", timeout=0.3).error.name,
            "kept": sandbox.run_code("x").text,
            "died": sandbox.run_code("import os; os._exit(3)").error.name,
            "after": sandbox.run_code("6 * 7").text,
            "figure": len(
                sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()").results
            ),
            "metrics": 1 < sandbox.get_metrics().processes < 20,
        }
        error = sandbox.run_code("import shutil; shutil.copy('folder/a.txt', 'copy')").error
        seen["metadata"] = error.name if error else "ok"
        sandbox.pause()
        sandbox.resume()
        seen["resumed"] = sandbox.run_code("'resumed'").text
        sandbox.run_code("y = 7")
        seen["unavailable"] = [
            _refusal(call, hint="fumehood doctor")
            for call in (
                sandbox.checkpoint,
                sandbox.fork,
                lambda: sandbox.run_code("y = 1", transactional=True),
                lambda: sandbox.run_code("y = 1", changes=True),
                lambda: sandbox.judge("print(1)", [("", "1")]),
                lambda: sandbox.save("/tmp/never"),
            )
        ]
        seen["untouched"] = sandbox.run_code("y").text
        sandbox.pause(files_only=True)
        sandbox.resume()
        seen["anew"] = sandbox.run_code("'y' in globals(), open('folder/a.txt').read() != ''").text
        seen["network"] = _refusal(lambda: sandbox.set_network("internet"))
        # The loopback is the host's.
        seen["listening"] = _refusal(lambda: call(default_backend().listen_port, sandbox.id, 8123))
        seen["private"] = _refusal(lambda: sandbox.files.read("/etc/shadow"))
        seen["outside"] = _refusal(lambda: sandbox.files.write("/usr/x", "x"))

    return seen


def attacks() -> dict[str, Any]:
    """Each attempt from outside, which shows that it can succeed, and from a context and a command."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
        Sandbox(isolation="landlock-only") as sandbox,
        Sandbox(isolation="landlock-only") as other,
    ):
        canary, victim = Path(folder, "canary"), Path(folder, "victim")
        shared = Path(folder, "shared")
        shared.mkdir()
        os.chmod(shared, 0o1777)
        stream.bind(f"{folder}/stream")
        stream.listen()
        datagrams.bind(f"{folder}/datagrams")
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(90)"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        targets = {
            "canary": str(canary),
            "checkout": str(Path(__file__)),
            "datagrams": f"{folder}/datagrams",
            "folder": folder,
            "other": json.loads(
                other.run_code("import json, os; print(json.dumps(os.getcwd()))").logs.stdout[0]
            ),
            "port": server.getsockname(),
            "process": sleeper.pid,
            "shared": str(shared),
            "stream": f"{folder}/stream",
            "victim": str(victim),
        }
        program = ATTACK.replace("TARGETS", repr(json.dumps(targets)))

        try:
            seen: dict[str, Any] = {}
            for name, run in (
                ("context", lambda: "".join(sandbox.run_code(program).logs.stdout)),
                ("command", lambda: sandbox.commands.run(["python", "-c", program]).stdout),
                ("outside", lambda: _outside(program)),
            ):
                canary.write_text("secret")
                victim.write_text("whole")
                os.chmod(canary, 0o600)
                os.chmod(victim, 0o600)
                seen[name] = json.loads(run())
                seen[f"{name} left"] = victim.read_text() if victim.exists() else "gone"

            # By a link of the guest's, the host's own verbs lead nowhere that the guest could not go.
            victim.write_text("whole")
            sandbox.run_code(f"import os; os.symlink({str(victim)!r}, 'link')")
            seen["by a link"] = [
                _refusal(lambda: sandbox.files.write("link", "mine")),
                _refusal(lambda: sandbox.files.read("link")),
            ]

            # Everybody whom it may signal, from a context and from a command.
            sandbox.run_code("import os; os.kill(-1, 9)")
            sandbox.commands.run(["python", "-c", "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass"])
            seen["after kill(-1)"] = [
                sleeper.poll() is None,
                sandbox.run_code("6 * 7").text,
                other.run_code("6 * 7").text,
            ]
        finally:
            sleeper.kill()
            sleeper.wait()

    return seen


def ends() -> dict[str, Any]:
    """What lives of a sandbox before its end and after it, however it ends."""
    seen: dict[str, Any] = {}

    for how in ("killed", "reaper killed"):
        marker = f"survivor-{os.getpid()}-{how.replace(' ', '-')}"
        sandbox = Sandbox(isolation="landlock-only")
        program = SURVIVORS.format(python=sys.executable, marker=marker)
        sandbox.run_code(program)
        sandbox.commands.run(["python", "-c", program])
        home = "".join(sandbox.run_code("import os; print(os.getcwd(), end='')").logs.stdout)
        _until(lambda: len(_having(marker)) >= 2)  # noqa: B023 - called at once
        family = _family(os.path.dirname(home))

        with open(f"{home}/held", "rb") as held:
            assert not _is_let_go(held)

            if how == "reaper killed":
                # The parent of init: the first of the family.
                os.kill(family[0], signal.SIGKILL)
            else:
                sandbox.kill()

            _until(lambda: _is_let_go(held) and not _alive(family), instantly=how == "killed")  # noqa: B023
            let_go = _is_let_go(held)

        seen[how] = [
            let_go,
            _having(marker),
            _alive(family),
            os.path.exists(os.path.dirname(home)) and how == "killed",
        ]
        sandbox.kill()

    return seen


def host_ends() -> dict[str, Any]:
    """What lives of a sandbox whose host is killed, and which of its folders."""
    marker = f"survivor-{os.getpid()}-host"
    program = SURVIVORS.format(python=sys.executable, marker=marker)
    host = subprocess.Popen(
        [sys.executable, "-c", HOST.format(program=program)], stdout=subprocess.PIPE, text=True
    )

    with host:
        assert host.stdout is not None
        home = host.stdout.readline().strip()
        room = os.path.dirname(home)
        # The host's own command line has it as well.
        _until(lambda: len(_having(marker)) > 1)
        family = _family(room)
        held = open(f"{home}/held", "rb")  # noqa: SIM115 - closed below
        lived = not _is_let_go(held)
        host.kill()

    folder = os.path.dirname(os.path.dirname(room))

    with held:
        _until(lambda: _is_let_go(held) and not _alive(family) and not os.path.exists(folder))
        let_go = _is_let_go(held)

    return {"lived": lived, "left": [let_go, _having(marker), _alive(family), os.path.exists(folder)]}


def bombs() -> dict[str, Any]:
    """Memory and processes are bounded; the sandbox lives on, and its end leaves nothing."""
    seen: dict[str, Any] = {}
    limits = Limits(memory_bytes=256 * MIB, processes=40)

    with Sandbox(isolation="landlock-only", limits=limits) as sandbox:
        error = sandbox.run_code(
            "held = [bytearray(32 << 20) for _ in range(64)]\nimport time; time.sleep(100)", timeout=200
        ).error
        seen["memory"] = error.kind if error else None
        forks = (
            "import os, time\nmade = 0\ntry:\n    while made < 400:\n        if os.fork() == 0:\n"
            "            time.sleep(60)\n            os._exit(0)\n        made += 1\nexcept OSError as error:\n"
            "    print(error.errno)\nprint(made)"
        )
        stopped, made = "".join(sandbox.run_code(forks).logs.stdout).split()
        seen["forks"] = [int(stopped), int(made)]
        seen["after"] = _text_of(sandbox)

    with Sandbox(isolation="landlock-only", limits=limits) as sandbox:
        home = "".join(sandbox.run_code("import os; print(os.getcwd(), end='')").logs.stdout)
        sandbox.commands.run(
            ["python", "-c", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"],
            background=True,
        )
        _until(lambda: len(_family(os.path.dirname(home))) > 30)
        family = _family(os.path.dirname(home))

    seen["bomb"] = [len(family) < 100, _alive(family)]
    return seen


# -- inside


def _text_of(sandbox: Sandbox) -> str | None:
    try:
        sandbox.restart_code_context("default")
        return sandbox.run_code("6 * 7").text
    except FumehoodError as error:
        return str(error)


def _refusal(call: Any, hint: str = "") -> str:
    try:
        call()
    except FumehoodError as error:
        return type(error).__name__ if hint in error.hint else f"{type(error).__name__}: {error.hint}"

    return "done"


def _outside(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _family(folder: str) -> list[int]:
    """The reaper of the sandbox in a folder, and all that descend from it, the reaper first."""
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid))}
    # The only process whose working directory is in the room, and whose parent's is not, is init.
    inits = [
        pid for pid in parents if _cwd(pid).startswith(folder) and not _cwd(parents[pid]).startswith(folder)
    ]
    found = [parents[inits[0]]]

    for pid in found:
        found.extend(child for child, parent in parents.items() if parent == pid)

    return found


def _pids() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _cwd(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _having(marker: str) -> list[int]:
    found = []

    for pid in _pids():
        try:
            if pid != os.getpid() and marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            continue

    return found


def _is_let_go(held: BinaryIO) -> bool:
    """Whether nobody holds the lock of `SURVIVORS` any more."""
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False

    return True


def _alive(pids: list[int]) -> list[int]:
    """Those that have not ended."""
    return [pid for pid in pids if ") Z" not in _stat(pid)]


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ") Z"  # it has ended meanwhile


def _until(condition: Any, *, instantly: bool = False) -> None:
    """Waits for what nobody tells; at most ten seconds, and not at all where it must be so already."""
    deadline = time.monotonic() + (0 if instantly else 10)

    while not condition() and time.monotonic() < deadline:
        select.select([], [], [], 0.02)
