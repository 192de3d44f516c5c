"""What the children of the tests of ordinary users do: each function is one host process that uses fumehood.

Run by `launching.py`, as whatever user and in whatever place; returns plain values to the test.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from fumehood import CommandExitError, FumehoodError, IsolationUnavailableError, Limits, Sandbox, Template
from fumehood.assemble import local_backend
from fumehood.portal import call

CELLS = Path(__file__).resolve().parent / "cells"


def every_verb() -> dict[str, Any]:
    """Uses each part of the API once."""
    with Sandbox(metadata={"of": "scene"}) as sandbox:
        sandbox.run_code("x = 41")
        sandbox.files.write("folder/a.txt", "hello")
        handle = sandbox.commands.run("read line; echo heard $line", background=True, stdin=True)
        handle.send_stdin("word\n")
        second = sandbox.create_code_context(cwd="/tmp")
        sandbox.restart_code_context(second)
        seen = {
            "text": sandbox.run_code("x += 1; x").text,
            "read": sandbox.files.read("folder/a.txt"),
            "owner": sandbox.files.get_info("folder/a.txt").owner,
            "id": sandbox.commands.run("id -un; id -u").stdout,
            "heard": handle.wait().stdout,
            "cwd": sandbox.run_code("import os; os.getcwd()", context=second).text,
            "bash": str(sandbox.run_code("echo $((6 * 7))", language="bash").logs),
            "loop": str(sandbox.run_code("while True: pass", timeout=0.3).error),
            "kept": sandbox.run_code("x").text,
            "died": sandbox.run_code("import os; os._exit(3)").error.name,
            "after": sandbox.run_code("6 * 7").text,
            "metrics": sandbox.get_metrics().processes > 1,
            "isolation": {
                layer.name: [layer.state, layer.why] for layer in sandbox.get_info().isolation.layers
            },
            "level": sandbox.get_info().isolation.level,
        }

    seen["running"] = sandbox.is_running()
    return seen


def memory_limit_of_a_ready_sandbox() -> dict[str, Any]:
    """Asks for less memory than the sandboxes of the pool were made with, and for nothing else that differs."""
    call(local_backend().wait_warm)

    with Sandbox(limits=Limits(memory_bytes=128 << 20)) as sandbox:
        error = sandbox.run_code(
            "held = [bytearray(32 << 20) for _ in range(16)]\nimport time; time.sleep(20)"
        ).error
        return {"kind": error.kind if error else None}


def memory_and_fork_bombs() -> dict[str, Any]:
    """Sets off both bombs, next to a neighbour."""
    limits = Limits(memory_bytes=256 << 20, processes=40, wall_seconds=20)

    with Sandbox() as neighbour, Sandbox(limits=limits) as sandbox:
        neighbour.run_code("x = 'neighbour'")
        bomb = sandbox.run_code("held = []\nwhile True: held.append(bytearray(32 << 20))")
        child_bomb = sandbox.run_code(
            "import subprocess, sys\n"
            "code = 'held = []\\nwhile True: held.append(bytearray(32 << 20))'\n"
            "subprocess.run([sys.executable, '-c', code]).returncode"
        )
        forks = sandbox.run_code(
            "import os, signal\n"
            "pids = []\n"
            "try:\n"
            "    while True:\n"
            "        pid = os.fork()\n"
            "        if pid == 0:\n"
            "            signal.pause()\n"
            "        pids.append(pid)\n"
            "except BlockingIOError as error:\n"
            "    print(error.errno, len(pids))\n"
            "for pid in pids:\n"
            "    os.kill(pid, 9)\n"
            "    os.waitpid(pid, 0)\n"
        )
        return {
            "bomb": [bomb.error.kind, bomb.error.name, bomb.state_lost],
            "child bomb": child_bomb.text,
            "forks": [int(word) for word in str(forks.logs).split()] or str(forks.error),
            "after": sandbox.run_code("6 * 7").text,
            "neighbour": neighbour.run_code("x").text,
        }


def going_back() -> dict[str, Any]:
    """Checkpoints, a transaction that runs out of memory, and the judge, with more shared memory than the limit."""
    limits = Limits(memory_bytes=256 << 20, processes=64, wall_seconds=20)

    with Sandbox(limits=limits) as sandbox:
        sandbox.run_code("x = 1; held = bytearray(b'x' * (40 << 20)); _ = open('f', 'w').write('one')")

        # Each shares nearly all of its memory with the context: together they would be over the limit.
        for number in range(8):
            sandbox.checkpoint(f"c{number}")

        sandbox.run_code("x = 2; _ = open('f', 'w').write('two')")
        sandbox.rollback("c0")
        back = sandbox.run_code("x, open('f').read(), len(held) >> 20").text
        bomb = sandbox.run_code(
            "x = 3; _ = open('f', 'w').write('three')\nmore = []\n"
            "while True: more.append(bytearray(b'x' * (32 << 20)))",
            transactional=True,
        )
        judged = sandbox.judge("print(int(input()) + 1)", [("1", "2"), ("2", "2")], timeout=10.0)
        return {
            "back": back,
            "bomb": [
                bomb.transaction and bomb.transaction.outcome,
                bomb.transaction and bomb.transaction.reason,
            ],
            "after": sandbox.run_code("x, open('f').read()").text,
            "verdicts": [result.verdict for result in judged],
            "checkpoints": len(sandbox.list_checkpoints()),
        }


def forking() -> dict[str, Any]:
    """Forks of a sandbox, of a fork, and what is left when those above have ended."""
    with Sandbox() as sandbox:
        sandbox.run_code(
            "import itertools, os; numbers = itertools.count(); next(numbers); open('kept', 'w').write('a')"
        )
        first, second = sandbox.forks(2)

        with first, second:
            first.run_code("open('kept', 'a').write('b'); open('/dev/shm/own', 'w').write('c')")
            third = first.fork()

            with third:
                seen = {
                    "parts": [
                        one.run_code("(next(numbers), open('kept').read())").text
                        for one in (sandbox, second, third)
                    ],
                    "shared": third.run_code("open('/dev/shm/own').read()").text,
                    "apart": second.run_code("os.path.exists('/dev/shm/own')").text,
                    "pids": third.run_code(
                        "len([name for name in os.listdir('/proc') if name.isdigit()])"
                    ).text,
                    "caps": third.run_code(
                        "[line.split()[1] for line in open('/proc/self/status') if 'CapEff' in line]"
                    ).text,
                }
                sandbox.kill()
                first.kill()
                return {**seen, "after": third.run_code("next(numbers)").text}


def many_forked_children() -> dict[str, Any]:
    """Holds twenty children that share nearly all of their memory, until the watcher has looked at them twice."""
    limits = Limits(memory_bytes=256 << 20, processes=64, wall_seconds=60)

    with Sandbox(limits=limits) as sandbox:
        alone = sandbox.get_metrics()
        forked = sandbox.run_code(
            "import os, signal\n"
            "pids = []\n"
            "for _ in range(20):\n"
            "    pid = os.fork()\n"
            "    if pid == 0:\n"
            "        signal.pause()\n"
            "    pids.append(pid)\n"
            "len(pids)"
        )
        together = sandbox.get_metrics()
        # More than the watcher bears: it has looked when the child is gone, and has found no other to blame.
        sandbox.run_code(
            "import subprocess, sys\n"
            "code = 'held = []\\nwhile True: held.append(bytearray(32 << 20))'\n"
            "status = subprocess.run([sys.executable, '-c', code]).returncode"
        )
        return {
            "forked": forked.text or str(forked.error),
            "bomb": sandbox.run_code("status").text,
            "alive": sandbox.run_code("sum(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in pids)").text,
            "alone": alone.memory_bytes >> 20,
            "together": together.memory_bytes >> 20,
            "more processes": together.processes - alone.processes,
        }


_REACH = """
import errno, os, sys

def read(path):
    with open(path, "rb") as file:
        return file.read(1)

def reach(process):
    said = set()
    for look, name in ((read, "maps"), (read, "environ"), (os.readlink, "root"), (os.readlink, "ns/mnt")):
        try:
            said.add("ok" if look(f"/proc/{process}/{name}") else "empty")
        except OSError as error:
            said.add(errno.errorcode[error.errno])
    return " ".join(sorted(said))

for process in sys.argv[1:]:
    print(reach(process))
"""


def reaching_for_memory() -> dict[str, list[str]]:
    """Reads what only a tracer may read: of a context from its child, another context, a command; and of init."""
    reach_init = (
        "for name in ['', *os.listdir('/proc/1/task')]: print(reach(f'1/task/{name}' if name else 1))"
    )

    with Sandbox() as sandbox:
        sandbox.files.write("reach.py", _REACH)
        pid = sandbox.run_code(f"{_REACH}\nos.getpid()").text
        other = sandbox.create_code_context()
        sandbox.run_code(_REACH, context=other)
        as_child = (
            "import subprocess; subprocess.run([sys.executable, 'reach.py', str(os.getpid())]).returncode"
        )
        said = {
            "child": str(sandbox.run_code(as_child).logs),
            "context": str(sandbox.run_code(f"print(reach({pid}))", context=other).logs),
            "command": sandbox.commands.run(f"python reach.py {pid}").stdout,
            "init": str(sandbox.run_code(reach_init).logs),
        }
        return {name: text.split() for name, text in said.items()}


def cells(*names: str) -> dict[str, str]:
    """Runs programs of the compatibility tests, each as a cell and as a script of a sandbox of its own."""
    shown = {}

    for name in names:
        code = (CELLS / f"{name}.py").read_text(encoding="utf-8")

        with Sandbox() as sandbox:
            execution = sandbox.run_code(code, timeout=60)
            shown[f"{name}, cell"] = f"{execution.logs}{execution.error or ''}"

        with Sandbox() as sandbox:
            sandbox.files.write("program.py", code)

            try:
                shown[f"{name}, script"] = sandbox.commands.run("python program.py", timeout=60).stdout
            except CommandExitError as error:
                shown[f"{name}, script"] = error.stderr

    return shown


def ids_of_two() -> dict[str, Any]:
    """Tells under which ids of the host two sandboxes run, and whether they can be ended."""
    before = {info.id for info in Sandbox.list()}

    with Sandbox() as first, Sandbox() as second:
        owners = [_owner_of(sandbox) for sandbox in (first, second)]
        layers = {layer.name: layer.state for layer in first.get_info().isolation.layers}
        second.files.write("a", "b")
        killed = second.kill()

    return {"owners": owners, "identity": layers["identity"], "killed": killed, "before": len(before)}


def _owner_of(sandbox: Sandbox) -> int:
    """Finds the sandbox's command among the processes of the host, and returns whose it is."""
    marker = f"marker-{sandbox.id}"
    sandbox.commands.run(["sleep", "1000"], envs={"MARKER": marker}, background=True)
    sandbox.commands.run(["python", "-c", "import signal; signal.pause()", marker], background=True)

    deadline = time.monotonic() + 30

    # While a program is being executed its command line is empty for a moment.
    while time.monotonic() < deadline:
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    return os.stat(f"/proc/{name}").st_uid
            except OSError:
                continue

    raise AssertionError("the command is not there")


def strict() -> str:
    """Asks for every layer."""
    try:
        with Sandbox(strict=True):
            return "started"
    except IsolationUnavailableError as error:
        return str(error)


def refusal() -> dict[str, str]:
    """Starts a sandbox where none can start."""
    try:
        Sandbox().kill()
    except FumehoodError as error:
        return {"kind": type(error).__name__, "text": str(error), "layer": getattr(error, "layer", "")}

    return {"kind": "started", "text": "", "layer": ""}


def server_start() -> list[str]:
    """Starts `fumehood serve`; returns the lines that it prints until its pool is full."""
    import subprocess

    words = [sys.executable, "-m", "fumehood", "serve", "--port", "0", "--pool-size", "1"]
    lines: list[str] = []

    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [*words, "--state-folder", f"{folder}/state"], stderr=subprocess.PIPE, text=True
        ) as server,
    ):
        try:
            assert server.stderr is not None

            # Without this line the time limit of the test ends it.
            while not (lines and lines[-1].startswith("isolation of sandboxes")):
                lines.append(server.stderr.readline())
                assert lines[-1], lines
        finally:
            server.terminate()

    return lines


def doctor() -> dict[str, Any]:
    """Runs `fumehood doctor --json`."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    return {"code": done.returncode, "layers": json.loads(done.stdout), "stderr": done.stderr}


# Runs wherever its environment's interpreter starts. In a base jail it makes its own folder writable, and takes off
# what covers others, in whatever way the kernel allows.
_HOSTILE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
own = os.path.dirname(os.path.abspath(__file__))
tried = {}
class Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ('set', 'clear', 'propagation', 'users')]
def attempt(name, *arguments):
    ctypes.set_errno(0)
    tried[name] = 0 if libc.syscall(*arguments) >= 0 else ctypes.get_errno()
mount, umount2, mount_setattr = {'x86_64': (165, 166, 442), 'aarch64': (40, 39, 442)}[os.uname().machine]
def attack():
    with open('/proc/self/mountinfo') as file:
        places = [line.split()[4] for line in file]
    for place in sorted({p for p in places if (own + '/').startswith(p.rstrip('/') + '/')}, key=len):
        at = place.encode()
        attempt('remount ' + place, mount, None, at, None, 32 | 4096, None)
        attempt('setattr ' + place, mount_setattr, -100, at, 0, ctypes.byref(Attributes(0, 1, 0, 0)), 32)
    try:
        open(own + '/written', 'w').close()
        tried['write'] = 0
    except OSError as error:
        tried['write'] = error.errno
    for place in places:
        # That of /proc is the jail's own, made last.
        if place not in ('/', '/proc'): attempt('uncover ' + place, umount2, place.encode(), 2)
if os.path.isdir('/opt/fumehood'): attack()
"""


def a_template_that_changes_its_mounts(folder: str) -> dict[str, Any]:
    """Starts a sandbox of an environment of this user, whose packages try to make it writable from inside."""
    environment = Path(folder) / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    _copy_with_what_it_needs("ipython", packages)
    (packages / "hostile.pth").write_text("import hostile\n")
    (packages / "hostile.py").write_text(_HOSTILE)
    template = Template(name="hostile", python=str(environment / "bin" / "python"), preload=())

    with Sandbox(template=template) as sandbox:
        seen = sandbox.run_code("import hostile; hostile.tried")

    assert seen.error is None, seen.error
    return {"tried": ast.literal_eval(str(seen.text)), "written": (packages / "written").exists()}


def _copy_with_what_it_needs(name: str, folder: Path) -> None:
    """Copies an installed distribution and, in turn, those that it requires."""
    names, copied = [name], set()

    while names:
        name = re.split(r"[^\w.-]", names.pop())[0]

        if name in copied or (found := next(metadata.Distribution.discover(name=name), None)) is None:
            continue

        copied.add(name)
        names += [one for one in found.requires or () if "extra ==" not in one]

        for file in found.files or ():
            if not str(file).startswith(".."):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), folder / file)
