"""The probes of the scorecard: the attacker's program, arguments and judge for each row.

Each probe is harmless where it succeeds. Inside, a probe that succeeds is a failure; outside, it must succeed, or it
has proven nothing. A judge returns the successful attempts of an answer, which is data: of an unexpected one, only a
name is kept. A refused attempt is EPERM, or ENOSYS; any other errno of a system call means that the kernel has checked
the arguments, so the call was reached.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood_jail import mounts

Judge = Callable[[Any], list[str]]

_UNREACHED = {"EPERM", "ENOSYS"}
_ERRNOS = set(errno.errorcode.values())
_DEVICES = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_NO_WAY_OUT = {"ENETUNREACH", "EADDRNOTAVAIL", "EACCES", "EPERM", "EHOSTUNREACH"}


def reached(said: dict[str, str]) -> list[str]:
    """Return the calls that reached the kernel's argument check; `unchanged` is whether the state is as before."""
    got = [name for name, answer in said.items() if name != "unchanged" and answer not in _UNREACHED]
    return got if said.get("unchanged", "True") == "True" else [*got, "something has changed"]


def succeeded(said: dict[str, str]) -> list[str]:
    """Return the successful attempts."""
    return [name for name, answer in said.items() if answer == "ok"]


def lines_of(said: dict[str, str]) -> list[str]:
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


def opened_sockets(said: dict[str, str]) -> list[str]:
    """Return the sockets of unusual families, and the options that attach programs."""
    got = [name for name in ("mptcp", "sctp", "raw", "ping") if said[name] == "ok"]
    got += [name for name in ("classic filter", "bpf filter") if said[name] in ("EFAULT", "EINVAL", "EBADF")]

    for name, answer in said.items():
        family, _, kind = name.partition("/")

        if kind and answer == "ok" and (family not in ("1", "2", "10") or (kind == "3" and family != "1")):
            got.append(f"family {family}, kind {kind}")

    return got


def abis(said: dict[str, str]) -> list[str]:
    """Return the system call tables besides the native one that answered, and the weaker kinds of memory."""
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
    """Return a judge that reports the names whose value is at least `amount`."""

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


SECRETS_OF_THE_MACHINE = (
    *(f"/proc/{name}" for name in mounts.MASKED_PROC_FILES),
    "/proc/1/environ",
    "/proc/1/maps",
    "/proc/1/stack",
    "/sys/firmware/acpi/tables/DSDT",
    "/sys/kernel/notes",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/class/dmi/id/product_uuid",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/port",
)
SWITCHES_OF_THE_MACHINE = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/self/oom_score_adj",
    "/proc/self/uid_map",
    "/proc/self/loginuid",
    "/proc/self/attr/current",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
)
# Addresses reserved for documentation, and groups of the local network: no host is disturbed.
ELSEWHERE = (
    ("tcp", "192.0.2.1", 80),
    ("tcp", "2001:db8::1", 80),
    ("udp", "192.0.2.1", 53),
    ("udp", "2001:db8::1", 443),
    ("udp", "224.0.0.251", 5353),
    ("udp", "255.255.255.255", 67),
)
METADATA = (
    ("tcp", "169.254.169.254", 80),
    ("tcp", "fd00:ec2::254", 80),
    ("tcp", "169.254.170.2", 80),
    ("tcp", "168.63.129.16", 80),
    ("tcp", "100.100.100.200", 80),
)
_PATIENCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Scene:
    """The host's preparations for the probes.

    Attributes:
        host_pid: A process of the host.
        other_pid: A process of the place itself other than the probe: 1 inside.
        secret: A text in the environment of the host process, and nowhere else.
        sockets: Addresses of UNIX sockets that the host listens on.
        system: Folders that must be read-only, by their paths inside.
        scratch: A writable folder.
        refused: The errno that the policy returns for each system call, by name.
    """

    host_pid: int
    other_pid: int
    secret: str
    sockets: tuple[str, ...]
    system: tuple[str, ...]
    scratch: str
    refused: dict[str, str]


Arguments = Callable[[Scene], Sequence[Any]]


def _none(_scene: Scene) -> Sequence[Any]:
    return ()


@dataclass(frozen=True, slots=True)
class Probe:
    """One attempt at a row.

    Attributes:
        row: The id of the row.
        name: The probe in the attacker's program.
        judge: Returns the successful attempts in the answer.
        arguments: Its arguments, from the scene.
        tight: Whether it runs in a sandbox with tight limits.
        ours: Whether only a sandbox of this product can answer it.
        needs: A layer of isolation that must be on for the attempt to be harmless to the machine.
    """

    row: str
    name: str
    judge: Judge
    arguments: Arguments = field(default=_none)
    tight: bool = False
    ours: bool = False
    needs: str = ""


def _calls(table: str) -> Arguments:
    return lambda _scene: (table,)


def _given(*arguments: Any) -> Arguments:
    return lambda _scene: arguments


PROBES: tuple[Probe, ...] = (
    Probe("K01", "privileges", privileged),
    Probe("K02", "namespaces", reached),
    Probe("K03", "calls", reached, _calls("MOUNT_CALLS")),
    Probe("K03", "real_mounts", reached),
    Probe("K04", "calls", reached, _calls("IO_URING_CALLS")),
    Probe("K05", "calls", reached, _calls("EXOTIC_CALLS")),
    Probe("K05", "calls", reached, _calls("PAGE_CACHE_CALLS")),
    Probe("K06", "calls", reached, _calls("KEYRING_CALLS")),
    Probe("K06", "read_paths", lines_of, _given(["/proc/keys", "/proc/key-users"])),
    Probe("K07", "other_memory", of_others, lambda scene: (scene.other_pid,)),
    Probe("K08", "calls", reached, _calls("MACHINE_CALLS")),
    Probe("K09", "file_handles", handles),
    Probe("K10", "socket_families", opened_sockets),
    Probe("K11", "foreign_abis", abis),
    Probe("K12", "declared_calls", any_of, lambda scene: (scene.refused,), ours=True),
    Probe("K13", "terminals", typed),
    Probe("K15", "read_paths", lines_of, _given(SECRETS_OF_THE_MACHINE)),
    Probe("K15", "open_for_writing", succeeded, _given(SWITCHES_OF_THE_MACHINE)),
    Probe("K17", "devices", devices, lambda scene: (scene.scratch,)),
    Probe("F01", "open_system", succeeded, lambda scene: (scene.system,)),
    Probe("F02", "unbounded_mounts", any_of),
    Probe("F03", "words_of_the_host", any_of, lambda scene: ([scene.secret],)),
    Probe("P01", "other_processes", foreign_processes, lambda scene: ([scene.host_pid],)),
    Probe("P05", "words_in_processes", any_of, lambda scene: ([scene.secret],)),
    Probe("P06", "reach", succeeded, lambda scene: (scene.sockets,)),
    Probe("N01", "go_out", went_out, _given(ELSEWHERE, _PATIENCE_SECONDS)),
    Probe("N01", "interfaces", networks),
    Probe("N09", "go_out", went_out, _given(METADATA, _PATIENCE_SECONDS)),
    Probe("F11", "fill", whole(32 << 20, "written"), lambda scene: (scene.scratch, 32), tight=True),
    Probe(
        "F11",
        "fill_with_files",
        whole(2000, "count"),
        lambda scene: (scene.scratch, 2000),
        tight=True,
    ),
    Probe("R01", "take_memory", ended_well, _given(256), tight=True, needs="cgroup memory"),
    Probe("R02", "start_processes", whole(100, "count"), _given(100), tight=True),
    Probe("R02", "raise_limits", raised, tight=True),
    Probe("R02", "take_precedence", succeeded, tight=True),
    Probe("R09", "core_limit", cores),
    Probe("R10", "kernel_objects", whole(80, "inotify", "terminals"), _given(80), tight=True),
)
