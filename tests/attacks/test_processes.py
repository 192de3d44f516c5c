"""P01 to P07: processes see, signal, outlive and poison nothing but their own sandbox."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood import InvalidArgumentError

KINDS = ("context", "child", "command", "pty")
DEADLINE_SECONDS = 30.0


def wait_until(condition: Callable[[], bool]) -> bool:
    """Waits for the kernel to have done something, with a deadline."""
    ends = time.monotonic() + DEADLINE_SECONDS

    while not condition():
        if time.monotonic() > ends:
            return False

        time.sleep(0.005)

    return True


def carriers(marker: str) -> list[int]:
    """Processes of this machine that have the marker in their environment or command line."""
    found = []

    for folder in Path("/proc").glob("[0-9]*"):
        try:
            content = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue

        if marker.encode() in content and int(folder.name) != os.getpid():
            found.append(int(folder.name))

    return found


def test_p01_only_own_processes_are_visible(inside, outside):
    """Init, the context and what the sandbox has started; nothing of the host can be signalled or opened."""
    host_pid = os.getpid()
    said = inside("other_processes", [host_pid, os.getppid()])
    assert said["visible"] < 30
    assert said["init"].startswith("/opt/") or "python" in said["init"]
    assert set(said["signal"].values()) <= {"ESRCH"}
    assert set(said["pidfd"].values()) <= {"ESRCH", "EINVAL"}

    control = outside("other_processes", [host_pid])
    assert (control["signal"][str(host_pid)], control["pidfd"][str(host_pid)]) == ("ok", "ok")


def test_p01_a_signal_to_everybody_stays_inside(make):
    """SIGKILL to -1 ends all of the sandbox but init; the next cell has a fresh context."""
    mine = make()
    mine.run("kept = 1")
    mine.sandbox.commands.run(
        ["python3", "-S", "-c", "import os, signal; os.kill(-1, signal.SIGKILL)"], timeout=5
    )
    first = mine.sandbox.run_code("1")  # it may have been sent to the context that was just dying
    assert first.error is None or first.error.kind == "context_died"
    assert mine.run("print('kept' in globals())") == "False\n"
    assert mine.sandbox.commands.run("echo here").stdout == "here\n"


def test_p02_a_context_signals_only_its_own_processes(make):
    """Where Landlock has scopes: not init, not its siblings, not commands; what it started itself, it may end."""
    mine = make()
    (landlock,) = [layer for layer in mine.sandbox.get_info().isolation.layers if layer.name == "landlock"]

    if int(landlock.why.rpartition(" ")[2] if landlock.state == "on" else 0) < 6:
        pytest.skip("needs Landlock ABI 6: scopes of signals")

    sibling = mine.sandbox.create_code_context()
    pid = "".join(mine.sandbox.run_code("import os; print(os.getpid())", context=sibling).logs.stdout).strip()
    said = mine.run(
        f"import os, subprocess\n"
        f"for pid in (1, {pid}):\n"
        f"    try: os.kill(pid, 0); print('ok')\n"
        f"    except PermissionError: print('refused')\n"
        f"child = subprocess.Popen(['sleep', '600']); child.kill(); print(child.wait())\n"
    )
    assert said.split() == ["refused", "refused", "-9"]
    assert (
        mine.sandbox.commands.run(["kill", "-0", pid]).exit_code == 0
    )  # the control: a command has no such scope


SPY = """
import os, sys, time
known, caught = set(), []
open('/tmp/watching', 'w').close()
while not os.path.exists('/tmp/enough'):
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) in (1, os.getpid()): continue
        folder = '/proc/' + name
        for entry in ('fd', 'map_files', 'task/' + name + '/fd'):
            try: caught.append((name, entry, os.listdir(folder + '/' + entry)))
            except OSError: pass
        for entry in ('mem', 'environ', 'maps', 'fd/3', 'fd/5', 'fd/7', 'pagemap', 'auxv'):
            try:
                fd = os.open(folder + '/' + entry, os.O_RDONLY)
                if os.read(fd, 1) or entry == 'mem': caught.append((name, entry))
                os.close(fd)
            except OSError: pass
        for entry in ('root', 'cwd', 'exe', 'ns/pid', 'ns/mnt'):
            try: caught.append((name, entry, os.readlink(folder + '/' + entry)))
            except OSError: pass
        known.add(name)
print(len(known), caught[:5], flush=True)
"""


def test_p02_a_context_is_not_caught_on_its_way_into_a_hostile_sandbox(make):
    """Contexts enter where guest code runs already; no descriptor, memory or root of theirs can be had on the way."""
    mine = make()
    mine.sandbox.files.write("spy.py", SPY)
    spy = mine.sandbox.commands.run(["python3", "-S", "spy.py"], background=True)
    assert wait_until(lambda: mine.sandbox.files.exists("/tmp/watching"))

    for _ in range(12):
        mine.sandbox.restart_code_context("default")

    mine.sandbox.files.write("/tmp/enough", "")
    seen, caught = spy.wait().stdout.split(" ", 1)
    assert int(seen) >= 12
    assert caught == "[]\n"

    with subprocess.Popen(["sleep", "600"]) as control:
        assert os.listdir(f"/proc/{control.pid}/fd")
        control.kill()


def test_p02_no_signal_moves_init(make):
    """Every number by every call from every kind of sender; then the sandbox works as before."""
    mine = make()

    for kind in ("context", "command"):
        said = mine.probe(kind, "signal_init")
        assert set(said.values()) <= {"ok", "EPERM"}, said

    assert mine.run("print(1)") == "1\n"
    assert mine.sandbox.commands.run("echo here").stdout == "here\n"

    victim = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    victim.send_signal(signal.SIGUSR1)
    assert victim.wait(DEADLINE_SECONDS) == -signal.SIGUSR1


def test_p02_a_storm_of_signals_does_not_starve_init(make):
    """Sixteen senders at once, with the one signal that init listens to; requests are still answered."""
    mine = make()
    mine.run(
        "import os, signal, subprocess, sys\n"
        "storm = 'import os, signal\\nfor _ in range(10**9): os.kill(1, signal.SIGCHLD)'\n"
        "senders = [subprocess.Popen([sys.executable, '-S', '-c', storm]) for _ in range(16)]\n"
    )
    started = time.monotonic()

    for number in range(5):
        mine.sandbox.files.write("during", str(number))
        assert mine.sandbox.files.read("during") == str(number)

    # Sixteen share the processors with it.
    assert time.monotonic() - started < DEADLINE_SECONDS
    mine.run("[sender.kill() for sender in senders]; [sender.wait() for sender in senders]")


ESCAPE = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.set_inheritable(write_end, True)
        os.execve(sys.executable, ['renamed', '-S', '-c',
            'import os, time; os.write(%d, b"!"); os.closerange(0, 64); time.sleep(600)' % write_end], {'MARK': MARKER})
    os._exit(0)
os.wait()
os.read(read_end, 1)
"""


@pytest.mark.parametrize("way", ["kill", "timeout", "leaving"])
def test_p03_nothing_outlives_a_sandbox(way, make):
    """A double fork into a session of its own, all descriptors closed, deaf to signals, under another name."""
    marker = f"mark-{secrets.token_hex(8)}"
    mine = make()
    mine.run(ESCAPE.replace("MARKER", repr(marker)))
    assert carriers(marker)

    if way == "kill":
        mine.sandbox.kill()
        assert not carriers(marker)
        return

    if way == "timeout":
        mine.sandbox.set_timeout(0.01)
    else:
        with mine.sandbox:
            pass

    assert wait_until(lambda: not carriers(marker))


def test_p03_outside_the_same_escapes(tmp_path):
    """The control: an ordinary kill of the process group leaves it behind."""
    marker = f"mark-{secrets.token_hex(8)}"
    parent = subprocess.Popen(
        [sys.executable, "-c", ESCAPE.replace("MARKER", repr(marker))], start_new_session=True
    )
    parent.wait(DEADLINE_SECONDS)
    survivors = carriers(marker)

    for pid in survivors:
        os.kill(pid, signal.SIGKILL)

    assert len(survivors) == 1


def test_p03_a_run_that_is_killed_takes_its_children_along(make):
    """Code that ignores the interrupt is killed with what it has started; a daemon of its own ends with the sandbox."""
    marker = f"mark-{secrets.token_hex(8)}"
    mine = make()
    execution = mine.sandbox.run_code(
        f"import os, signal, subprocess, time\n"
        f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"for _ in range(3): subprocess.Popen(['sleep', '600'], env={{'MARK': {marker!r}}}, start_new_session=True)\n"
        f"while True:\n"
        f"    try: time.sleep(600)\n"
        f"    except BaseException: pass\n",
        timeout=0.2,
    )
    assert execution.error is not None
    assert execution.error.kind == "time_limit"
    assert wait_until(lambda: not carriers(marker))
    assert mine.run("print(1)") == "1\n"


def test_p04_orphans_are_reaped(make):
    """Hundreds of children whose parents leave them; none stays as a zombie, and the count is as before."""
    mine = make()
    before = mine.sandbox.get_metrics().processes
    mine.sandbox.files.write(
        "orphans.py",
        "import os\n"
        "for _ in range(500):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os.fork()\n"
        "        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n",
    )
    mine.sandbox.commands.run("python3 -I -S orphans.py")
    count = "grep -c '^State:.Z' /proc/[0-9]*/status | grep -vc ':0$'; true"
    assert wait_until(lambda: mine.sandbox.commands.run(count).stdout == "0\n")
    assert wait_until(lambda: mine.sandbox.get_metrics().processes <= before)


@pytest.mark.parametrize("kind", KINDS)
def test_p05_no_environment_of_the_host(kind, attacked, host_secret):
    """Neither a process of any kind nor /proc shows a variable of the host's."""
    said = str(attacked.probe(kind, "environments"))
    assert "HOME" in said
    assert host_secret not in said
    assert "FUMEHOOD_ATTACK_CANARY" not in said

    control = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ)"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert host_secret in control.stdout


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "BASH_ENV", "GLIBC_TUNABLES", "PATH", "IFS"]
)
def test_p05_dangerous_variables_reach_the_guest_only(name, make):
    """They are the caller's to give, act inside, and change neither init nor the host."""
    mine = make(envs={name: "/home/user/evil"})
    assert mine.run(f"import os; print(os.environ[{name!r}])") == "/home/user/evil\n"
    assert mine.sandbox.files.exists("attack/kernel.py")
    assert name not in os.environ or os.environ[name] != "/home/user/evil"


@pytest.mark.parametrize(
    "envs", [{"A": "x\0y"}, {"A\0": "x"}, {"A=B": "x"}, {"": "x"}, {"A": 1}, {1: "A"}], ids=ascii
)
def test_p05_variables_that_cannot_be_are_refused(envs, attacked):
    """NUL, an equals sign in a name, an empty name and what is no text."""
    with pytest.raises(InvalidArgumentError):
        attacked.sandbox.run_code("1", envs=envs)

    with pytest.raises(InvalidArgumentError):
        attacked.sandbox.commands.run("true", envs=envs)


def test_p06_no_socket_and_no_shared_memory_of_the_host(attacked, outside, tmp_path, canary):
    """Abstract names, paths, the usual daemons, and System V objects by key and by number."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x0F0E0000 | secrets.randbelow(0xFFFF)
    segment = libc.shmget(key, 4096, 0o1666)
    path = str(tmp_path / "host.sock")
    try:
        with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as by_path:
            abstract.bind(f"\0{canary}")
            by_path.bind(path)
            abstract.listen()
            by_path.listen()
            names = [
                f"\0{canary}",
                path,
                "/var/run/docker.sock",
                "/run/dbus/system_bus_socket",
                "/run/systemd/private",
            ]
            said = attacked.probe("context", "reach", names, key, segment)
            control = outside("reach", names[:2], key, segment)
    finally:
        libc.shmctl(segment, 0, None)

    assert said[names[0]] == "ECONNREFUSED"
    assert {said[name] for name in names[1:]} == {"ENOENT"}
    assert (said["segment by key"], said["segment by number"]) == ("ENOENT", "EINVAL")
    assert set(control.values()) == {"ok"}


POISON = """
import os
note = os.path.join('/tmp', 'poisoned')
try:
    with open(note, 'a') as file: file.write('%d ' % os.getpid())
except OSError: pass
"""


def test_p07_a_poisoned_interpreter_stays_local(make, tmp_path):
    """Start-up files, shadowed modules and programs act in that sandbox; never in init, another one or the host."""
    mine = make()
    neighbour = make()
    mine.run(
        f"import os, site\n"
        f"poison = {POISON!r}\n"
        f"packages = site.getusersitepackages(); os.makedirs(packages, exist_ok=True)\n"
        f"for name in ('sitecustomize', 'usercustomize', 'json', 'IPython', 'shutil', 'fumehood_guest'):\n"
        f"    for folder in (packages, '/home/user'):\n"
        f"        open(f'{{folder}}/{{name}}.py', 'w').write(poison)\n"
        f"open(f'{{packages}}/evil.pth', 'w').write('import os; exec(open(\"/home/user/sitecustomize.py\").read())')\n"
        f"start, style = '.ipython/profile_default/startup/0.py', '.config/matplotlib/matplotlibrc'\n"
        f"for path in ('.pdbrc', start, style, '.bashrc'):\n"
        f"    os.makedirs(os.path.dirname(path) or '.', exist_ok=True); open(path, 'w').write(poison)\n"
        f"os.makedirs('.local/bin', exist_ok=True)\n"
        f"open('.local/bin/ls', 'w').write('#!/bin/sh\\necho $$ >> /tmp/poisoned\\n')\n"
        f"os.chmod('.local/bin/ls', 0o755)\n"
    )
    mine.sandbox.commands.run("python3 -c 1; ls")
    mine.sandbox.restart_code_context("default")
    mine.run("1")
    mine.sandbox.create_code_context(cwd="/home/user")
    mine.sandbox.files.list("/home/user")
    mine.sandbox.get_metrics()
    mine.sandbox.files.rename("attack/kernel.py", "/mnt/data/kernel.py")

    poisoned = mine.sandbox.files.read("/tmp/poisoned").split()
    assert poisoned
    assert "1" not in poisoned
    assert not neighbour.sandbox.files.exists("/tmp/poisoned")
    assert not os.path.exists("/tmp/poisoned")
    assert "usercustomize" not in sys.modules
