"""K01 to K11: what the kernel lets a guest do, in every kind of process."""

from __future__ import annotations

import os

import pytest

from fumehood.scorecard.scene import POLICY
from fumehood_jail import call_numbers, launch, seccomp

REFUSED = "EPERM"
# Reached means that the kernel looked at the arguments, or did what was asked.
UNREACHED = {"EPERM", "ENOSYS"}


def reachable(said: dict[str, str]) -> set[str]:
    """The calls that got through to the kernel; a kernel built without one has nothing to refuse."""
    reached = {name for name, answer in said.items() if answer not in UNREACHED}
    assert reached
    return reached


def test_k01_privileges_are_gone(inside, outside):
    """No process and no thread has a capability, a privilege to gain, or an id of root's."""
    found = inside("privileges")

    for status in (found["process"], found["thread"]):
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        real, effective, saved, files = status["Uid"].split()
        assert {real, effective, files} == {"1000"}
        assert saved in {
            "1000",
            str(launch.FORK_OWNER_UID),
        }  # in reserve, for a context that moves into a fork
        assert status["Gid"].split() == ["1000"] * 4
        assert status["Groups"] == ""

    assert found["id in reserve"] in {"EPERM", "none"}
    # Root is nobody's name here, and no name of anybody here leads to the root above.
    assert "1000" in found["uid_map"][0::3]
    assert "0" not in [*found["uid_map"][0::3], *found["uid_map"][1::3]]
    control = outside("privileges")["process"]
    assert int(control["CapEff"], 16) != 0
    assert control["NoNewPrivs"] == "0"
    assert control["Uid"].split()[1] == "0"


def test_k02_nested_namespaces_are_refused(inside, outside):
    """No new namespace by any call, nobody else's either, and no child for init to adopt."""
    said = inside("namespaces")
    assert said.pop("unchanged") == "True"
    assert said.pop("clone3") == "ENOSYS"
    assert set(said.values()) == {REFUSED}, said

    control = outside("namespaces")
    assert control.pop("clone3") in {"EFAULT", "EINVAL"}
    assert {answer for name, answer in control.items() if name.startswith(("unshare", "clone "))} == {"ok"}
    assert control["setns uts"] == "ok"


def test_k02_without_seccomp_no_namespace_could_be_made_either(attacked):
    """The count of user namespaces is zero: a second wall behind the filter."""
    assert attacked.run("print(open('/proc/sys/user/max_user_namespaces').read())").strip() == "0"


def test_k03_the_mount_api_is_closed(inside, outside):
    """Every call that mounts, unmounts or looks at mounts is refused."""
    reached = reachable(outside("calls", "MOUNT_CALLS"))
    assert {"mount", "umount2", "pivot_root", "fsopen", "open_tree", "move_mount"} <= reached
    said = inside("calls", "MOUNT_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, REFUSED)


def test_k03_nothing_can_be_mounted_or_unmounted(inside, outside):
    """Also with arguments that are right, and the mount table stays as it is."""
    said = inside("real_mounts")
    assert said.pop("unchanged") == "True"
    assert set(said.values()) == {REFUSED}

    control = outside("real_mounts")
    assert set(control.values()) == {"ok", "True"}


def test_k04_io_uring_is_closed(inside, outside):
    """None of its three calls reaches the kernel."""
    reached = reachable(outside("calls", "IO_URING_CALLS"))
    assert "io_uring_setup" in reached
    said = inside("calls", "IO_URING_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, REFUSED)


def test_k05_exotic_kernel_interfaces_are_closed(inside, outside):
    """BPF, perf, user faults, fanotify and their kin."""
    reached = reachable(outside("calls", "EXOTIC_CALLS"))
    assert {"bpf", "userfaultfd", "fanotify_init", "seccomp"} <= reached
    said = inside("calls", "EXOTIC_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, REFUSED)


def test_k05_pages_of_files_cannot_be_spliced(inside, outside):
    """The way in of the bugs that wrote into the page cache; and no guest stops the disks of all."""
    reached = reachable(outside("calls", "PAGE_CACHE_CALLS"))
    said = inside("calls", "PAGE_CACHE_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, "ENOSYS")


def test_k06_keyrings_are_closed(inside, outside):
    """No key can be added, asked for or listed."""
    reached = reachable(outside("calls", "KEYRING_CALLS"))
    assert {"add_key", "keyctl"} <= reached
    said = inside("calls", "KEYRING_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, REFUSED)

    lists = ["/proc/keys", "/proc/key-users"]
    assert set(inside("read_paths", lists).values()) == {""}
    assert set(outside("read_paths", lists).values()) - {"", "ENOENT"}


def test_k07_no_memory_of_another_process(inside, outside):
    """No tracing, no reading across, nothing of init's but what every /proc shows."""
    said = inside("other_memory", 1)
    calls = {name: answer for name, answer in said.items() if not name.startswith("/")}
    files = {name: answer for name, answer in said.items() if name.startswith("/")}
    assert set(calls.values()) == {REFUSED}, calls
    assert set(files.values()) <= {"EACCES", "EPERM"}, files

    control = outside("other_memory", os.getpid())
    assert {control["ptrace"], control["process_vm_readv"], control["/mem"], control["/fd"]} == {"ok"}
    assert control["pidfd_getfd"] == "EBADF"


def test_k08_no_control_of_the_machine(inside, outside):
    """Modules, reboot, swap, accounting, quotas, clocks, ports, the kernel's log, the machine's name."""
    reached = reachable(outside("calls", "MACHINE_CALLS"))
    assert {"reboot", "swapon", "clock_settime", "settimeofday", "acct", "sethostname"} <= reached
    said = inside("calls", "MACHINE_CALLS")
    assert {name: said[name] for name in reached} == dict.fromkeys(reached, REFUSED)


def test_k09_no_file_is_opened_by_its_handle(inside, outside):
    """The way out of containers past every mount: neither an own handle nor a crafted one opens."""
    assert set(inside("file_handles").values()) == {REFUSED}
    control = outside("file_handles")
    assert (control["name"], control["open"]) == ("ok", "ok")


def test_k10_only_known_socket_families_open(inside, outside):
    """UNIX, IPv4 and IPv6, streams and datagrams; no raw sockets, and no option that loads code."""
    said = inside("socket_families")
    opened = {name for name, answer in said.items() if answer == "ok"}
    assert opened == {"1/1", "1/2", "1/3", "1/5", "2/1", "2/2", "10/1", "10/2"} & opened
    assert {"1/1", "1/2", "2/1", "2/2"} <= opened

    for name, answer in said.items():
        family, _, kind = name.partition("/")

        if kind and family not in ("1", "2", "10"):
            # libzmq goes on at this answer about netlink.
            assert answer == ("ENOTSUP" if family == "16" else "EAFNOSUPPORT"), name

    assert {said["2/3"], said["raw"], said["1/3"]} == {REFUSED}
    assert {said["mptcp"], said["sctp"], said["ping"]} == {"EPROTONOSUPPORT"}
    assert {said["classic filter"], said["bpf filter"]} == {REFUSED}
    assert said["kernel tls"] == "ENOPROTOOPT"

    control = outside("socket_families")
    assert {control["16/3"], control["17/3"], control["raw"]} == {"ok"}
    assert control["classic filter"] == "EFAULT"


def test_k11_no_other_abi_and_no_weaker_memory(inside, outside):
    """Neither x32 nor 32-bit calls are carried out; memory stays randomized and not executable."""
    said = inside("foreign_abis")
    assert (said["read implies exec"], said["no randomization"], said["query"]) == (REFUSED, REFUSED, "ok")

    control = outside("foreign_abis")
    assert (control["read implies exec"], control["no randomization"]) == ("ok", "ok")

    if call_numbers.MACHINE == "x86_64":
        assert said["x32"] == "ENOSYS"

        if control["int 80"] == "ok":  # else the kernel has no 32-bit calls at all
            assert said["int 80"] == "signal 31"


def test_k12_the_calls_that_are_refused_are_those_of_the_policy(inside, outside):
    """Each one answers what the policy says of it, and every number that nobody knows is unknown."""
    policy = seccomp.named_calls(seccomp.read_policy(POLICY))
    declared = {name: said for name, said in policy.items() if said not in ("allow", "check")}
    assert len(declared) > 50
    assert inside("declared_calls", declared) == {}
    assert len(outside("declared_calls", declared)) > 20


def test_k11_a_32_bit_program_does_not_run(attacked, tmp_path):
    """An ELF file for i386 that leaves with status 42."""
    if call_numbers.MACHINE != "x86_64":
        pytest.skip("needs x86-64: it is its 32-bit table")

    code = bytes.fromhex("b801000000bb2a000000cd80")  # mov eax, exit; mov ebx, 42; int 0x80
    header = b"\x7fELF\x01\x01\x01" + bytes(9)
    header += (2).to_bytes(2, "little") + (3).to_bytes(2, "little") + (1).to_bytes(4, "little")
    header += (0x08048054).to_bytes(4, "little") + (52).to_bytes(4, "little") + bytes(8)
    header += b"".join(size.to_bytes(2, "little") for size in (52, 32, 1, 0, 0, 0))
    fields = (1, 0, 0x08048000, 0x08048000, 84 + len(code), 84 + len(code), 5, 4096)
    program = header + b"".join(field.to_bytes(4, "little") for field in fields) + code

    attacked.sandbox.files.write("i386", program)
    status = attacked.run(
        "import os, subprocess\n"
        "os.chmod('i386', 0o755)\n"
        "try:\n"
        "    print(subprocess.run(['./i386']).returncode)\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    ).strip()
    assert status in {"-31", "8"}

    outside_file = tmp_path / "i386"
    outside_file.write_bytes(program)
    outside_file.chmod(0o755)
    try:
        assert os.waitstatus_to_exitcode(os.spawnv(os.P_WAIT, outside_file, [str(outside_file)]) << 8) == 42
    except OSError:
        assert status == "8"
