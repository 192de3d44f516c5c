"""Entering: the host has a process that moves into a forked sandbox enter its namespaces, one call after the other.

Runs in a thread of the host process, for some hundred microseconds. Who owns the namespaces of forks has power over
all of them, and who enters one has every capability there: the process is lent that id, and until it has given up
all of it again runs none of its own instructions. It is held from outside, makes the calls that are listed here, and
goes on as the fork's user, who may do no more than any other, or ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fumehood.fork_errors import ForkError
from fumehood.runtimes.linux_refusals import RefusedCalls
from fumehood.runtimes.linux_status import ids_of, is_confined
from fumehood_jail import caps, syscalls
from fumehood_jail.launch import GUEST_UID, MOVER_UID
from fumehood_jail.tracing import HeldProcess

STEP = "move a process into the fork"
_UNCHANGED = (1 << 64) - 1
_ARGUMENTS = 6
# What it is in itself does not change; what it forks is born elsewhere.
_LINKS = {"pid": "pid_for_children"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process is to go.

    Attributes:
        namespaces: Their names, in the order in which they are entered, and what the kernel says of each.
        ids: What the kernel is to say of user and group there, without saved ones.
        has_movers: Whether an id that no guest code has owns them.
        admit: Brings a process into the control groups there. It is never let in by a descriptor: what can write to
            one can bring others in, of earlier forks as well.
    """

    namespaces: Mapping[str, os.stat_result]
    ids: Sequence[Sequence[bytes]]
    has_movers: bool
    admit: Callable[[int], None]


def enter(pid: int, origin: RefusedCalls, fds: Sequence[int], place: Place) -> bool:
    """Has a process that waits for it enter namespaces and become a guest's user there, without capabilities.

    Args:
        pid: The process.
        origin: Lets it make the calls.
        fds: Its descriptors of the namespaces.
        place: Where they lead.

    Returns:
        Whether it waited; else nothing was done, and it will wait again.

    Raises:
        ForkError: It is not there, and has ended; or the kernel does not let it be held.
    """
    try:
        held = HeldProcess(pid)
    except OSError as error:
        raise _as_fork_error("trace the process that moves into the fork", error) from None

    try:
        if not held.is_stopped_in("setns"):
            return False

        for name, *some in _calls(
            fds, place, held.lay(syscalls.CAPSET_HEADER + bytes(syscalls.CAPSET_BYTES))
        ):
            arguments = (*some, *[0] * (_ARGUMENTS - len(some)))
            origin.order(pid, name, arguments)
            held.call(name, arguments)

        _check(pid, place)
        # What it forks is born there; and as long as it is held, nobody else has its number.
        place.admit(pid)
        held.let_go(0)
        return True
    except BaseException as error:
        held.end()

        if isinstance(error, OSError):
            raise _as_fork_error(STEP, error) from None

        raise


def _as_fork_error(step: str, error: OSError) -> ForkError:
    if isinstance(error, ProcessLookupError):
        return ForkError(step=step, reason="it ended")

    return ForkError.from_errno(step, error.errno or 0)


def _calls(fds: Sequence[int], place: Place, nothing: int) -> Iterator[tuple[str, *tuple[int, ...]]]:
    """The calls that it makes, in this order; `nothing` is the address of a set of capabilities that has none."""
    user, *others = fds

    if place.has_movers:
        yield "setresuid", _UNCHANGED, MOVER_UID, _UNCHANGED

    # The descriptor may be another by now, of an earlier fork: nothing is done there, and it is seen in the end.
    yield "setns", user
    yield "setresgid", GUEST_UID, GUEST_UID, GUEST_UID
    yield "setresuid", GUEST_UID, GUEST_UID, MOVER_UID if place.has_movers else GUEST_UID

    for fd in others:
        yield "setns", fd

    yield "prctl", syscalls.PR_SET_SECUREBITS, caps.SECUREBITS

    for capability in caps.KNOWN:
        yield "prctl", syscalls.PR_CAPBSET_DROP, capability

    yield "capset", nothing, nothing + len(syscalls.CAPSET_HEADER)
    # A change of user sets this anew, as fs.suid_dumpable says.
    yield "prctl", syscalls.PR_SET_DUMPABLE, 0


def _check(pid: int, place: Place) -> None:
    """Asks the kernel where it is, as whom, and what it may do."""
    for name, expected in place.namespaces.items():
        found = os.stat(f"/proc/{pid}/ns/{_LINKS.get(name, name)}")

        if not os.path.samestat(found, expected):
            raise ForkError(step=STEP, reason=f"the kernel says that it is in another {name} namespace")

    if ids_of(pid) != place.ids:
        raise ForkError(step=STEP, reason="the kernel says that it has another user")

    if not is_confined(pid):
        raise ForkError(step=STEP, reason="the kernel says that it is not confined as a context must be")
