"""Attacks across forks: a parent and its forks began as one, and none may reach another ever after.

A fork is started with what its context held: descriptors of files, directories, sockets, watches and memory of the
parent. Each of them is a way back, tried here in both directions. Every attack has its control: the same thing done
where it works, inside one sandbox.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager

import pytest
from tests.waiting import until

from fumehood import Limits, Sandbox
from fumehood.assemble import local_backend
from fumehood.portal import call
from fumehood.scorecard.places import SandboxPlace
from fumehood_jail import launch

from .conftest import KINDS, Attacked

SECRET = "fork-canary-5d1c"
NAMES = ("parent", "first", "second")


def run(sandbox, code):
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
    return "".join(execution.logs.stdout)


def told(sandbox, code):
    """What code prints as JSON."""
    return json.loads(run(sandbox, code))


@contextmanager
def forks_of(sandbox, count=1):
    """Forks of a sandbox, for as long as the block lasts."""
    children = sandbox.forks(count)
    try:
        yield children
    finally:
        for child in children:
            child.kill()


def attacked_at(sandbox):
    """The attacker in a sandbox that was forked from one where the probe lies."""
    one = Attacked.__new__(Attacked)
    one.sandbox = sandbox
    one.place = SandboxPlace(sandbox, is_set_up=True)
    return one


@pytest.fixture(scope="module")
def before(attacked):
    """What every probe says in a sandbox that nobody has forked."""
    return {kind: _probed(attacked, kind) for kind in KINDS}


@pytest.fixture(scope="module")
def family(attacked, before):
    """A sandbox, two forks of it, and a fork of the first, by name."""
    with forks_of(attacked.sandbox, 2) as (first, second), forks_of(first) as (third,):
        yield {"parent": attacked.sandbox, "first": first, "second": second, "third": third}


_PROBES = (
    ("privileges",),
    ("namespaces",),
    ("calls", "MOUNT_CALLS"),
    ("calls", "EXOTIC_CALLS"),
    ("calls", "IO_URING_CALLS"),
    ("calls", "KEYRING_CALLS"),
    ("calls", "MACHINE_CALLS"),
    ("real_mounts",),
    ("other_memory", 1),
    ("file_handles",),
    ("foreign_abis",),
    (
        "read_paths",
        ["/proc/kcore", "/proc/keys", "/proc/1/environ", "/proc/1/mem", "/etc/shadow", "/sys/kernel"],
    ),
)


def _probed(attacker, kind):
    return attacker.probe(kind, "several", _PROBES)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("parent", "context"), *(("first", kind) for kind in KINDS), ("third", "context"), ("third", "command")],
)
def test_a_fork_is_as_confined_as_any(family, before, name, kind):
    """In every kind of process each probe says what it says in a sandbox that was never forked; so does the parent."""
    privileges, *others = _probed(attacked_at(family[name]), kind)

    for status in (privileges["process"], privileges["thread"]):
        assert {status[field] for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        real, effective, saved, files = status["Uid"].split()
        assert {real, effective, files} == {"1000"}
        assert saved in {"1000", str(launch.FORK_OWNER_UID)}

    assert privileges["id in reserve"] in {"EPERM", "none"}
    assert others == before[kind][1:]


def test_each_has_namespaces_of_its_own(family):
    """Of every kind that a sandbox has; a second context of one sandbox, the control, shares them all."""
    look = (
        "import json, os\n"
        "print(json.dumps({n: os.readlink(f'/proc/self/ns/{n}') for n in ('user','mnt','pid','net','ipc','uts')}))"
    )
    links = {name: told(sandbox, look) for name, sandbox in family.items()}

    for kind in links["parent"]:
        assert len({links[name][kind] for name in family}) == len(family), kind

    first = family["first"]
    context = first.create_code_context()
    again = first.run_code(look, context=context)
    first.remove_code_context(context)
    assert json.loads(again.logs.stdout[0]) == links["first"]


def test_bogus_calls_change_nothing(family):
    """Eighty calls of setns and clone in parent and fork, with all sorts of arguments: refused, and nothing moved."""
    code = """
import ctypes, errno, json, os
from attack import calls as probe, kernel
probe.call('getpid')
links = lambda: {n: os.readlink(f'/proc/self/ns/{n}') for n in kernel.NAMESPACE_FLAGS}
before = links()
fds = [os.open(f'/proc/self/ns/{n}', os.O_RDONLY) for n in ('user', 'mnt', 'pid', 'net')]
fds += [os.pidfd_open(os.getpid()), os.open('/', os.O_RDONLY), -1, 0, 9999]
flags = [0, *kernel.NAMESPACE_FLAGS.values(), 0x6C020000, 0x7C020000, 0xFFFFFFFF]
said = {'setns': set(), 'unshare': set(), 'clone': set()}
for number in range(40):
    fd, flag = fds[number % len(fds)], flags[number % len(flags)]
    said['setns'].add(probe.call('setns', fd, flag))
    said['clone'].add(probe.clone((flag & 0x7E020000 or 0x10000000) | 17))
for flag in flags[1:]:
    said['unshare'].add(probe.call('unshare', flag))
for fd in fds[:6]:
    os.close(fd)
print(json.dumps([{name: sorted(found) for name, found in said.items()}, before == links()]))
"""

    for name in ("parent", "first"):
        said, is_unchanged = told(family[name], code)
        assert said == {"setns": ["EPERM"], "unshare": ["EPERM"], "clone": ["EPERM"]}, name
        assert is_unchanged


# What a context holds when it is forked: how it comes to hold it, how a fork uses it, how the parent would know.
_HELD = {
    "a directory": (
        "home = os.open('/home/user', os.O_RDONLY | os.O_DIRECTORY)",
        "fd = os.open('through_dir', os.O_CREAT | os.O_WRONLY, dir_fd=home); os.write(fd, b'{who}'); os.close(fd)",
        "os.listdir('/home/user').count('through_dir') and open('/home/user/through_dir').read()",
    ),
    "the working directory": (
        "os.chdir('/home/user')",
        "open('through_cwd', 'w').write('{who}')",
        "os.path.exists('/home/user/through_cwd') and open('/home/user/through_cwd').read()",
    ),
    "a file": (
        "held = open('/home/user/held', 'w+b', buffering=0); held.write(b'start ')",
        "held.write(b'{who}')",
        "open('/home/user/held').read()",
    ),
    "a file by its descriptor's path": (
        "again = open('/home/user/again', 'w+b', buffering=0); again.write(b'start ')",
        "open(f'/proc/self/fd/{{again.fileno()}}', 'ab').write(b'{who}')",
        "open('/home/user/again').read()",
    ),
    "a mapped file": (
        "mapped_file = open('/home/user/mapped', 'w+b'); mapped_file.truncate(4096)\n"
        "mapped = mmap.mmap(mapped_file.fileno(), 4096)",
        "mapped[:len(b'{who}')] = b'{who}'; mapped.flush()",
        "open('/home/user/mapped').read(9)",
    ),
    "shared memory": ("shared = mmap.mmap(-1, 4096)", "shared[:len(b'{who}')] = b'{who}'", "shared[:9]"),
    "shared memory by name": (
        "named_file = open('/dev/shm/of_all', 'w+b'); named_file.truncate(4096)\n"
        "named = mmap.mmap(named_file.fileno(), 4096)",
        "named[:len(b'{who}')] = b'{who}'",
        "(named[:9], open('/dev/shm/of_all', 'rb').read(9))",
    ),
    "a memfd": (
        "memfd = os.memfd_create('m'); os.truncate(memfd, 4096)",
        "os.pwrite(memfd, b'{who}', 0)",
        "os.pread(memfd, 9, 0)",
    ),
    "an unlinked file": (
        "nameless = tempfile.TemporaryFile(buffering=0); nameless.write(b'start')",
        "os.pwrite(nameless.fileno(), b'{who}', 5)",
        "os.pread(nameless.fileno(), 99, 0)",
    ),
    "a pipe": (
        "pipe = os.pipe2(os.O_NONBLOCK)",
        "quietly(os.write, pipe[1], b'{who}')",
        "quietly(os.read, pipe[0], 99)",
    ),
    "a named pipe": (
        "os.mkfifo('/tmp/fifo'); fifo = os.open('/tmp/fifo', os.O_RDWR | os.O_NONBLOCK)",
        "quietly(os.write, fifo, b'{who}')",
        "quietly(os.read, fifo, 99)",
    ),
    "a pair of sockets": (
        "pair = socket.socketpair(); [end.setblocking(False) for end in pair]",
        "quietly(pair[0].send, b'{who}')",
        "quietly(pair[1].recv, 99)",
    ),
    "an abstract socket": (
        "abstract = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); abstract.bind('\\0abstract'); "
        "abstract.setblocking(False)\n"
        "def send_abstract(data): socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(data, '\\0abstract')",
        "quietly(send_abstract, b'{who}')",
        "quietly(abstract.recv, 99)",
    ),
    "an old socket to an abstract one": (
        "hearing = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); hearing.bind('\\0old'); "
        "hearing.setblocking(False)\nspeaking = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "quietly(speaking.sendto, b'{who}', '\\0old')",
        "quietly(hearing.recv, 99)",
    ),
    "an old socket to a port": (
        "udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 7070)); "
        "udp.setblocking(False)\nudp_out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "quietly(udp_out.sendto, b'{who}', ('127.0.0.1', 7070))",
        "quietly(udp.recv, 99)",
    ),
    "an event": (
        "event = os.eventfd(0, os.EFD_NONBLOCK)",
        "quietly(os.eventfd_write, event, 7)",
        "quietly(os.eventfd_read, event)",
    ),
    "a position": (
        "place = open('/home/user/place', 'w+b', buffering=0); place.write(b'0123456789'); place.seek(2)",
        "place.seek(7)",
        "place.tell()",
    ),
    "a lock": (
        "lock = open('/home/user/lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)",
        "fcntl.flock(lock, fcntl.LOCK_UN)",
        "quietly(fcntl.flock, open('/home/user/lock'), fcntl.LOCK_EX | fcntl.LOCK_NB)",
    ),
    "a terminal": (
        "terminal = os.openpty(); os.set_blocking(terminal[0], False); os.set_blocking(terminal[1], False)",
        "quietly(os.write, terminal[1], b'{who}')",
        "quietly(os.read, terminal[0], 99)",
    ),
}
_HOLD = """
import fcntl, mmap, os, socket, tempfile
def quietly(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
def holders():
    """A sandbox whose context held one of each when it was forked, its fork, and another such sandbox by itself."""
    with Sandbox() as parent, Sandbox() as control:
        for sandbox in (parent, control):
            run(sandbox, _HOLD + "\n".join(hold for hold, _, _ in _HELD.values()))

        with forks_of(parent) as (child,):
            yield parent, child, control


@pytest.mark.parametrize("held", _HELD)
def test_nothing_that_was_held_leads_to_another(holders, held):
    """What a fork does with it, its parent does not see, and the other way round; within one sandbox it is seen."""
    _, use, look = _HELD[held]
    parent, child, control = holders

    def looked(sandbox):
        return sandbox.run_code(look).text

    untouched = looked(control)
    run(control, use.format(who="CONTROL"))
    assert looked(control) != untouched, "the control sees nothing: this proves nothing"

    assert looked(parent) == untouched
    child.run_code(use.format(who="CHILD"))
    assert looked(parent) == untouched
    # What cannot come along is no more there; what can is the fork's own.
    childs = looked(child)
    parent.run_code(use.format(who="PARENT"))
    again = looked(child)
    assert "PARENT" not in f"{childs}{again}"
    assert again in (childs, untouched)
    assert "CHILD" not in f"{looked(parent)}"


def test_a_handle_on_a_namespace_does_not_come_along(family):
    """The parent's own namespaces, held open: the fork's descriptors lead nowhere, and its own are others."""
    parent = family["second"]
    run(
        parent,
        "import os\nheld = [os.open(f'/proc/self/ns/{n}', os.O_RDONLY) for n in ('user', 'mnt', 'net')]",
    )
    look = "import json, os\nprint(json.dumps([os.readlink(f'/proc/self/fd/{fd}') for fd in held]))"
    assert [link.partition(":")[0] for link in told(parent, look)] == ["user", "mnt", "net"]

    with forks_of(parent) as (child,):
        assert {link.partition(":")[0] for link in told(child, look)} == {"socket"}
        assert len(child.left_behind) >= len(("user", "mnt", "net"))

    run(parent, "[os.close(fd) for fd in held]")


def test_an_old_watch_sees_nothing_new(family):
    """inotify of the parent's files, handed down: what changes there afterwards is not told to the fork."""
    watch = """
import ctypes, os
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, b'/home/user', 0xfff) > 0
def seen():
    try:
        return len(os.read(watch, 65536))
    except OSError:
        return 0
"""
    parent = family["second"]
    run(parent, watch)

    with forks_of(parent) as (child,):
        # The watch itself may tell that its file system has gone.
        run(child, "seen()")
        run(parent, "seen(); open('/home/user/noise', 'w').write('x')")
        assert int(run(parent, "print(seen())")) > 0
        assert int(run(child, "print(seen())")) == 0
        run(child, "open('/home/user/noise_of_child', 'w').write('x')")
        assert int(run(parent, "print(seen())")) == 0


def test_an_old_server_takes_no_foreign_connection(family):
    """A listening socket, handed down, would accept what is meant for the parent."""
    parent = family["second"]
    run(
        parent,
        "import socket\nserver = socket.create_server(('127.0.0.1', 7171)); server.setblocking(False)\n"
        "def taken():\n    try:\n        return bool(server.accept())\n    except OSError:\n        return False",
    )

    with forks_of(parent) as (child,):
        run(parent, "caller = socket.create_connection(('127.0.0.1', 7171))")
        assert run(child, "print(taken())") == "False\n"
        assert run(parent, "print(taken())") == "True\n"


def test_no_fork_sees_or_ends_the_others_processes(family):
    """By the process table, by signals to every number there is, and to everybody at once."""
    sleeper = (
        "import subprocess\n"
        "sleeper = subprocess.Popen(['python3', '-c', 'import time; time.sleep(1000)', 'name-of-{name}'])"
    )

    for name in NAMES:
        run(family[name], sleeper.format(name=name))

    for name in NAMES:
        seen = run(
            family[name],
            "import os\n"
            "for pid in os.listdir('/proc'):\n"
            "    if pid.isdigit():\n"
            "        print(open(f'/proc/{pid}/cmdline', 'rb').read().replace(b'\\0', b' '))",
        )
        # The control: one's own is there to be seen. Forks lie beneath their parent, which sees that they are there.
        shown = [other for other in NAMES if f"name-of-{other}" in seen]
        assert name in shown
        assert name == "parent" or shown == [name]

    killer = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for pid in range(2, 5000):\n"
        "    try:\n"
        "        os.kill(pid, 0) if pid == os.getpid() else os.kill(pid, signal.SIGKILL)\n"
        "    except OSError: pass\n"
        "os.kill(-1, signal.SIGKILL)"
    )

    with forks_of(family["second"]) as (victim,):
        run(victim, sleeper.format(name="victim"))
        run(victim, killer)
        # The control: what is in the same sandbox is gone.
        assert run(victim, "print(sleeper.wait())") == "-9\n"

    for name in NAMES:
        assert run(family[name], "print(sleeper.poll())") == "None\n"


def test_a_parent_has_no_power_over_its_forks(family):
    """It sees that their processes are there: it can neither end one nor look into it. A fork can, the control."""
    if run(family["parent"], "import os; print(len(set(os.getresuid())))") == "1\n":
        pytest.skip(
            "needs root, or ids to spare and control groups: without an id in reserve the parent owns its forks"
        )

    run(
        family["first"],
        "import os, subprocess\n"
        "[open(f'{folder}/open_to_all', 'w').write('x') for folder in ('/dev/shm', '/mnt/data')]\n"
        "command = subprocess.Popen(['sleep', '1000'], cwd='/mnt/data')",
    )
    try_all = """
import json, os
def outcome(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return type(error).__name__
    return 'ok'
def read(path):
    with open(path, 'rb') as file:
        file.read(9)
said = {}
for pid in filter(str.isdigit, os.listdir('/proc')):
    numbers = next(line for line in open(f'/proc/{pid}/status') if line.startswith('NSpid')).split()[1:]
    if len(numbers) == DEPTH and pid != '1' and int(pid) != os.getpid():
        for name in ('environ', 'maps', 'smaps', 'auxv', 'cwd/open_to_all', 'root/dev/shm/open_to_all',
                     'root/mnt/data/open_to_all'):
            said[f'{pid} {name}'] = outcome(read, f'/proc/{pid}/{name}')
        for name in ('exe', 'cwd', 'ns/user', 'ns/mnt'):
            said[f'{pid} {name}'] = outcome(os.readlink, f'/proc/{pid}/{name}')
        said[f'{pid} fd'] = outcome(os.listdir, f'/proc/{pid}/fd')
        said[f'{pid} kill'] = outcome(os.kill, int(pid), 0)
        said[f'{pid} precedence'] = outcome(os.setpriority, os.PRIO_PROCESS, int(pid), 19)
print(json.dumps(said))
"""
    said = told(family["parent"], try_all.replace("DEPTH", "2"))
    assert said
    assert set(said.values()) == {"PermissionError"}, {name: how for name, how in said.items() if how == "ok"}
    own = told(family["first"], try_all.replace("DEPTH", "1"))
    assert {name.partition(" ")[2] for name, how in own.items() if how == "ok"} >= {
        "environ", "maps", "cwd/open_to_all", "root/mnt/data/open_to_all", "exe", "ns/user", "fd", "kill"
    }  # fmt: skip
    run(family["first"], "command.kill(); command.wait()")


def test_memory_of_the_others_cannot_be_read(family):
    """What one puts into its memory after the fork is found by nobody else, in no process and no file of /proc."""
    find = """
import json, os, re
half = 'fork-canary' + chr(45)
found = []
for pid in os.listdir('/proc'):
    if not pid.isdigit():
        continue
    try:
        regions = open(f'/proc/{pid}/maps').read().splitlines()
        memory = open(f'/proc/{pid}/mem', 'rb', 0)
    except OSError:
        continue
    for region in regions:
        low, high = (int(part, 16) for part in region.split()[0].split('-'))
        if ' rw' not in region or high - low > 1 << 28:
            continue
        try:
            memory.seek(low)
            found += re.findall(half.encode() + b'[0-9a-f]+-([a-z]+)', memory.read(high - low))
        except (OSError, ValueError, OverflowError):
            continue
print(json.dumps(sorted({name.decode() for name in found})))
"""
    makes = "hidden = ['-'.join(['{a}', '{b}', '{c}', '{name}']) for _ in range(100)]"
    a, b, c = SECRET.split("-")

    for name in NAMES:
        run(family[name], makes.format(a=a, b=b, c=c, name=name))

    for name in NAMES:
        found = told(family[name], find)
        # Where a process may read its own memory that way, it finds its own: the control.
        assert found in ([], [name])

    # The control of all: it is there.
    assert {run(family[name], "print(hidden[7])").strip() for name in NAMES} == {
        f"{SECRET}-{n}" for n in NAMES
    }


def test_no_port_and_no_socket_of_another_is_reached(family):
    """On the loopback, among abstract names, and in /dev/shm."""
    serve = """
import socket
tcp = socket.create_server(('127.0.0.1', 0)); port = tcp.getsockname()[1]
unix = socket.socket(socket.AF_UNIX); unix.bind('\\0abstract-{name}'); unix.listen()
open('/dev/shm/shm-{name}', 'w').write('{name}'); open('/tmp/tmp-{name}', 'w').write('{name}')
print(port)
"""
    ports = {name: int(run(family[name], serve.format(name=name))) for name in NAMES}
    reach = """
import json, os, socket
def reached(family, address):
    with socket.socket(family) as caller:
        return caller.connect_ex(address) == 0
print(json.dumps({{
    'port': [n for n, port in {ports}.items() if reached(socket.AF_INET, ('127.0.0.1', port))],
    'abstract': [n for n in {names} if reached(socket.AF_UNIX, '\\0abstract-' + n)],
    'shm': [n for n in {names} if os.path.exists('/dev/shm/shm-' + n)],
    'tmp': [n for n in {names} if os.path.exists('/tmp/tmp-' + n)],
}}))
"""
    assert len(set(ports.values())) == 3

    for name in NAMES:
        said = told(family[name], reach.format(ports=ports, names=NAMES))
        assert said == {key: [name] for key in ("port", "abstract", "shm", "tmp")}


def test_the_moment_of_a_fork_opens_no_door():
    """A thread that calls what only a fork may, all the time and while forks are made, never gets through."""
    with Sandbox() as parent:
        SandboxPlace(parent)
        run(
            parent,
            """
import os, threading
from attack import calls as probe
probe.call('getpid')
said, tries, stop = set(), [0], threading.Event()
def hammer():
    own = os.open('/proc/self/ns/user', os.O_RDONLY)
    while not stop.is_set():
        for flags in (0x10000000, 0x6C020000, 0x7C020000, 0x7E020000):
            said.add(('unshare', probe.call('unshare', flags)))
            said.add(('clone', probe.clone(flags | 17)))
            said.add(('setns', probe.call('setns', own, flags)))
        _, effective, saved = os.getresuid()
        if saved != effective:
            said.add(('setresuid', probe.call('setresuid', -1, saved, -1)))
        tries[0] += 1
threads = [threading.Thread(target=hammer, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
while not tries[0]:
    pass
""",
        )

        for _ in range(3):
            with forks_of(parent, 2) as children:
                assert [run(child, "print(tries[0] > 0)") for child in children] == ["True\n"] * 2

        end = (
            "import json\nstop.set(); [thread.join() for thread in threads]; print(json.dumps(sorted(said)))"
        )
        said = told(parent, end)
        assert {name for name, _ in said} >= {"clone", "setns", "unshare"}
        assert {how for _, how in said} == {"EPERM"}


def test_what_one_eats_the_others_keep(needs_cgroups):
    """Memory, processes and disk are limited for each: one at its limit is no one else's want."""
    limits = Limits(memory_bytes=256 << 20, processes=32, disk_bytes=16 << 20)

    with Sandbox(limits=limits) as parent:
        run(parent, "x = bytearray(20 << 20)")

        with forks_of(parent, 2) as (first, second):
            killed = first.run_code("y = bytearray(1 << 30)")
            assert killed.error is not None
            eaten = second.run_code(
                "import errno\n"
                "try:\n    open('big', 'wb').write(bytes(64 << 20))\n"
                "except OSError as error:\n    print(errno.errorcode[error.errno])"
            )
            assert eaten.logs.stdout == ["ENOSPC\n"]
            assert run(
                parent, "open('fits', 'wb').write(bytes(4 << 20)); y = bytearray(50 << 20); print(len(x))"
            ) == (f"{20 << 20}\n")


def test_many_at_once_are_all_apart():
    """Forks of one sandbox from several threads at once: each is a sandbox of its own, and none is lost."""
    with Sandbox() as parent:
        run(parent, "x = ['root']")
        made: list[Sandbox] = []
        threads = [threading.Thread(target=lambda: made.extend(parent.forks(2))) for _ in range(3)]

        for thread in threads:
            thread.start()

        for thread in threads:
            thread.join(60)

        assert len({one.id for one in made}) == 6

        for number, one in enumerate(made):
            run(one, f"x.append({number}); open('mine', 'w').write('{number}')")

        said = [run(one, "print(x, open('mine').read())") for one in made]
        assert said == [f"['root', {number}] {number}\n" for number in range(6)]

        for one in made:
            one.kill()

        assert run(parent, "print(x)") == "['root']\n"


def test_no_descriptor_of_the_host_is_left(host_descriptors):
    """Forks that come and go leave nothing open here."""
    with Sandbox() as parent:
        run(parent, "x = 1")

        def come_and_go():
            with forks_of(parent, 2) as children:
                for child in children:
                    run(child, "x")

        come_and_go()
        # Those that are kept ready are there, and stay.
        call(local_backend().wait_warm)
        before = host_descriptors()
        come_and_go()
        come_and_go()
        until(lambda: host_descriptors() <= before)
