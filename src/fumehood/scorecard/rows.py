"""The rows of the scorecard: what must hold against hostile code, and how bad it is when one does not.

Data of the host process and of the tests; nothing is tried here. An id is a promise's name for good: a test function
that carries it in its name tries it, and so does a probe where it can be tried without harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["E", "L", "X", "A", "H", "P", "S"]

SEVERITIES: dict[Severity, str] = {
    "E": "escape",
    "L": "leak from the host",
    "X": "data carried out",
    "A": "reaches a neighbour",
    "H": "the host's service suffers",
    "P": "a neighbour's service suffers",
    "S": "the sandbox itself only",
}
GROUPS: dict[str, str] = {
    "K": "Kernel",
    "F": "Files",
    "P": "Processes",
    "N": "Network",
    "R": "Resources",
    "H": "What the host reads of a guest",
    "W": "HTTP and web",
    "T": "Neighbours",
    "X": "Faults and recovery",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One promise.

    Attributes:
        id: A letter for its group and a number.
        severity: What a failure means.
        words: The property that holds.
        harmless: Whether it is tried on a user's own machine; the others are tried by the tests alone.
        core: Whether no release goes out without it.
    """

    id: str
    severity: Severity
    words: str
    harmless: bool = False
    core: bool = False


ROWS: tuple[Row, ...] = (
    Row("K01", "E", "no process has a privilege, or a way to one", harmless=True, core=True),
    Row("K02", "E", "no nested namespaces", harmless=True, core=True),
    Row("K03", "E", "mount API closed", harmless=True, core=True),
    Row("K04", "E", "io_uring closed", harmless=True, core=True),
    Row("K05", "E", "exotic kernel APIs closed", harmless=True, core=True),
    Row("K06", "L", "keyrings closed", harmless=True),
    Row("K07", "E", "no cross-process memory access", harmless=True, core=True),
    Row("K08", "E", "no machine control", harmless=True),
    Row("K09", "E", "no handle-based open", harmless=True),
    Row("K10", "E", "socket-family allowlist", harmless=True, core=True),
    Row("K11", "E", "ABI confusion closed", harmless=True),
    Row("K12", "E", "the system calls that are refused are those that the policy names", harmless=True),
    Row("K13", "E", "no terminal injection", harmless=True),
    Row("K14", "E", "no fd leak", harmless=True, core=True),
    Row("K15", "L", "/proc and /sys masked", harmless=True, core=True),
    Row("K16", "E", "a missing layer is told, and refused when strict", harmless=True, core=True),
    Row("K17", "L", "device set minimal", harmless=True),
    Row("F01", "E", "system tree immutable", harmless=True, core=True),
    Row("F02", "E", "writable mounts bounded", harmless=True),
    Row("F03", "L", "no host paths or server files", harmless=True),
    Row("F04", "L", "file API does not read through links", harmless=True, core=True),
    Row("F05", "E", "file API does not write through links", harmless=True, core=True),
    Row("F06", "E", "metadata and cleanup do not follow", core=True),
    Row("F07", "H", "special files do not hang host", harmless=True),
    Row("F08", "L", "names validated", harmless=True, core=True),
    Row("F09", "H", "archive safety"),
    Row("F10", "H", "collection bounded"),
    Row("F11", "P", "quota on bytes and inodes", harmless=True),
    Row("P01", "L", "pid isolation", harmless=True, core=True),
    Row("P02", "S", "init/agent robust"),
    Row("P03", "P", "no survivors", harmless=True, core=True),
    Row("P04", "S", "zombies reaped"),
    Row("P05", "L", "environment clean", harmless=True, core=True),
    Row("P06", "E", "no host IPC", harmless=True, core=True),
    Row("P07", "A", "interpreter poisoning stays local"),
    Row("N01", "X", "off means off", harmless=True, core=True),
    Row("N02", "X", "proxy enforced by topology", core=True),
    Row("N03", "X", "allowlist exact"),
    Row("N04", "X", "no parser differential", core=True),
    Row("N05", "X", "no IP or odd-port tunnels"),
    Row("N06", "X", "resolved address checked", core=True),
    Row("N07", "X", "rebinding defeated"),
    Row("N08", "X", "SNI/Host bound to decision"),
    Row("N09", "X", "metadata and loopback blocked", harmless=True, core=True),
    Row("N10", "X", "DNS is not a channel", harmless=True, core=True),
    Row("N11", "X", "per-request enforcement"),
    Row("N12", "X", "fails closed", core=True),
    Row("N13", "P", "proxy limits"),
    Row("N14", "L", "secrets not in guest"),
    Row("R01", "H", "memory cap covers all", harmless=True, core=True),
    Row("R02", "H", "pid cap", harmless=True, core=True),
    Row("R03", "P", "cpu cap"),
    Row("R04", "S", "cpu vs wall", harmless=True, core=True),
    Row("R05", "S", "limits validated", harmless=True),
    Row("R06", "H", "output bounded", harmless=True, core=True),
    Row("R07", "H", "rich results bounded"),
    Row("R08", "S", "fd exhaustion inside"),
    Row("R09", "L", "no core dumps", harmless=True),
    Row("R10", "H", "kernel objects bounded", harmless=True),
    Row("R11", "P", "io and admission"),
    Row("H01", "H", "frame size", core=True),
    Row("H02", "H", "nesting and nodes", core=True),
    Row("H03", "H", "encoding and numbers"),
    Row("H04", "A", "forged ordering", core=True),
    Row("H05", "H", "stalls"),
    Row("H06", "E", "no code from data", core=True),
    Row("H07", "E", "fd passing", core=True),
    Row("H08", "L", "name and log injection"),
    Row("H09", "E", "terminal escapes"),
    Row("H10", "H", "no host decoding"),
    Row("H11", "H", "fuzz"),
    Row("W01", "L", "auth on all routes", core=True),
    Row("W02", "L", "timing-safe compare"),
    Row("W03", "E", "Host allowlist", core=True),
    Row("W04", "E", "Origin on unsafe and WS", core=True),
    Row("W05", "E", "CSRF"),
    Row("W06", "E", "untrusted HTML/SVG inert", core=True),
    Row("W07", "L", "downloads safe"),
    Row("W08", "H", "request limits and SSRF"),
    Row("W09", "A", "object authorisation", core=True),
    Row("W10", "L", "safe defaults and errors"),
    Row("T01", "A", "sessions cannot see each other", harmless=True, core=True),
    Row("T02", "A", "distinct identities", harmless=True),
    Row("T03", "A", "no reuse residue", harmless=True, core=True),
    Row("T04", "S", "clones of a template diverge", harmless=True),
    Row("T05", "A", "shared layers unaltered"),
    Row("T06", "P", "noisy neighbour"),
    Row("X01", "S", "kernel dies", core=True),
    Row("X02", "S", "init dies", core=True),
    Row("X03", "H", "daemon dies", core=True),
    Row("X04", "H", "crash at each step"),
    Row("X05", "S", "graceful stop"),
    Row("X06", "H", "two daemons"),
    Row("X07", "S", "bad state"),
    Row("X08", "H", "host disk full"),
    Row("X09", "H", "host fd/pid exhaustion"),
    Row("X10", "P", "slow reader"),
    Row("X11", "S", "vanished client"),
    Row("X12", "S", "clock jumps"),
    Row("X13", "X", "proxy dies"),
    Row("X14", "S", "cancellation races"),
    Row("X15", "S", "honest errors"),
    Row("X16", "H", "soak"),
)
