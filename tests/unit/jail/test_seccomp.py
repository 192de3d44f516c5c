"""The filters in the real kernel: what is refused gets its errno, and what people do goes on working."""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import textwrap

import pytest

from fumehood_jail import call_numbers, seccomp, syscalls
from fumehood_jail.errors import JailError

NAMESPACE_FLAGS = {
    "user": syscalls.CLONE_NEWUSER,
    "pid": syscalls.CLONE_NEWPID,
    "mnt": syscalls.CLONE_NEWNS,
    "net": syscalls.CLONE_NEWNET,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "cgroup": syscalls.CLONE_NEWCGROUP,
}
TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD, TIOCGWINSZ = 0x5412, 0x541C, 0x541D, 0x5423, 0x5413


def test_every_refused_call_answers_its_errno(in_filter, syscall, numbers, policies):
    """Each call that the policy refuses by name gets exactly that errno, whatever its arguments."""
    said = {
        call: verdict for call, verdict in seccomp.named_calls(policies["sandbox"]).items() if call in numbers
    }
    refused = {call: verdict for call, verdict in said.items() if verdict not in ("allow", "check")}

    answers = in_filter(
        lambda: {call: [syscall(numbers[call]), syscall(numbers[call], *[-1] * 6)] for call in refused}
    )

    expected = {call: [-getattr(errno, verdict)] * 2 for call, verdict in refused.items()}
    assert answers == expected


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("unshare", (0,)),
        ("setns", (-1, 0)),
        ("mount", (0, 0, 0, 0, 0)),
        ("umount2", (0, 0)),
        ("ptrace", (-1, 0, 0, 0)),
        ("bpf", (-1, 0, 0)),
        ("io_uring_setup", (0, 0)),
        ("keyctl", (-1,)),
        ("userfaultfd", (-1,)),
        ("process_vm_readv", (0, 0, 0, 0, 0, -1)),
        ("pidfd_getfd", (-1, 0, 0)),
        ("vmsplice", (-1, 0, 0, 0)),
        ("splice", (-1, 0, -1, 0, 1, 0)),
        ("mbind", (0, 0, -1, 0, 0, 0)),
        ("open_tree", (-1, 0, -1)),
        ("fsopen", (0, -1)),
    ],
)
def test_refused_calls_reach_the_kernel_without_the_filter(
    in_child, in_filter, syscall, numbers, call, arguments
):
    """The control: without the filter the same harmless call is judged by the kernel, with another answer."""
    with_filter = in_filter(lambda: syscall(numbers[call], *arguments))
    without_filter = in_child(lambda: syscall(numbers[call], *arguments))

    assert with_filter in (-errno.EPERM, -errno.ENOSYS)
    assert without_filter != with_filter


def test_unknown_and_x32_numbers_do_not_exist(in_filter, syscall, numbers):
    """Numbers that nobody has named, of today's and tomorrow's kernels and of x32, are unknown."""
    unknown = [
        335 + 2,
        480,
        600,
        1023,
        2**31 - 1,
        -1,
        0x40000000 | numbers["getpid"],
        0x40000000 | numbers["read"],
    ]

    assert in_filter(lambda: [syscall(number) for number in unknown]) == [-errno.ENOSYS] * len(unknown)


def test_the_32_bit_entry_kills(in_child, in_filter, died):
    """A call through the i386 entry ends the process."""
    if call_numbers.MACHINE != "x86_64":
        pytest.skip("needs x86-64: no other machine has that entry")

    def getpid_by_interrupt():
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(
            b"\x53\xb8\x14\x00\x00\x00\xcd\x80\x5b\xc3"
        )  # push rbx; mov eax, 20; int 0x80; pop rbx; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid()

    try:
        assert in_child(getpid_by_interrupt)
    except died:
        pytest.skip("needs x86-64 with 32-bit calls in the kernel")

    with pytest.raises(died) as caught:
        in_filter(getpid_by_interrupt)

    assert caught.value.signal == signal.SIGSYS


@pytest.mark.parametrize("kind", NAMESPACE_FLAGS)
def test_clone_makes_no_namespaces(in_filter, syscall, numbers, kind):
    """clone with a namespace flag is refused, also with the high half of the argument set; a fork works."""
    flag = NAMESPACE_FLAGS[kind]

    def clone():
        refused = [
            syscall(numbers["clone"], flags) for flags in (flag, flag | 17, flag | 1 << 32, flag | 1 << 63)
        ]
        pid = syscall(numbers["clone"], 17)
        if pid == 0:
            os._exit(3)

        return [*refused, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

    assert in_filter(clone) == [-errno.EPERM] * 4 + [3]


def test_the_zygote_may_clone_into_namespaces(in_filter):
    """What a sandbox may not, the zygote may; a sandbox's filter on top then takes it away."""

    def clone_then_restrict():
        pid = syscalls.clone(syscalls.CLONE_NAMESPACES)
        if pid == 0:
            seccomp.load(seccomp.compile_policy(os.path.join(seccomp.POLICIES, "sandbox.toml")))
            try:
                syscalls.unshare(syscalls.CLONE_NEWUTS)
            except PermissionError:
                os._exit(3)

            os._exit(4)

        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_filter(clone_then_restrict, policy="zygote") == 3


def test_clone_gives_init_no_children(in_filter, syscall, numbers):
    """CLONE_PARENT, which would make a stranger the child of init, is refused."""
    assert in_filter(lambda: syscall(numbers["clone"], syscalls.CLONE_PARENT | 17)) == -errno.EPERM


def test_socket_families(in_filter, syscall, numbers):
    """Only local and internet sockets exist, of the three ordinary types and protocols."""

    def try_all():
        families = {family: syscall(numbers["socket"], family, 2, 0) for family in range(50)}
        types = {kind: syscall(numbers["socket"], 2, kind, 0) for kind in range(16)}
        flagged = syscall(numbers["socket"], 1, 5 | 0o2000000 | 0o4000, 0)
        protocols = {number: syscall(numbers["socket"], 2, 1, number) for number in (0, 6, 17, 33, 132, 262)}
        high_bits = syscall(numbers["socket"], 16 | 1 << 32, 3, 0)
        pairs = [syscall(numbers["socketpair"], family, 1, 0, 0) for family in (1, 2, 16)]
        audit = syscall(numbers["socket"], 16, 3, 9)
        return [families, types, flagged, protocols, high_bits, pairs, audit]

    families, types, flagged, protocols, high_bits, pairs, audit = in_filter(try_all)

    assert families.pop(str(int(socket.AF_NETLINK))) == -errno.EOPNOTSUPP
    assert {int(family) for family, answer in families.items() if answer != -errno.EAFNOSUPPORT} == {1, 2, 10}
    assert {int(kind) for kind, answer in types.items() if answer != -errno.EPERM} == {1, 2, 5}
    assert flagged > 0
    assert {int(number) for number, answer in protocols.items() if answer > 0} == {0, 6}
    assert protocols["132"] == protocols["262"] == -errno.EPROTONOSUPPORT
    assert high_bits == -errno.EOPNOTSUPP
    # At another answer useradd, in a step of a build, aborts.
    assert audit == -errno.EAFNOSUPPORT
    assert pairs == [-errno.EFAULT, -errno.EAFNOSUPPORT, -errno.EAFNOSUPPORT]


def test_socket_options(in_filter, syscall, numbers):
    """No filter program, kernel TLS or encapsulation can be put on a socket; ordinary options can."""

    def try_all():
        fd = syscall(numbers["socket"], 2, 1, 0)
        value = ctypes.create_string_buffer(struct.pack("=i", 1))
        address = ctypes.addressof(value)
        options = [(1, 26), (1, 50), (1, 51), (1, 52), (6, 31), (17, 100), (1, 9), (6, 1)]
        return [syscall(numbers["setsockopt"], fd, level, option, address, 4) for level, option in options]

    assert in_filter(try_all) == [-errno.EPERM] * 4 + [-errno.ENOPROTOOPT] * 2 + [0, 0]


@pytest.mark.parametrize("option", [socket.SO_SNDBUF, socket.SO_RCVBUF])
def test_sizes_of_buffers_stay(in_filter, option):
    """A larger one would hold more frames than the host reads in a turn: the call succeeds, and does nothing."""

    def try_it():
        with socket.socket(socket.AF_UNIX) as one:
            before = [
                one.getsockopt(socket.SOL_SOCKET, kind) for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)
            ]

            one.setsockopt(socket.SOL_SOCKET, option, 4 << 20)

            after = [one.getsockopt(socket.SOL_SOCKET, kind) for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
            return [before, after]

    before, after = in_filter(try_it)
    assert before == after


def test_terminal_injection(in_filter, syscall, numbers):
    """Nobody types into a terminal, also not with high bits set in the request; its size can be asked."""
    requests = [TIOCSTI, TIOCLINUX, TIOCCONS, TIOCSETD]
    requests += [request | 1 << 32 for request in requests] + [request | 1 << 63 for request in requests]

    def try_all():
        _, terminal = os.openpty()
        value = ctypes.create_string_buffer(64)
        answers = [
            syscall(numbers["ioctl"], terminal, request, ctypes.addressof(value)) for request in requests
        ]
        return [*answers, syscall(numbers["ioctl"], terminal, TIOCGWINSZ, ctypes.addressof(value))]

    assert in_filter(try_all) == [-errno.EPERM] * 12 + [0]


def test_personality_prctl_and_device_nodes(in_filter, syscall, numbers, tmp_path):
    """Foreign personalities, dangerous prctl options and device nodes are refused; the plain ones work."""
    path = os.fsencode(str(tmp_path / "node")) + b"\0"

    def try_all():
        name = ctypes.create_string_buffer(path)
        personalities = [syscall(numbers["personality"], value) for value in (0xFFFFFFFF, 0, 0x0040000, 8)]
        options = [
            syscall(numbers["prctl"], option, 0, 0, 0, 0) for option in (35, 22, 59, 62, 26, 15 | 1 << 32, 3)
        ]
        options[5] = options[5] == -errno.EFAULT  # PR_SET_NAME reached the kernel, without a name
        nodes = [
            syscall(numbers["mknodat"], -100, ctypes.addressof(name), mode)
            for mode in (0o20600, 0o60600, 0o10600)
        ]
        return [personalities, options, nodes]

    personalities, options, nodes = in_filter(try_all)

    assert personalities == [0, 0, -errno.EPERM, -errno.EPERM]
    assert options[:5] == [-errno.EPERM] * 5
    assert options[5:] == [True, 1]
    assert nodes == [-errno.EPERM, -errno.EPERM, 0]


def test_only_the_zygote_loads_filters(in_filter, syscall, numbers):
    """Guest code cannot load programs into the kernel; the zygote can load filters, with a listener as well."""

    def try_flags():
        return [syscall(numbers["seccomp"], 1, flags, 0) for flags in (1, 8, 9)]

    assert in_filter(try_flags) == [-errno.EPERM] * 3
    assert in_filter(try_flags, policy="zygote") == [-errno.EFAULT, -errno.EFAULT, -errno.EPERM]


def test_the_filter_covers_threads_and_programs(in_filter):
    """A started program is behind the same filter, for good."""

    def start():
        with open("/proc/self/status", encoding="ascii") as file:
            own = [line.split()[1] for line in file if line.startswith("Seccomp:")]

        shown = subprocess.run(
            ["grep", "Seccomp:", "/proc/self/status"], capture_output=True, text=True, check=True
        )
        return [own[0], shown.stdout.split()[1]]

    assert in_filter(start) == ["2", "2"]


def test_a_broken_program_does_not_load(in_child):
    """What the kernel refuses to load raises, with the step and the errno."""

    def load():
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        try:
            seccomp.load(b"\xff" * 16)
        except JailError as error:
            return [error.step, error.errno]

        return None

    assert in_child(load) == ["seccomp", errno.EINVAL]


WORKLOADS = {
    "numpy with threads": """
        import numpy, threading
        matrix = numpy.random.default_rng(0).random((600, 600))
        threads = [threading.Thread(target=numpy.linalg.eigvals, args=(matrix[:99, :99],)) for _ in "1234"]
        [thread.start() for thread in threads]; [thread.join() for thread in threads]
        assert (matrix @ matrix).shape == (600, 600)
    """,
    "pandas and matplotlib": """
        import io, matplotlib; matplotlib.use("agg")
        import pandas, matplotlib.pyplot as plt
        pandas.DataFrame({"a": range(5)}).plot()
        buffer = io.BytesIO(); plt.savefig(buffer); assert buffer.getvalue()[:4] == b"\\x89PNG"
    """,
    "multiprocessing": """
        import multiprocessing, os
        from multiprocessing import shared_memory
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        block = shared_memory.SharedMemory(create=True, size=4096)
        block.buf[0] = 7; block.close(); block.unlink()
        queue = multiprocessing.get_context("fork").Queue(); queue.put(1); assert queue.get() == 1
    """,
    "processes": """
        import subprocess, os, shutil
        shell = "echo a | tr a b; (sleep 0 & wait)"
        assert subprocess.run(shell, shell=True, capture_output=True).stdout == b"b\\n"
        assert subprocess.run(["bash", "-c", "for i in 1 2 3; do echo $i; done | sort -r | head -1"],
                              capture_output=True).stdout == b"3\\n"
        fd = os.pidfd_open(os.getpid()); os.close(fd)
        assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]) == 0
    """,
    "asyncio": """
        import asyncio, signal
        async def main():
            server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            process = await asyncio.create_subprocess_exec("true"); assert await process.wait() == 0
            loop = asyncio.get_running_loop(); loop.add_signal_handler(signal.SIGUSR1, print)
            await asyncio.to_thread(sum, [1])
        asyncio.run(main())
    """,
    "sqlite": """
        import sqlite3, tempfile, os
        with tempfile.TemporaryDirectory() as folder:
            database = sqlite3.connect(os.path.join(folder, "d.db"))
            for statement in ("pragma journal_mode=wal", "create table t(x)", "insert into t values(1)"):
                database.execute(statement)
            database.commit()
            assert database.execute("select * from t").fetchall() == [(1,)]
    """,
    "files": """
        import os, shutil, tempfile, mmap, fcntl
        with tempfile.TemporaryDirectory() as folder:
            a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
            open(a, "wb").write(b"x" * 100000); shutil.copyfile(a, b); shutil.copytree(folder, folder + "2")
            shutil.rmtree(folder + "2"); os.rename(b, b + "c"); os.symlink(a, b); os.chmod(a, 0o600)
            os.setxattr(a, "user.k", b"v"); os.mkfifo(b + "f"); os.truncate(a, 10)
            with open(a, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX); fcntl.lockf(file, fcntl.LOCK_EX); os.fsync(file.fileno())
                mmap.mmap(file.fileno(), 10).flush(); os.posix_fallocate(file.fileno(), 0, 1000)
            fd = os.memfd_create("m"); os.write(fd, b"x"); os.copy_file_range(fd, fd, 1, 0, 10)
            os.eventfd(0); os.getrandom(8); os.sched_setaffinity(0, os.sched_getaffinity(0))
    """,
    "sockets and names": """
        import socket
        assert socket.getaddrinfo("localhost", 80)
        try: socket.getaddrinfo("nowhere.invalid", 80)
        except socket.gaierror: pass
        a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [0]); assert socket.recv_fds(b, 1, 1)[1]
        socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).close()
    """,
}


def _run_filtered(in_filter, argv, cwd=None):
    done = in_filter(
        lambda: vars(subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd, timeout=60))
    )
    assert done["returncode"] == 0, done["stderr"]
    return done["stdout"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_people_do_works(in_filter, workload):
    """Ordinary programs run behind the filter as they do without it."""
    _run_filtered(in_filter, [sys.executable, "-c", textwrap.dedent(WORKLOADS[workload])])


def test_git_works(in_filter, tmp_path):
    """A repository can be made, committed to, cloned and packed."""
    if not shutil.which("git"):
        pytest.skip("needs git")

    script = """
        set -e; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
        git init -q one; cd one; git config user.email a@b; git config user.name a; echo x > x; git add x
        git commit -qm x; git clone -q . ../two; git gc -q; cd ../two; git log --oneline | wc -l
    """
    assert _run_filtered(in_filter, ["bash", "-c", textwrap.dedent(script)], cwd=str(tmp_path)).strip() == "1"
