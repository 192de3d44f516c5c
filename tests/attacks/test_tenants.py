"""T01 to T05: sandboxes of one machine do not meet, and leave each other nothing."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from pathlib import Path

import pytest

from fumehood import Limits

# Looks through everything that a process can see for a string that is given in two halves and never put together, so
# that the search does not find itself.
SCAN = """
import ctypes, os, re
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: one may read one's own memory

def times(data, first, second):
    found, place = 0, data.find(first)
    while place >= 0:
        found += data.startswith(second, place + len(first))
        place = data.find(first, place + 1)
    return found

def in_memory(*halves):
    found = 0
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights[0] != 'r' or '[v' in line: continue
            low, high = (int(end, 16) for end in span.split('-'))
            try:
                memory.seek(low)
                found += times(memory.read(high - low), *halves)
            except (OSError, ValueError, OverflowError): continue
    return found

def in_files(*halves):
    found = []
    for root in ('/home', '/tmp', '/dev/shm', '/mnt', '/run', '/var', '/etc', '/opt/fumehood'):
        for folder, _, names in os.walk(root):
            for name in names:
                try:
                    with open(os.path.join(folder, name), 'rb') as file:
                        if times(file.read(1 << 20), *halves) or times(name.encode(), *halves): found.append(name)
                except OSError: continue
    for name in ('environ', 'cmdline', 'maps', 'comm', 'mountinfo', 'net/unix', 'net/tcp', 'net/udp', 'sysvipc/shm'):
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/{name}', 'rb') as file:
                    if times(file.read(1 << 20), *halves): found.append(f'{pid}/{name}')
            except OSError: continue
    return found
"""


def halves(text: str) -> str:
    middle = len(text) // 2
    return f"{text[:middle].encode()!r}, {text[middle:].encode()!r}"


def plant(mine, canary: str) -> None:
    """Leaves a canary wherever a guest can leave one."""
    mine.run(
        f"import ctypes, os, socket, threading\n"
        f"canary = {canary!r}\n"
        f"for folder in ('/home/user', '/tmp', '/dev/shm', '/mnt/data'):\n"
        f"    open(f'{{folder}}/{{canary}}', 'w').write(canary)\n"
        f"os.environ['CANARY'] = canary\n"
        f"abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0' + canary); abstract.listen()\n"
        f"server = socket.create_server(('127.0.0.1', 4711))\n"
        f"libc = ctypes.CDLL(None)\n"
        f"segment = libc.shmget(0x4711, 4096, 0o1666)\n"
        f"ctypes.CDLL(None).prctl(15, canary.encode()[:15], 0, 0, 0)\n"
        f"kept = [canary * 100 for _ in range(1000)]\n"
        f"import json; json.canary = canary\n"
    )


def test_t01_sandboxes_cannot_see_each_other(make, canary):
    """Files, shared memory, sockets, environment, ports and names of one are nowhere in the other."""
    one, other = make(envs={"SECRET": canary}), make()
    plant(one, canary)
    other.run(SCAN)
    one.run(SCAN)
    assert other.run(f"print(in_files({halves(canary)}), in_memory({halves(canary)}))") == "[] 0\n"
    assert other.run(
        f"import ctypes, socket\n"
        f"for name in ('\\0' + {canary!r}, ('127.0.0.1', 4711)):\n"
        f"    sock = socket.socket(socket.AF_UNIX if isinstance(name, str) else socket.AF_INET)\n"
        f"    print(sock.connect_ex(name))\n"
        f"print(ctypes.CDLL(None).shmget(0x4711, 0, 0))\n"
    ).split() == ["111", "111", "-1"]

    found = json.loads(
        one.run(f"import json; print(json.dumps([in_files({halves(canary)}), in_memory({halves(canary)})]))")
    )
    assert len(found[0]) >= 4
    assert found[1] > 0


@pytest.mark.parametrize("shape", ["warm", "made to measure"])
def test_t03_secrets_of_one_are_in_no_later_one(shape, make, canary):
    """Environment, identity and code of a sandbox pass through nothing that later ones are copied from."""
    limits = None if shape == "warm" else Limits(processes=77)
    first = make(limits=limits, envs={"SECRET": canary})
    said = f"canary-{secrets.token_hex(16)}"
    first.run(f"secret = {said!r}")
    first.sandbox.commands.run(["true"], envs={"SECRET": canary})
    first.sandbox.files.write("secret", canary)
    first_id = first.sandbox.id

    for _ in range(3):
        later = make(limits=limits)
        later.run(SCAN)
        found = later.run(
            f"print(in_memory({halves(canary)}), in_memory({halves(said)}), in_memory({halves(first_id)}))"
        )
        assert found == "0 0 0\n"

    first.run(SCAN)
    assert first.run(f"print(in_memory({halves(canary)}) > 0)") == "True\n"


def test_t02_each_has_an_identity_of_its_own(make):
    """Host uids of living sandboxes: all different, none of them root's, the server's or the zygote's."""
    if os.geteuid() != 0:
        pytest.skip("needs root: an ordinary user has one id for all")

    marker = secrets.token_hex(8)
    uids, gids = [], []

    for number in range(8):
        one = make(limits=Limits(processes=60))
        one.sandbox.commands.run(["sleep", "600"], envs={"MARK": f"{marker}-{number}"}, background=True)

    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() not in (folder / "environ").read_bytes():
                continue

            status = dict(
                line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line
            )
        except OSError:
            continue

        uids.append(set(status["Uid"].split()))
        gids.append(set(status["Gid"].split()))
        assert status["Groups"].strip() == ""

    assert len(uids) == 8
    assert all(len(each) == 1 for each in (*uids, *gids))
    assert len(set().union(*uids)) == len(set().union(*gids)) == 8
    assert not {"0", str(os.getuid()), "65534", "1000"} & set().union(*uids, *gids)


def test_t03_nothing_is_left_of_one_that_has_ended(make, canary):
    """The next one finds no trace, in memory or files; nor does the host in its temporary folders."""
    first = make(envs={"SECRET": canary})
    plant(first, canary)
    first.sandbox.kill()

    second = make()
    second.run(SCAN)
    assert second.run(f"print(in_files({halves(canary)}), in_memory({halves(canary)}))") == "[] 0\n"

    for folder in ("/tmp", "/run", "/dev/shm", "/var/tmp"):
        left = [path for path in Path(folder).glob("*") if canary in path.name]
        assert left == []


def test_t03_a_warm_sandbox_has_never_run_anybodys_code(make):
    """Counters, history and variables of a sandbox out of the pool are those of a new one."""
    for _ in range(3):
        one = make()
        execution = one.sandbox.run_code(
            "print(len(In), sorted(name for name in globals() if 'canary' in name))"
        )
        assert execution.execution_count == 1
        assert execution.logs.stdout[0].split() == ["2", "[]"]


def test_t04_clones_diverge(make):
    """Every source of randomness that a guest is likely to use differs between two of one template."""
    draw = (
        "import json, os, random, secrets, tempfile, uuid\n"
        "import numpy\n"
        "from multiprocessing import current_process\n"
        "print(json.dumps([os.urandom(8).hex(), random.random(), str(uuid.uuid4()), str(uuid.uuid1()),\n"
        "    secrets.token_hex(8),\n"
        "    float(numpy.random.random()), float(numpy.random.default_rng().random()), tempfile.mktemp(),\n"
        "    bytes(current_process().authkey).hex()]))\n"
    )
    one, other = (json.loads(make().run(draw)) for _ in range(2))
    assert [number for number, (a, b) in enumerate(zip(one, other, strict=True)) if a == b] == []

    mine = make()
    again = mine.sandbox.create_code_context()
    third = json.loads("".join(mine.sandbox.run_code(draw, context=again).logs.stdout))
    fourth = json.loads(mine.run(draw))
    assert [number for number, (a, b) in enumerate(zip(third, fourth, strict=True)) if a == b] == []


NOISE = """
import os, sys, threading, time
def burn():
    while True: pass
def fill():
    while True:
        try: open('/tmp/noise', 'wb').write(bytes(48 << 20))
        except OSError: pass
def fork():
    while True:
        try:
            pid = os.fork()
        except OSError: continue
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
for work in (burn, fill, fork):
    if os.fork() == 0: work()
while True: os.write(1, b'x' * 65536)
"""


def test_t06_a_noisy_neighbour_fails_no_call(make, needs_cgroups):
    """At its limits of processors, memory, disk, processes and output; every call of the other one succeeds.

    How much slower they become is measured by `make bench`.
    """
    limits = Limits(processes=30, memory_bytes=128 << 20, disk_bytes=32 << 20, cpu_cores=0.5)
    noisy, quiet = make(limits=limits), make()
    noisy.sandbox.files.write("noise.py", NOISE)
    noisy.sandbox.commands.run("python3 -I -S noise.py", background=True, timeout=None)

    while noisy.sandbox.get_metrics().processes < 5:
        pass

    for number in range(40):
        assert quiet.sandbox.run_code(f"{number} + 1").text == str(number + 1)
        quiet.sandbox.files.write("file", str(number))
        assert quiet.sandbox.files.read("file") == str(number)

    assert quiet.sandbox.commands.run("echo here").stdout == "here\n"
    assert noisy.sandbox.kill()


def test_t05_shared_layers_stay_as_they_are(make, attacked):
    """What all sandboxes read together is the same before and after one has tried to change it by every means."""
    digest = (
        "import hashlib, os\n"
        "whole = hashlib.sha256()\n"
        "for folder in ('/opt/fumehood', os.path.dirname(os.__file__), '/etc'):\n"
        "    for name in sorted(os.listdir(folder)):\n"
        "        path = os.path.join(folder, name)\n"
        "        if os.path.isfile(path): whole.update(open(path, 'rb').read())\n"
        "print(whole.hexdigest())\n"
    )
    before = attacked.run(digest)
    vandal = make()
    vandal.run(
        "import ctypes, mmap, os\n"
        "path = os.__file__\n"
        "fd = os.open(path, os.O_RDONLY)\n"
        "def attempt(action):\n"
        "    try: action()\n"
        "    except Exception: pass\n"
        "private = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)\n"
        "private[:6] = b'broken'\n"
        "attempt(lambda: mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE))\n"
        "attempt(lambda: os.write(os.open(f'/proc/self/fd/{fd}', os.O_RDWR), b'broken'))\n"
        "attempt(lambda: os.copy_file_range(os.open('attack/kernel.py', os.O_RDONLY), fd, 10))\n"
        "attempt(lambda: os.sendfile(fd, os.open('attack/kernel.py', os.O_RDONLY), 0, 10))\n"
        "attempt(lambda: os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED))\n"
        "attempt(lambda: __import__('fcntl').ioctl(fd, 0x40086602, b'\\0' * 8))\n"
        "import json; json.loads = lambda text: 'poisoned'\n"
    )
    assert attacked.run(digest) == before
    assert make().run("import json; print(json.loads('1'))") == "1\n"


def test_t05_outside_a_shared_mapping_changes_the_file(tmp_path):
    """The control: with a descriptor that may write, the same mapping changes what everybody reads."""
    import mmap

    path = tmp_path / "shared"
    path.write_bytes(b"whole" + bytes(4091))
    before = hashlib.sha256(path.read_bytes()).digest()

    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as shared:
        shared[:6] = b"broken"

    assert hashlib.sha256(path.read_bytes()).digest() != before
