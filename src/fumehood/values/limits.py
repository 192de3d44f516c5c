"""The limits of a sandbox (`Limits`) and the usage of an execution (`Usage`): same words, units in the names.

Plain values of the host process. Nothing is enforced here. A `Limits` that exists is valid: zero, negative, NaN, absurd
and wrongly typed values are refused when it is made, so no other module checks them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields
from difflib import get_close_matches
from inspect import signature
from typing import Any, TypeAlias, TypedDict

from fumehood.bounds import BOUNDS, GIB, MIB, Bound, read_size
from fumehood.errors import InvalidArgumentError
from fumehood.text import visible_line
from fumehood.tracebacks import of_the_caller

# Limits that can be given as a size as well, under these names.
_SIZES = ("memory", "disk")
_NAMES = (*BOUNDS, *_SIZES)

# A wrong name of fewer letters begins too many.
_SHORTEST_BEGINNING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a sandbox and of each execution in it.

    Attributes:
        wall_seconds: Time of one execution. At its end the code is interrupted; `run_code(timeout=...)`
            replaces it for one call. 30 s, not E2B's 300: a loop that hangs should be known soon.
        cpu_seconds: CPU time of one execution and its children together; None means that only `wall_seconds` applies.
        memory_bytes: Memory of the whole sandbox, including files that its code writes, since they are kept in memory.
            Uploaded files do not count. Without cgroups files do not count.
        processes: Processes and threads of the whole sandbox.
        cpu_cores: CPU share of the whole sandbox; None means no bound. Not enforced without cgroups.
        open_files: Open files of each process.
        disk_bytes: Bytes of all writable mounts together.
        inodes: Files and directories of all writable mounts together.
        stdout_bytes: Standard output kept of one execution or command; the rest is counted and dropped.
        stderr_bytes: The same for standard error.
        result_bytes: Size of one result, all its formats together; a larger format is left out, and its name is
            reported.
        result_count: Results kept of one execution.
        grace_seconds: Time between the interrupt and the kill of code that does not stop.
        memory: Only an argument: a size such as "2G", in place of `memory_bytes`.
        disk: Only an argument: a size such as "2G", in place of `disk_bytes`.
    """

    wall_seconds: float = 30.0
    cpu_seconds: float | None = None
    memory_bytes: int = 1 * GIB
    processes: int = 128
    cpu_cores: float | None = None
    open_files: int = 1024
    disk_bytes: int = 512 * MIB
    inodes: int = 65_536
    stdout_bytes: int = 1 * MIB
    stderr_bytes: int = 1 * MIB
    result_bytes: int = 10 * MIB
    result_count: int = 100
    grace_seconds: float = 1.0
    memory: InitVar[str | int | None] = None
    disk: InitVar[str | int | None] = None

    def __post_init__(self, memory: str | int | None, disk: str | int | None) -> None:
        for name, size in (("memory", memory), ("disk", disk)):
            if size is not None:
                self._take_size(name, size)

        for field in fields(self):
            self._check(field.name)

    def _check(self, name: str) -> None:
        value, bound = getattr(self, name), BOUNDS[name]
        size = name.removesuffix("_bytes")

        if isinstance(value, str) and size in _SIZES:
            allowed = f"{bound.describe()}; {size}={visible_line(repr(value))} takes a size"
            raise InvalidArgumentError(field=f"limits.{name}", value=value, allowed=allowed)

        check_bound(f"limits.{name}", value, bound)

    def _take_size(self, name: str, size: object) -> None:
        field = f"{name}_bytes"

        if getattr(self, field) != Limits.__dataclass_fields__[field].default:
            raise InvalidArgumentError(
                field=f"limits.{name}", value=size, allowed=f"nothing beside limits.{field}"
            )

        given = read_size(size) if isinstance(size, str) else size
        bound = BOUNDS[field]

        if not bound.allows(given) or given is None:
            allowed = f"a size such as '512M' or '2G', or {bound.describe()}"
            raise InvalidArgumentError(field=f"limits.{name}", value=size, allowed=allowed)

        object.__setattr__(self, field, given)


LimitsChoice: TypeAlias = Limits | Mapping[str, Any]


class LimitFields(TypedDict, total=False):
    """The limits that can be named one by one, as in `Sandbox(memory="2G")`; see `Limits`."""

    wall_seconds: float
    cpu_seconds: float | None
    memory_bytes: int
    processes: int
    cpu_cores: float | None
    open_files: int
    disk_bytes: int
    inodes: int
    stdout_bytes: int
    stderr_bytes: int
    result_bytes: int
    result_count: int
    grace_seconds: float
    memory: str | int
    disk: str | int


def read_limits(
    value: LimitsChoice | None,
    named: Mapping[str, Any] | None = None,
    *,
    called: Callable[..., object] | None = None,
) -> Limits:
    """Return the limits of a caller, which may give them as one value, one by one by name, or both.

    Args:
        value: The limits, as one value.
        named: Limits by name, which replace those in `value`.
        called: The function that took `named`; a wrong name may be meant for one of its own arguments.

    Raises:
        InvalidArgumentError: A name or a value is refused.
        TypeError: A name in `named` is not that of a limit.
    """
    if named:
        _check_names(named, called)
        known = read_limits(value)
        # A size replaces the bytes of that name.
        kept = {
            one.name: getattr(known, one.name)
            for one in fields(known)
            if one.name.removesuffix("_bytes") not in named
        }
        return Limits(**{**kept, **named})

    if isinstance(value, Limits):
        return value

    if value is None:
        return Limits()

    if not isinstance(value, Mapping):
        allowed = "Limits(memory='2G'), or a mapping such as {'memory': '2G'}"
        raise InvalidArgumentError(field="limits", value=value, allowed=allowed)

    for name in value:
        if name not in _NAMES:
            allowed = f"the names {', '.join(_NAMES)}{_meant(name)}"
            raise InvalidArgumentError(field="limits", value=name, allowed=allowed)

    return Limits(**value)


def _check_names(named: Mapping[str, Any], called: Callable[..., object] | None) -> None:
    """Refuses an argument that is not a limit with the error that Python raises for an unknown argument."""
    for name in named:
        if name not in _NAMES:
            message = (
                f"unexpected keyword argument {name!r}: it is no argument, and no limit such as memory='2G'"
                f"{_meant(name, (*_arguments(called), *_NAMES))}"
            )
            raise of_the_caller(TypeError(message))


def _arguments(called: Callable[..., object] | None) -> list[str]:
    """Returns the names of a function's own arguments; read only once a name is wrong."""
    if called is None:
        return []

    taken = signature(called).parameters.values()
    return [one.name for one in taken if one.kind is not one.VAR_KEYWORD and one.name != "self"]


def _meant(name: object, known: Sequence[str] = _NAMES) -> str:
    """Returns a question with the similar name, or with the few names that begin with this one, such as `cpu`."""
    word = str(name).lower()
    near = get_close_matches(word, known, n=1)

    if not near and len(word) >= _SHORTEST_BEGINNING:
        near = [one for one in known if one.startswith(word)]

    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def check_seconds(field: str, value: object, *, optional: bool = True, high: float = 86_400 * 365) -> None:
    """Raise InvalidArgumentError unless `value` is a positive number of seconds, or None where allowed."""
    check_bound(field, value, Bound(0.001, high, "seconds", whole=False, optional=optional))


def check_bound(field: str, value: object, bound: Bound) -> None:
    """Raise InvalidArgumentError unless `bound` allows `value`."""
    if not bound.allows(value):
        raise InvalidArgumentError(field=field, value=value, allowed=bound.describe())


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The resources that one execution has used.

    Attributes:
        wall_seconds: Time from its start in the context to its end, measured by the host.
        user_cpu_seconds: CPU time in user code, by the control group's count of the whole sandbox; without a control
            group, as the context reports it for itself and its children.
        system_cpu_seconds: CPU time in the kernel, likewise.
        peak_memory_bytes: Peak memory of the whole sandbox during the execution, by its control group (version 2 before
            kernel 6.12: since its start); without a control group, the largest resident memory of the context so far.
        bytes_in: Code and answers sent into the sandbox.
        bytes_out: Output, results and errors that came out, before anything was cut off by the host.
    """

    wall_seconds: float = 0.0
    user_cpu_seconds: float = 0.0
    system_cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
