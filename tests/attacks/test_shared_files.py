"""T01, K05, F01: what sandboxes and the host have in common because they read the same files."""

from __future__ import annotations

import ast
import fcntl
import os
import socket
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

from fumehood_jail import mounts

# In every sandbox at the same path, and on the host as well. Device nodes of their own take root.
DEVICES = tuple(f"/dev/{name}" for name in mounts.DEVICES if name != "tty") if os.geteuid() == 0 else ()
SYSTEM = ("/bin/sh", "/usr/share", "/usr/bin", *DEVICES)
LOCKS = f"""
import fcntl, os, struct
STDLIB = os.path.dirname(os.__file__)
def places(): return [*{SYSTEM!r}, os.__file__, STDLIB, '/', '/etc/passwd', '/opt', '/dev', '/home']
def lock(path, how=fcntl.LOCK_EX):
    fd = os.open(path, os.O_RDONLY)
    try: fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError: return 'locked'
    held.append(fd); return 'free'
def conflict(path):  # what F_GETLK says of a lock that is never taken
    fd = os.open(path, os.O_RDONLY)
    return struct.unpack('hhqqi4x', fcntl.fcntl(fd, fcntl.F_GETLK, whole(fcntl.F_WRLCK)))[0] != fcntl.F_UNLCK
def read_lock(path):
    held.append(os.open(path, os.O_RDONLY))
    fcntl.fcntl(held[-1], fcntl.F_SETLK, whole(fcntl.F_RDLCK))
def whole(kind): return struct.pack('hhqqi4x', kind, 0, 0, 0, 0)
held = []
"""
WATCH = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
watcher = libc.inotify_init1(os.O_NONBLOCK)
def watch(path): return libc.inotify_add_watch(watcher, path.encode(), 0x1 | 0x8 | 0x10 | 0x20)  # access, open, close
def seen():
    names = set()
    try: data = os.read(watcher, 1 << 20)
    except BlockingIOError: return names
    at = 0
    while at < len(data):
        length = struct.unpack_from('iIII', data, at)[3]
        names.add(data[at + 16 : at + 16 + length].rstrip(b'\\0').decode()); at += 16 + length
    return names
"""


def by_a_child(attacked, program: str) -> str:
    """Runs a program in a new interpreter inside."""
    child = f"subprocess.check_output([sys.executable, '-c', {program!r}], text=True)"
    return attacked.run(f"import subprocess, sys; print({child})").strip()


def test_t01_locks_on_shared_files_reach_no_other_sandbox(make, attacked):
    """Neither a lock of the whole file nor a record lock tells another sandbox anything, or makes the host wait."""
    one, other = make(), attacked
    one.run(LOCKS)
    other.run(LOCKS)
    taken = one.run("print({path: lock(path) for path in places()})")
    assert "locked" not in taken, taken
    one.run("for path in places():\n    if os.path.isfile(path): read_lock(path)")

    said = other.run("print([path for path in places() if lock(path) == 'locked'])")
    assert said == "[]\n"
    assert (
        other.run("print([path for path in places() if os.path.isfile(path) and conflict(path)])") == "[]\n"
    )

    for path in SYSTEM:
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)

    # The control: within one sandbox the same locks are seen, by another process of it.
    program = LOCKS + "print([path for path in places() if lock(path) == 'free'], conflict(os.__file__))"
    assert by_a_child(one, program) == "[] True"


def test_t01_a_watch_sees_nothing_of_the_host_or_of_other_sandboxes(make, attacked):
    """Watches on the system, the standard library and the root tell of their own sandbox alone."""
    spy = attacked
    spy.run(WATCH)
    watched = spy.run(
        "stdlib = os.path.dirname(os.__file__)\n"
        f"folders = [*{DEVICES}, '/usr/bin', '/usr/share', '/', '/etc', stdlib, stdlib + '/xmlrpc']\n"
        "print([watch(path) > 0 for path in folders], len(seen()) >= 0)"
    )
    assert "False" not in watched

    victim = make()
    victim.run(
        "import os; open(os.path.dirname(os.__file__) + '/xmlrpc/server.py').read(); open('/etc/passwd').read()"
    )
    victim.run("open('/dev/null').close(); open('/dev/zero', 'rb').read(1)")
    victim.run("import subprocess; subprocess.run(['/usr/bin/env', 'true'])")
    subprocess.run(["/usr/bin/env", "true"], check=True)
    assert spy.run("print(seen())") == "set()\n"

    # The control: what its own sandbox does, it sees.
    spy.run("open(os.path.dirname(os.__file__) + '/xmlrpc/server.py').read()")
    assert "server.py" in spy.run("print(seen())")


def test_t01_the_program_of_a_context_leads_to_no_file_of_the_host(attacked):
    """A context runs what was started before its sandbox was: its link to that file does not open it."""
    said = attacked.run(
        "import os\n"
        "try: os.open('/proc/self/exe', os.O_RDONLY); print('opened')\n"
        "except OSError as error: print(error.strerror)\n"
        "print(os.path.exists(os.readlink('/proc/self/exe')))"
    )
    assert said.split("\n")[:2] == ["Permission denied", "True"]
    control = "import os; os.open('/proc/self/exe', os.O_RDONLY); print('opened')"
    assert by_a_child(attacked, control) == "opened"


SPLICE = """
import errno, os, socket
file = os.memfd_create('pages'); os.write(file, b'A' * 4096)
reading, writing = os.pipe()
try:
    os.sendfile(writing, file, 0, 4096)
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    os.pwrite(file, b'B' * 4096, 0)
    print('a page lies in the pipe' if os.read(reading, 4096)[:1] == b'B' else 'a copy')
try: socket.socket().setsockopt(socket.SOL_SOCKET, 60, 1); print('zero copies')
except OSError as error: print(errno.errorcode[error.errno])
"""


def test_k05_no_page_of_a_file_gets_into_a_pipe_by_sendfile(attacked):
    """As by splice: what is written to the file afterwards would be seen in the pipe."""
    assert attacked.run(SPLICE).split("\n")[:2] == ["EINVAL", "ENOTSUP"]
    control = subprocess.check_output([sys.executable, "-c", SPLICE], text=True)
    assert control.split("\n")[:2] == ["a page lies in the pipe", "zero copies"]


def test_what_copies_files_does_without_sendfile(attacked):
    """The standard library copies and sends files by reading and writing where sendfile is refused."""
    said = attacked.run(
        textwrap.dedent(
            """
            import asyncio, os, shutil, socket, threading
            content = os.urandom(300_000)
            open('/tmp/original', 'wb').write(content)
            shutil.copyfile('/tmp/original', '/tmp/copied')
            shutil.copy2('/tmp/original', '/home/user/copied')
            print(open('/tmp/copied', 'rb').read() == content, open('/home/user/copied', 'rb').read() == content)

            def receive(sock):
                parts = []
                while part := sock.recv(1 << 16): parts.append(part)
                return b''.join(parts)

            def sent_by(send):
                ours, theirs = socket.socketpair()
                got = []
                reader = threading.Thread(target=lambda: got.append(receive(theirs)))
                reader.start()
                with ours, open('/tmp/original', 'rb') as file: send(ours, file)
                reader.join()
                return got[0] == content

            async def over_the_loop(sock, file):
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_sendfile(sock, file)

            print(sent_by(lambda sock, file: sock.sendfile(file)))
            print(sent_by(lambda sock, file: asyncio.new_event_loop().run_until_complete(over_the_loop(sock, file))))
            """
        )
    )
    assert said.split() == ["True"] * 4


PAGE_CACHE = """
import errno, os
fd = os.open({path!r}, os.O_RDONLY)
try: print(os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT))
except OSError as error: print(errno.errorcode[error.errno])
"""


def test_k05_no_read_asks_whether_a_page_is_in_memory(attacked):
    """A read that would rather fail than go to the disk says which files others have read; without flags it reads."""
    assert attacked.run(PAGE_CACHE.format(path="/bin/sh")) == "ENOTSUP\n"
    assert attacked.run("print(os.preadv(fd, [bytearray(1)], 0))") == "1\n"

    with open("/bin/sh", "rb") as file:
        file.read(1)

    program = PAGE_CACHE.format(path="/bin/sh")
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "1\n"


RESIDENT = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open({path!r}, os.O_RDONLY)
os.read(fd, 1)
where = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(4096), 1, 1, fd, ctypes.c_long(0)))
page = ctypes.c_ubyte()
failed = libc.mincore(where, ctypes.c_size_t(1), ctypes.byref(page))
print(errno.errorcode[ctypes.get_errno()] if failed else page.value & 1)
"""


def test_k05_no_call_tells_what_of_a_mapped_file_is_in_memory(attacked):
    """The kernel tells it to the owner of a file: an ordinary user's packages belong to the user that sandboxes are."""
    assert attacked.run(RESIDENT.format(path="/bin/sh")) == "ENOSYS\n"

    program = RESIDENT.format(path="/bin/sh")
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "1\n"


# FS_IOC_GETFSUUID, GETFSSYSFSPATH, GETFSLABEL, FIEMAP, of ext4 the identity, of XFS the geometry.
IDENTITY = (0x80111500, 0x80811501, 0x81009431, 0xC020660B, 0x8008662C, 0x8100587E)
KERNEL_ANSWERS = """
import array, ctypes, errno, fcntl, os
fd = os.open({path!r}, os.O_RDONLY)
said = []
for request in {requests!r}:
    buffer = bytearray(4096)
    buffer[8:16] = b'\\xff' * 7 + b'\\x7f'
    try: fcntl.ioctl(fd, request, buffer); said.append('told')
    except OSError as error: said.append(errno.errorcode[error.errno])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
where = libc.mmap(None, ctypes.c_size_t(4096), 3, 0x22, -1, ctypes.c_long(0))
failed = libc.madvise(ctypes.c_void_p(where), ctypes.c_size_t(4096), 12)
said.append(errno.errorcode[ctypes.get_errno()] if failed else 'merged')
print(*said)
"""


def test_k15_filesystems_of_the_host_have_no_identity(attacked):
    """Neither their number and label nor where files lie on the disk; and no page is merged with those of others."""
    program = KERNEL_ANSWERS.format(path="/bin/sh", requests=IDENTITY)
    said = attacked.run(program).split()
    assert set(said[:-1]) <= {"ENOTTY", "ENOTSUP"}, said
    assert said[-1] == "EINVAL"

    control = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert "told" in control, control


def test_f01_times_of_devices_cannot_be_changed(attacked):
    """The host and all sandboxes have them in common; they still are devices that can be read and written."""
    before = {name: os.stat(f"/dev/{name}").st_mtime_ns for name in mounts.DEVICES}
    said = attacked.run(
        "import errno, os\n"
        "def refused(path):\n"
        "    try: os.utime(path); return 'changed'\n"
        "    except OSError as error: return errno.errorcode[error.errno]\n"
        "masked = [line.split()[4] for line in open('/proc/self/mountinfo') if line.split()[3] == '/null']\n"
        f"print({{refused('/dev/' + name) for name in {mounts.DEVICES}}}, {{refused(path) for path in masked}})\n"
        "print(open('/dev/null', 'w').write('gone'), len(open('/dev/zero', 'rb').read(4)), len(os.getrandom(4)))\n"
    )
    assert said == "{'EROFS'} {'EROFS'}\n4 4 4\n"
    assert {name: os.stat(f"/dev/{name}").st_mtime_ns for name in before} == before

    # The control: nodes that anybody may write to, anybody may touch.
    if os.geteuid() == 0:
        child = "import os; os.setresuid(65534, 65534, 65534); os.utime('/dev/full')"
        subprocess.run([sys.executable, "-c", child], check=True)
        assert os.stat("/dev/full").st_mtime_ns != before["full"]


# Numbers of the whole machine: another sandbox that opens files, terminals or requests changes them.
COUNTERS = (
    "sys/fs/aio-nr",
    "sys/fs/dentry-state",
    "sys/fs/file-nr",
    "sys/fs/inode-nr",
    "sys/fs/inode-state",
    "sys/kernel/pty/nr",
)
HIDDEN = ("diskstats", "partitions", "softirqs", *COUNTERS)


def test_k15_what_the_machine_does_is_not_reported(attacked):
    """Disks, interrupts and pressure are not there; what honest programs read, is."""
    assert attacked.run(
        "import os\n"
        f"hidden = {HIDDEN}\n"
        "print([open('/proc/' + name).read() for name in hidden])\n"
        "print(os.listdir('/proc/pressure') if os.path.isdir('/proc/pressure') else [])\n"
        "print(open('/proc/vmstat').read().split())\n"
    ).splitlines() == [
        str([""] * len(HIDDEN)),
        "[]",
        "['pgpgin', '0', 'pgpgout', '0', 'pswpin', '0', 'pswpout', '0']",
    ]
    names = [
        "meminfo",
        "stat",
        "cpuinfo",
        "loadavg",
        "uptime",
        "version",
        "filesystems",
        "sys/kernel/random/uuid",
    ]
    assert attacked.run(f"print([name for name in {names} if not open('/proc/' + name).read()])") == "[]\n"

    for name in (*HIDDEN, "vmstat"):
        assert Path("/proc", name).read_text("ascii"), f"{name} is empty on the host too"


def test_k15_the_number_of_the_machines_start_is_not_reported(make, attacked):
    """Each sandbox has one of its own, and another after all that ran in it has ended; nothing inside can set it."""
    name = "/proc/sys/kernel/random/boot_id"
    read = f"print(open({name!r}).read(), end='')"
    machine = Path(name).read_text("ascii")
    other = make()
    first, second = attacked.run(read), other.run(read)
    assert len({machine, first, second}) == 3
    assert [len(text) for text in (machine, first, second)] == [37] * 3
    assert str(uuid.UUID(first.strip())) == first.strip()
    assert uuid.UUID(first.strip()).version == 4

    refused = other.sandbox.run_code(f"open({name!r}, 'w')").error
    assert refused is not None
    assert refused.name in ("OSError", "PermissionError")

    other.sandbox.pause(files_only=True)
    other.sandbox.resume()
    assert other.run(read) not in (machine, first, second)


# What names connections, or counts those of one network. Counts of the whole machine are told, as the threat model has
# it (`sockstat`, `protocols`, `softnet_stat`, what a kernel has more): no mount can cover them, as each process has a
# /proc/PID/net. `unix` has the sandbox's own sockets, which init may use meanwhile.
NAMES_CONNECTIONS = {
    *("tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "icmp", "icmp6", "packet"),
    *("arp", "dev", "fib_trie", "nf_conntrack", "nf_conntrack_expect", "netstat", "route", "snmp", "snmp6"),
}
OF_THE_NETWORK = """
import os
import socket
def told():
    texts = {}
    for at, _, names in os.walk('/proc/self/net/'):
        for name in names:
            try: texts[name] = open(os.path.join(at, name), 'rb').read()
            except OSError: pass
    return texts
"""


def test_k15_of_the_hosts_connections_counts_alone_are_reported(make):
    """Neither where they lead nor what they carry; the control is the host's own list."""
    sandbox = make()
    sandbox.run(f"{OF_THE_NETWORK}before = told()")

    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = [socket.create_connection(server.getsockname()) for _ in range(20)]
        ends += [server.accept()[0] for _ in range(20)]

        for end in ends:
            end.send(b"of the host")

        changed = sandbox.run(
            "after = told(); print([name for name in after if after[name] != before.get(name)])"
        )
        here = f":{server.getsockname()[1]:04X} "
        assert here in Path("/proc/net/tcp").read_text("ascii")

        for end in ends:
            end.close()

    assert set(ast.literal_eval(changed)) & NAMES_CONNECTIONS == set()
    assert sandbox.run("print({'tcp', 'udp', 'snmp'} <= after.keys())") == "True\n"
    assert sandbox.run(f"print({here.strip()!r} in open('/proc/net/tcp').read())") == "False\n"
