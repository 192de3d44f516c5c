"""The probes of the scorecard: the attacker's program, arguments and judge for each row.

Data of the host process. Each probe is harmless where it succeeds. Inside, a probe that succeeds is a failure; outside,
it must succeed, or it has proven nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fumehood.scorecard import judging
from fumehood.scorecard.judging import Judge
from fumehood_jail import mounts

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
        refused: By the names of system calls: the errno that the policy returns.
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
    Probe("K01", "privileges", judging.privileged),
    Probe("K02", "namespaces", judging.reached),
    Probe("K03", "calls", judging.reached, _calls("MOUNT_CALLS")),
    Probe("K03", "real_mounts", judging.reached),
    Probe("K04", "calls", judging.reached, _calls("IO_URING_CALLS")),
    Probe("K05", "calls", judging.reached, _calls("EXOTIC_CALLS")),
    Probe("K05", "calls", judging.reached, _calls("PAGE_CACHE_CALLS")),
    Probe("K06", "calls", judging.reached, _calls("KEYRING_CALLS")),
    Probe("K06", "read_paths", judging.told, _given(["/proc/keys", "/proc/key-users"])),
    Probe("K07", "other_memory", judging.of_others, lambda scene: (scene.other_pid,)),
    Probe("K08", "calls", judging.reached, _calls("MACHINE_CALLS")),
    Probe("K09", "file_handles", judging.handles),
    Probe("K10", "socket_families", judging.sockets),
    Probe("K11", "foreign_abis", judging.abis),
    Probe("K12", "declared_calls", judging.any_of, lambda scene: (scene.refused,), ours=True),
    Probe("K13", "terminals", judging.typed),
    Probe("K15", "read_paths", judging.told, _given(SECRETS_OF_THE_MACHINE)),
    Probe("K15", "open_for_writing", judging.succeeded, _given(SWITCHES_OF_THE_MACHINE)),
    Probe("K17", "devices", judging.devices, lambda scene: (scene.scratch,)),
    Probe("F01", "open_system", judging.succeeded, lambda scene: (scene.system,)),
    Probe("F02", "unbounded_mounts", judging.any_of),
    Probe("F03", "words_of_the_host", judging.any_of, lambda scene: ([scene.secret],)),
    Probe("P01", "other_processes", judging.foreign_processes, lambda scene: ([scene.host_pid],)),
    Probe("P05", "words_in_processes", judging.any_of, lambda scene: ([scene.secret],)),
    Probe("P06", "reach", judging.succeeded, lambda scene: (scene.sockets,)),
    Probe("N01", "go_out", judging.went_out, _given(ELSEWHERE, _PATIENCE_SECONDS)),
    Probe("N01", "interfaces", judging.networks),
    Probe("N09", "go_out", judging.went_out, _given(METADATA, _PATIENCE_SECONDS)),
    Probe("F11", "fill", judging.whole(32 << 20, "written"), lambda scene: (scene.scratch, 32), tight=True),
    Probe(
        "F11",
        "fill_with_files",
        judging.whole(2000, "count"),
        lambda scene: (scene.scratch, 2000),
        tight=True,
    ),
    Probe("R01", "take_memory", judging.ended_well, _given(256), tight=True, needs="cgroup memory"),
    Probe("R02", "start_processes", judging.whole(100, "count"), _given(100), tight=True),
    Probe("R02", "raise_limits", judging.raised, tight=True),
    Probe("R02", "take_precedence", judging.succeeded, tight=True),
    Probe("R09", "core_limit", judging.cores),
    Probe("R10", "kernel_objects", judging.whole(80, "inotify", "terminals"), _given(80), tight=True),
)
