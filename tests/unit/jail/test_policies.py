"""The policies as data: nothing twice, nothing without effect, and the filters answer as written."""

import copy
import errno
import functools
import itertools
import os
import struct

import pytest

from fumehood_jail import seccomp

MACHINES = ("x86_64", "aarch64")
ALLOW = 0x7FFF0000
KILL = 0x80000000
# What security reviews of sandboxes ask for by name; each must be refused with EPERM.
NAMED_DANGEROUS = (
    "io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd ptrace "
    "process_vm_readv process_vm_writev process_madvise pidfd_getfd kcmp add_key request_key keyctl mount "
    "umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount open_tree mount_setattr "
    "statmount listmount unshare setns init_module finit_module delete_module kexec_load kexec_file_load "
    "reboot swapon swapoff acct quotactl quotactl_fd syslog settimeofday clock_settime clock_adjtime "
    "adjtimex iopl ioperm modify_ldt open_by_handle_at name_to_handle_at fanotify_init lookup_dcookie "
    "uselib ustat sysfs nfsservctl mbind set_mempolicy move_pages migrate_pages memfd_secret vmsplice "
    "seccomp "
)


@functools.cache
def decoded(program):
    """The instructions of a BPF program; some tests run one many thousand times."""
    return list(struct.iter_unpack("=HBBI", program))


def run_filter(program, number, arguments=(), arch=None, machine="x86_64"):
    """Interprets a BPF program the way the kernel does, and returns what it returns."""
    arch = seccomp._AUDIT_ARCH[machine] if arch is None else arch
    padded = [argument % 2**64 for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("=IIQ6Q", number % 2**32, arch, 0, *padded)
    code = decoded(program)
    position, accumulator = 0, 0
    while True:
        operation, on_true, on_false, constant = code[position]
        position += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, constant)[0]
        elif operation == 0x54:
            accumulator &= constant
        elif operation == 0x05:
            position += constant
        elif operation == 0x15:
            position += on_true if accumulator == constant else on_false
        elif operation == 0x35:
            position += on_true if accumulator >= constant else on_false
        elif operation == 0x06:
            return constant
        else:
            raise AssertionError(f"no such operation: {operation:#x}")


def mentioned_values(policy, call):
    """The values that the checks of a call compare with, and some that they do not."""
    found = {0, 3, 1 << 32}
    for check in policy["check"]:
        if check["call"] == call:
            for condition in check["when"]:
                found |= {
                    *condition.get("any_of", []),
                    *condition.get("none_of", []),
                    condition.get("mask", 0),
                }

    return sorted({policy["constants"].get(value, value) for value in found})


def argument_lists(policy, call, values):
    """Every combination of values in the arguments that the checks of a call look at, with 0 in all others."""
    checks = [check for check in policy["check"] if check["call"] == call]
    looked_at = {condition["argument"] for check in checks for condition in check["when"]}
    for some in itertools.product(values, repeat=len(looked_at)):
        given = dict(zip(sorted(looked_at), some, strict=True))
        yield [given.get(place, 0) for place in range(6)]


def answer(name):
    return 0x00050000 | getattr(errno, name)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["sandbox", "zygote"])
def test_every_number_answers_what_the_policy_says(policies, name, machine):
    """Over all numbers, on both machines: allowed, refused by name, or unknown, exactly as written."""
    said = seccomp.named_calls(policies[name])
    names = {number: call for call, number in seccomp._syscall_numbers(machine).items()}
    program = seccomp.compile_policy(policies[name], machine)

    for number in [*range(1200), 2**31, 2**32 - 1]:
        verdict = said.get(names.get(number, ""), "ENOSYS")
        if verdict != "check":
            expected = ALLOW if verdict == "allow" else answer(verdict)
            assert run_filter(program, number, machine=machine) == expected, names.get(number, number)


@pytest.mark.parametrize("machine", MACHINES)
def test_other_entries_are_closed(policies, machine):
    """A call through another architecture's entry kills; x32 numbers are unknown, even of allowed calls."""
    program = seccomp.compile_policy(policies["sandbox"], machine)
    getpid = seccomp._syscall_numbers(machine)["getpid"]

    assert run_filter(program, getpid, machine=machine) == ALLOW
    for arch in (0x40000003, 0x40000028, 0xC000003E, 0xC00000B7):  # i386, arm, x86-64, arm64
        if arch != seccomp._AUDIT_ARCH[machine]:
            assert run_filter(program, getpid, arch=arch) == KILL

    for call in seccomp._syscall_numbers(machine).values():
        assert run_filter(program, 0x40000000 | call, machine=machine) == answer("ENOSYS")


def test_the_zygote_may_do_all_that_a_sandbox_may(policies):
    """A sandbox's filter lies over the zygote's: what the zygote's refuses could never be allowed again."""
    sandbox = seccomp.compile_policy(policies["sandbox"], "x86_64")
    zygote = seccomp.compile_policy(policies["zygote"], "x86_64")
    said = seccomp.named_calls(policies["sandbox"])

    for call, number in seccomp._syscall_numbers("x86_64").items():
        values = mentioned_values(policies["sandbox"], call) if said.get(call) == "check" else [0]
        for arguments in itertools.product(values, repeat=3):
            if run_filter(sandbox, number, arguments) == ALLOW:
                assert run_filter(zygote, number, arguments) == ALLOW, (call, arguments)


def test_named_dangerous_calls_are_refused(policies):
    """Every call on the list of dangerous ones is refused by name, with EPERM."""
    said = seccomp.named_calls(policies["sandbox"])

    names = NAMED_DANGEROUS.split()

    assert {call: said.get(call) for call in names} == dict.fromkeys(names, "EPERM")
    assert said["clone3"] == "ENOSYS"


@pytest.mark.parametrize("name", ["sandbox", "zygote"])
def test_no_check_is_without_effect(policies, name):
    """Taking any check away lets something through that was refused: none is shadowed by another."""
    policy = policies[name]
    # What is told waits for an answer, and is no plain refusal.
    program = seccomp.compile_policy(policy, "x86_64", is_notifying=True)
    numbers = seccomp._syscall_numbers("x86_64")

    for index, check in enumerate(policy["check"]):
        poorer = copy.deepcopy(policy)
        del poorer["check"][index]
        if not any(other["call"] == check["call"] for other in poorer["check"]):
            continue

        without = seccomp.compile_policy(poorer, "x86_64", is_notifying=True)
        number = numbers[check["call"]]
        values = mentioned_values(policy, check["call"])
        assert any(
            run_filter(program, number, arguments) != run_filter(without, number, arguments)
            for arguments in argument_lists(policy, check["call"], values)
        ), check


def test_no_constant_is_unused(policies):
    """Every constant is used by a check, of this policy or of the one that extends it."""
    used = set()
    for policy in policies.values():
        for check in policy["check"]:
            for condition in check["when"]:
                used |= {condition.get("mask"), *condition.get("any_of", []), *condition.get("none_of", [])}

    assert set(policies["zygote"]["constants"]) <= used


def test_the_zygote_repeats_nothing():
    """The policy that extends another names only calls that it judges differently."""
    raw = seccomp.read_policy(os.path.join(seccomp.POLICIES, "sandbox.toml"))
    extended = seccomp.read_policy(os.path.join(seccomp.POLICIES, "zygote.toml"))
    before, after = seccomp.named_calls(raw), seccomp.named_calls(extended)
    changed = {call for call in after if before.get(call) != after[call]}

    assert changed == {
        "chroot",
        "clone",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "pivot_root",
        "seccomp",
        "sendfile",
        "setfsgid",
        "setfsuid",
        "setgid",
        "sethostname",
        "setns",
        "setregid",
        "setresgid",
        "setresuid",
        "setreuid",
        "setuid",
        "umount2",
        "unshare",
    }


def test_groups_are_sorted(policies):
    """Within a group the names are in order, so that a reader finds them and a diff shows one line."""
    policy = policies["sandbox"]
    groups = [
        *policy["allow"].values(),
        *(group for table in policy["refuse"].values() for group in table.values()),
    ]

    assert [group for group in groups if group != sorted(group)] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allow": {"a": ["opne"]}}, "'opne', which is no system call"),
        ({"allow": {"a": ["open"], "b": ["open"]}}, "'open' as 'allow' and as 'allow'"),
        ({"allow": {"a": ["open"]}, "refuse": {"EPERM": {"b": ["open"]}}}, "as 'allow' and as 'EPERM'"),
        ({"refuse": {"EPREM": {"b": ["open"]}}}, "'EPREM', which is no errno"),
        (
            {"check": [{"call": "open", "when": [{"argument": 6, "any_of": [1]}], "answer": "EPERM"}]},
            "no argument 6",
        ),
        (
            {"check": [{"call": "open", "when": [{"argument": 0}], "answer": "EPERM"}]},
            "one of any_of and none_of",
        ),
        ({"check": [{"call": "open", "when": [{"argument": 0, "any_of": ["X"]}], "answer": "EPERM"}]}, "'X'"),
        (
            {"check": [{"call": "open", "when": [{"argument": 0, "any_of": [-1]}], "answer": "EPERM"}]},
            "32 bits",
        ),
    ],
)
def test_mistakes_are_refused(change, message):
    """A misspelt or contradictory policy does not compile."""
    with pytest.raises(ValueError, match=message):
        seccomp.compile_policy({"unknown": "ENOSYS", **change})


def test_the_same_policy_has_the_same_digest(policies):
    """The digest names the filter: equal policies agree, different ones do not."""
    first, second = (seccomp.compile_policy(policies["sandbox"]) for _ in range(2))
    zygote = seccomp.compile_policy(policies["zygote"])

    assert seccomp.policy_digest(first) == seccomp.policy_digest(second) != seccomp.policy_digest(zygote)


# -- without namespaces

WITHOUT_NAMESPACES = {
    "landlock_only": "landlock_init",
    "landlock_own_user": "landlock_own_user_init",
}


def policy_of(name):
    return seccomp.read_policy(os.path.join(seccomp.POLICIES, f"{name}.toml"))


# There is no namespace in which an id could be mapped, and no capability to take another.
IDS = {"setfsgid", "setfsuid", "setgid", "setregid", "setresgid", "setresuid", "setreuid", "setuid"}


@pytest.mark.parametrize(("inner", "outer"), WITHOUT_NAMESPACES.items())
def test_what_guests_may_do_without_namespaces_our_processes_may_do(inner, outer):
    """Their filter lies over ours, and both refuse whatever one of them refuses."""
    guests, ours = (seccomp.compile_policy(policy_of(name), "x86_64") for name in (inner, outer))
    said = seccomp.named_calls(policy_of(inner))

    for call, number in seccomp._syscall_numbers("x86_64").items():
        values = mentioned_values(policy_of(inner), call) if said.get(call) == "check" else [0]
        for arguments in itertools.product(values, repeat=2):
            if run_filter(guests, number, arguments) == ALLOW:
                assert run_filter(ours, number, arguments) == ALLOW, (call, arguments)


@pytest.mark.parametrize("name", WITHOUT_NAMESPACES)
def test_nothing_is_allowed_for_want_of_namespaces(name):
    """What a sandbox with namespaces may not do, one without may not either."""
    plain, weaker = (policy_of("sandbox"), policy_of(name))
    program, without = (seccomp.compile_policy(policy, "x86_64") for policy in (plain, weaker))

    numbers = seccomp._syscall_numbers("x86_64")

    for call, number in ((call, numbers[call]) for call in numbers.keys() - IDS):
        values = sorted({*mentioned_values(plain, call), *mentioned_values(weaker, call)})
        for arguments in itertools.product(values, repeat=2):
            if run_filter(program, number, arguments) != ALLOW:
                assert run_filter(without, number, arguments) != ALLOW, (call, arguments)


def test_what_neither_landlock_nor_a_namespace_fences_is_refused():
    """Sockets with a name, metadata under the user's own id, and whatever acts on another process by its number."""
    said = seccomp.named_calls(policy_of("landlock_only"))
    program = seccomp.compile_policy(policy_of("landlock_only"), "x86_64")
    numbers = seccomp._syscall_numbers("x86_64")

    assert {
        said[call] for call in ("socket", "connect", "bind", "listen", "chmod", "fchmod", "utimensat")
    } == {
        "EAFNOSUPPORT",
        "EPERM",
    }
    assert said["pidfd_open"] == "ENOSYS"

    for call in ("prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"):
        assert run_filter(program, numbers[call], (0,)) == ALLOW
        assert run_filter(program, numbers[call], (4711,)) == answer("EPERM")

    assert run_filter(program, numbers["setpriority"], (0, 0)) == ALLOW
    assert run_filter(program, numbers["setpriority"], (0, 4711)) == answer("EPERM")
    assert run_filter(program, numbers["setpriority"], (2, 0)) == answer("EPERM")
    assert run_filter(program, numbers["sendto"], (3, 0, 0, 0, 0)) == ALLOW
    assert run_filter(program, numbers["sendto"], (3, 0, 0, 0, 1 << 40)) == answer("EPERM")
    assert run_filter(program, numbers["socketpair"], (1, 2)) == answer("EPERM")
