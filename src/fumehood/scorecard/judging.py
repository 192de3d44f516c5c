"""Judges of a probe's answer: each returns the successful attempts.

Pure functions of the host process. The answer of a probe is data: of an unexpected one, only a name is kept. A refused
attempt is EPERM, or ENOSYS; any other errno of a system call means that the kernel has checked the arguments, so the
call was reached.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import Any

Judge = Callable[[Any], list[str]]

_UNREACHED = {"EPERM", "ENOSYS"}
_ERRNOS = set(errno.errorcode.values())
_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NO_WAY_OUT = {"ENETUNREACH", "EADDRNOTAVAIL", "EACCES", "EPERM", "EHOSTUNREACH"}


def reached(said: dict[str, str]) -> list[str]:
    """Return the calls that reached the kernel's argument check; `unchanged` says whether the state is as before."""
    got = [name for name, answer in said.items() if name != "unchanged" and answer not in _UNREACHED]
    return got if said.get("unchanged", "True") == "True" else [*got, "something has changed"]


def succeeded(said: dict[str, str]) -> list[str]:
    """Return the successful attempts."""
    return [name for name, answer in said.items() if answer == "ok"]


def told(said: dict[str, str]) -> list[str]:
    """Return the readable paths with content."""
    return [path for path, answer in said.items() if answer and answer not in _ERRNOS]


def any_of(said: dict[str, str]) -> list[str]:
    """Return everything that was found: there should be nothing."""
    return [f"{name}: {answer}" if answer != "ok" else name for name, answer in said.items()]


def privileged(said: dict[str, Any]) -> list[str]:
    """Return the remaining privileges."""
    got = ["the id in reserve"] * (said["id in reserve"] == "ok")

    for who in ("process", "thread"):
        status = said[who]
        got += [f"{name} of the {who}" for name in _CAPABILITIES if int(status[name], 16)]
        got += [f"{who}: new privileges"] * (status["NoNewPrivs"] != "1")
        got += [f"{who}: no system call filter"] * (status["Seccomp"] != "2")
        got += [f"{who}: root"] * ("0" in status["Uid"].split() or "0" in status["Gid"].split())

    return got


def of_others(said: dict[str, str]) -> list[str]:
    """Return the attempts that reached the memory of another process; its number of descriptors does not count."""
    files = {name: answer for name, answer in said.items() if name.startswith("/") and name != "/fd"}
    calls = {name: answer for name, answer in said.items() if not name.startswith("/")}
    return reached(calls) + [f"/proc/PID{name}" for name in succeeded(files)]


def handles(said: dict[str, str]) -> list[str]:
    """Return the ways by which a handle was opened, or looked up."""
    return [name for name in ("open", "crafted") if said[name] not in _UNREACHED]


def sockets(said: dict[str, str]) -> list[str]:
    """Return the sockets of unusual families, and the options that attach programs."""
    got = [name for name in ("mptcp", "sctp", "raw", "ping") if said[name] == "ok"]
    got += [name for name in ("classic filter", "bpf filter") if said[name] in ("EFAULT", "EINVAL", "EBADF")]

    for name, answer in said.items():
        family, _, kind = name.partition("/")

        if kind and answer == "ok" and (family not in ("1", "2", "10") or (kind == "3" and family != "1")):
            got.append(f"family {family}, kind {kind}")

    return got


def abis(said: dict[str, str]) -> list[str]:
    """Return the other system call tables that answered, and the weaker kinds of memory."""
    return [name for name, answer in said.items() if answer == "ok" and name != "query"]


def typed(said: dict[str, str]) -> list[str]:
    """Return the ways by which input can be injected into a terminal, or the terminal controlled."""
    return [name for name in ("TIOCSTI", "TIOCSETD") if said[name] == "ok"] + [
        name for name in ("TIOCLINUX",) if said[name] != "EPERM"
    ]


def opened(said: dict[str, Any]) -> list[str]:
    """Return the descriptors beyond 0 to 2 that the process has not made itself.

    A context has its channel at 3, whose other end is not visible to it.
    """
    got = []

    for number, entry in said["open"].items():
        is_own = entry["leads_to"].startswith("anon_inode:") or entry.get("peer_pid", 0) > 0
        is_channel = number == "3" and entry["kind"] == "s"

        if int(number) > 2 and not is_own and not is_channel:
            got.append(f"{number}: {entry['leads_to']}")

    return got


def devices(said: dict[str, Any]) -> list[str]:
    """Return the devices beyond the harmless ones, and those that could be made."""
    got = [f"/dev/{name}" for name in said["character"] if name not in _DEVICES]
    got += [f"/dev/{name}" for name in said["block"]]
    return got + [name for name in ("mknod character", "mknod block") if said[name] == "ok"]


def foreign_processes(said: dict[str, Any]) -> list[str]:
    """Return the processes of the host that could be signalled or opened."""
    return [verb for verb in ("signal", "pidfd") if "ok" in said[verb].values()]


def went_out(said: dict[str, Any]) -> list[str]:
    """Return the reachable addresses."""
    return [target for target, (answer, _) in said.items() if answer not in _NO_WAY_OUT]


def networks(said: dict[str, Any]) -> list[str]:
    """Return the interfaces beside the loopback, the routes, and whether netlink reports them."""
    got = [f"interface {name}" for name in said["names"] if name != "lo"]
    return got + [f"route by {name}" for name in said["routes"]]


def whole(amount: int, *names: str) -> Judge:
    """Return a judge for amounts: those that were reached completely."""

    def judge(said: dict[str, Any]) -> list[str]:
        return [f"{name}: {said[name]}" for name in names if said[name] >= amount]

    return judge


def cores(hard: int) -> list[str]:
    """Return whether core files may be written."""
    return [] if hard in (0, 1) else [f"a core file of {'any size' if hard < 0 else f'{hard} bytes'}"]


def raised(said: dict[str, str]) -> list[str]:
    """Return the limits that can be raised, or that are missing."""
    return [f"{name} {answer}" for name, answer in said.items() if answer in ("raised", "unlimited")]


def ended_well(answer: str) -> list[str]:
    """Return the attempt if it succeeded."""
    return [answer] if answer == "ok" else []


def first(found: Iterable[str], most: int = 4) -> str:
    """Return the first items, and how many more there are."""
    listed = list(found)
    more = f", and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
