"""Seccomp: compiles a policy into a BPF filter, and loads one.

The host compiles (`compile_policy` needs Python 3.11 for TOML); the zygote and the init of a sandbox only `load` the
bytes that they receive. The policy itself is data, in `policies/`: this module interprets it and must never add an
exception of its own.

The invariant to keep in mind: a filter is default-deny. A number that the policy does not name gets its `unknown`
answer, another architecture's entry is fatal, and x32 numbers are simply unknown.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import struct

from fumehood_jail import call_numbers, syscalls
from fumehood_jail.errors import JailError

# A policy is the parsed TOML file; its shape is checked where it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Policy = dict[str, Any]
    Instruction = tuple[int, int, int, int]
    Code = tuple[Instruction, ...]

POLICIES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "policies")

# include/uapi/linux/audit.h
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# include/uapi/linux/bpf_common.h
_LOAD = 0x20  # LD | W | ABS
_AND = 0x54  # ALU | AND | K
_JUMP = 0x05  # JMP | JA
_JUMP_EQUAL = 0x15  # JMP | JEQ | K
_JUMP_GREATER_OR_EQUAL = 0x35  # JMP | JGE | K
_RETURN = 0x06  # RET | K
_FARTHEST = 255
_MOST_INSTRUCTIONS = 4096

# include/uapi/linux/seccomp.h: what a filter returns, and struct seccomp_data that it reads.
_RET_KILL_PROCESS = 0x80000000
_RET_ERRNO = 0x00050000
_RET_USER_NOTIF = 0x7FC00000
_RET_ALLOW = 0x7FFF0000
_DATA_NR = 0
_DATA_ARCH = 4
_DATA_ARGS = 16


def load(program: bytes) -> None:
    """Loads a compiled filter into this process, irrevocably.

    Before: no_new_privs is set, and all calls that the filter refuses have been made. After: every thread and every
    later child is filtered.
    """
    _load(program, syscalls.SECCOMP_FILTER_FLAG_TSYNC)


def load_notifying(program: bytes) -> int:
    """Loads a filter that was compiled with `is_notifying`, and returns the descriptor of its listener.

    Before: as for `load`, and this is the only thread. The process that holds the listener answers the calls of
    `[tell]`; once no process holds it they return ENOSYS.

    Raises:
        OSError: EBUSY, because a filter that this process inherited has a listener already: nothing was loaded.
    """
    return _load(program, syscalls.SECCOMP_FILTER_FLAG_NEW_LISTENER)


def _load(program: bytes, flags: int) -> int:
    try:
        return syscalls.seccomp_set_filter(program, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise

        raise JailError(
            "seccomp",
            error.errno or 0,
            f"cannot load a filter of {len(program) // 8} instructions",
            "The kernel needs CONFIG_SECCOMP_FILTER, and a container must permit the seccomp system call.",
        ) from error


def compile_policy(
    policy: str | Policy, machine: str = call_numbers.MACHINE, *, is_notifying: bool = False
) -> bytes:
    """Compiles a policy into a BPF program.

    Args:
        policy: The path of a TOML file, or what `read_policy` returned.
        machine: The architecture that the filter is for, as in uname(2).
        is_notifying: Whether the calls of `[tell]` wait for the answer of a listener, instead of being refused at once.

    Returns:
        An array of struct sock_filter, ready for `load`.

    Raises:
        ValueError: The policy names something unknown, or gives two answers for one call.
    """
    if isinstance(policy, str):
        policy = read_policy(policy)

    numbers = _syscall_numbers(machine)
    tell = ((_RETURN, 0, 0, _RET_USER_NOTIF),) if is_notifying else _refusal("EPERM")
    answers = _answers(policy, tell)
    notified = _notified_calls(policy)

    if is_notifying:
        answers.update(dict.fromkeys(notified, tell))

    code = (
        (_LOAD, 0, 0, _DATA_ARCH),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _RET_KILL_PROCESS),
        (_LOAD, 0, 0, _DATA_NR),
        *_search(
            _intervals({numbers[name]: code for name, code in answers.items() if name in numbers}, policy)
        ),
    )
    if len(code) > _MOST_INSTRUCTIONS:
        raise ValueError(f"the policy takes {len(code)} instructions, the kernel {_MOST_INSTRUCTIONS}")

    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def read_policy(path: str) -> Policy:
    """Reads a policy file together with the one that it extends.

    Returns:
        The policy without `extends`: an entry for a call in the file replaces the one in the extended policy.
    """
    policy = dict(_read_file(path))
    base_name = policy.pop("extends", None)
    if base_name is None:
        return policy

    base = read_policy(os.path.join(os.path.dirname(path), f"{base_name}.toml"))
    return _extend(base, policy)


@functools.cache
def _read_file(path: str) -> Policy:
    """Returns one parsed file; cached, because the policy of zygotes extends that of sandboxes."""
    import tomllib  # Python 3.11: the host has it, a template's older Python does not and never compiles

    with open(path, "rb") as file:
        return tomllib.load(file)


def notified_calls(policy: str | Policy, machine: str = call_numbers.MACHINE) -> dict[int, str]:
    """Returns the calls that a listener answers, by their numbers."""
    if isinstance(policy, str):
        policy = read_policy(policy)

    numbers = _syscall_numbers(machine)
    checked = [check["call"] for check in policy.get("check", []) if check["answer"] == "TELL"]
    return {numbers[name]: name for name in [*_notified_calls(policy), *checked] if name in numbers}


def known_calls(machine: str = call_numbers.MACHINE) -> set[str]:
    """Returns the names of all calls that a policy for this machine may name."""
    return set(_syscall_numbers(machine))


def policy_digest(program: bytes) -> str:
    """Returns the SHA-256 of a compiled filter in hex, which identifies it."""
    import hashlib  # only reports need it; it would cost the guest's start a millisecond

    return hashlib.sha256(program).hexdigest()


def named_calls(policy: Policy) -> dict[str, str]:
    """Returns how a policy treats each system call that it names.

    Returns:
        By the name of the call: `"allow"`, `"check"`, or the name of the errno with which it is refused.

    Raises:
        ValueError: A call is named twice, or is known on no machine.
    """
    said: dict[str, str] = {}
    known = {name for machine in _AUDIT_ARCH for name in _syscall_numbers(machine)}
    checked = {check["call"] for check in policy.get("check", [])}
    groups = [("allow", calls) for calls in policy.get("allow", {}).values()]
    groups += [
        (errno_name, calls)
        for errno_name, table in policy.get("refuse", {}).items()
        for calls in table.values()
    ]
    groups.append(("check", sorted(checked)))
    for verdict, calls in groups:
        for call in calls:
            if call not in known:
                raise ValueError(f"the policy names {call!r}, which is no system call")

            if call in said:
                raise ValueError(f"the policy names {call!r} as {said[call]!r} and as {verdict!r}")

            said[call] = verdict

    return said


def _extend(base: Policy, policy: Policy) -> Policy:
    replaced = set(named_calls(policy))
    return {
        "unknown": policy.get("unknown", base["unknown"]),
        "constants": {**base.get("constants", {}), **policy.get("constants", {})},
        "allow": {**_without(base.get("allow", {}), replaced), **_prefixed(policy.get("allow", {}))},
        "refuse": {
            errno_name: {
                **_without(base.get("refuse", {}).get(errno_name, {}), replaced),
                **_prefixed(policy.get("refuse", {}).get(errno_name, {})),
            }
            for errno_name in {**base.get("refuse", {}), **policy.get("refuse", {})}
        },
        "check": [check for check in base.get("check", []) if check["call"] not in replaced]
        + policy.get("check", []),
        "tell": policy.get("tell", {}),
    }


def _notified_calls(policy: Policy) -> list[str]:
    """Returns the calls of `[tell]`; each must also be refused with EPERM, for processes without a listener."""
    calls: list[str] = policy.get("tell", {}).get("calls", [])
    said = named_calls(policy)
    for call in calls:
        if said.get(call) != "EPERM":
            raise ValueError(f"the policy tells of {call!r}, which it does not refuse with EPERM")

    return calls


def _without(groups: dict[str, list[str]], replaced: set[str]) -> dict[str, list[str]]:
    return {group: [call for call in calls if call not in replaced] for group, calls in groups.items()}


def _prefixed(groups: dict[str, list[str]]) -> dict[str, list[str]]:
    """Keeps a group of an extending policy apart from the group of the same name that it extends."""
    return {f"+{group}": calls for group, calls in groups.items()}


@functools.cache
def _syscall_numbers(machine: str) -> dict[str, int]:
    if machine not in _AUDIT_ARCH:
        raise ValueError(f"no system call table for {machine!r}")

    with open(os.path.join(POLICIES, f"syscalls_{machine}.json"), encoding="ascii") as file:
        numbers: dict[str, int] = json.load(file)

    return numbers


def _answers(policy: Policy, tell: Code) -> dict[str, Code]:
    """Compiles the answer for each call into the code that runs when the number has matched."""
    answers: dict[str, Code] = {}
    for call, verdict in named_calls(policy).items():
        if verdict == "allow":
            answers[call] = ((_RETURN, 0, 0, _RET_ALLOW),)
        elif verdict == "check":
            checks = [check for check in policy["check"] if check["call"] == call]
            answers[call] = _checks(checks, policy.get("constants", {}), tell)
        else:
            answers[call] = _refusal(verdict)

    return answers


def _refusal(errno_name: str) -> Code:
    """Compiles an answer given in place of the call: an errno, or `SUCCESS`, which is the errno 0."""
    number = 0 if errno_name == "SUCCESS" else getattr(errno, errno_name, None)
    if not isinstance(number, int):
        raise ValueError(f"the policy answers {errno_name!r}, which is no errno")

    return ((_RETURN, 0, 0, _RET_ERRNO | number),)


def _checks(checks: list[Policy], constants: dict[str, int], tell: Code) -> Code:
    """Compiles the checks of one call, first match first; without a match the call is allowed."""
    code: Code = ()
    for check in checks:
        clause = tell if check["answer"] == "TELL" else _refusal(check["answer"])
        for condition in reversed(check["when"]):
            clause = _condition(condition, constants, len(clause)) + clause

        code += clause

    return (*code, (_RETURN, 0, 0, _RET_ALLOW))


def _condition(condition: Policy, constants: dict[str, int], clause_length: int) -> Code:
    """Compiles one condition: falls through when it holds, jumps over the rest of its clause when not."""
    unknown_keys = set(condition) - {"argument", "upper_half", "mask", "any_of", "none_of"}
    if unknown_keys or ("any_of" in condition) == ("none_of" in condition):
        raise ValueError(f"a condition has argument, mask and one of any_of and none_of: {condition!r}")

    if not 0 <= condition["argument"] <= 5:
        raise ValueError(f"a system call has no argument {condition['argument']!r}")

    # Both machines are little-endian: the low word of an argument comes first.
    word = _DATA_ARGS + 8 * condition["argument"] + (4 if condition.get("upper_half") else 0)
    code: list[Instruction] = [(_LOAD, 0, 0, word)]
    if "mask" in condition:
        code.append((_AND, 0, 0, _constant(condition["mask"], constants)))

    holds_on_match = "any_of" in condition
    listed = condition["any_of"] if holds_on_match else condition["none_of"]
    values = [_constant(value, constants) for value in listed]
    for index, value in enumerate(values):
        to_clause = len(values) - 1 - index
        if not holds_on_match:
            code.append(_compare(value, to_clause + clause_length, 0))
        elif index < len(values) - 1:
            code.append(_compare(value, to_clause, 0))
        else:
            code.append(_compare(value, 0, clause_length))

    return tuple(code)


def _compare(value: int, on_match: int, otherwise: int) -> Instruction:
    if max(on_match, otherwise) > _FARTHEST:
        raise ValueError("a check jumps farther than BPF can")

    return (_JUMP_EQUAL, on_match, otherwise, value)


def _constant(value: str | int, constants: dict[str, int]) -> int:
    if isinstance(value, str):
        if value not in constants:
            raise ValueError(f"the policy has no constant {value!r}")

        value = constants[value]

    if not 0 <= value < 2**32:
        raise ValueError(f"a check compares 32 bits, not {value:#x}")

    return value


def _intervals(codes: dict[int, Code], policy: Policy) -> list[tuple[int, Code]]:
    """Cuts the range of all call numbers where the answer changes.

    Returns:
        Pairs of a first number and the code for it and all up to the next pair's.
    """
    unknown = _refusal(policy["unknown"])
    intervals = [(0, codes.get(0, unknown))]
    for number in range(1, max(codes) + 2):
        code = codes.get(number, unknown)
        if code != intervals[-1][1]:
            intervals.append((number, code))

    return intervals


def _search(intervals: list[tuple[int, Code]]) -> Code:
    """Compiles a binary search for the interval that the loaded number lies in."""
    if len(intervals) == 1:
        return intervals[0][1]

    middle = len(intervals) // 2
    left = _search(intervals[:middle])
    right = _search(intervals[middle:])
    first = intervals[middle][0]
    if len(left) <= _FARTHEST:
        return ((_JUMP_GREATER_OR_EQUAL, len(left), 0, first), *left, *right)

    return ((_JUMP_GREATER_OR_EQUAL, 0, 1, first), (_JUMP, 0, 0, len(left)), *left, *right)
