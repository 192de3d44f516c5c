"""The rows of the scorecard: the properties that must hold against hostile code, and the severity of each.

Data of the host process and of the tests; nothing is tested here. An id is the permanent name of a property: a test
function with the id in its name tests it, and so does a probe where that is harmless.
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
    """One property.

    Attributes:
        id: A letter for its group and a number.
        severity: The meaning of a failure.
        words: The property that holds.
        harmless: Whether it is tested on a user's own machine; the others are tested only by the tests.
        core: Whether no release is made without it.
    """

    id: str
    severity: Severity
    words: str
    harmless: bool = False
    core: bool = False


ROWS: tuple[Row, ...] = (
    Row("K01", "E", "no process has a privilege, or a way to one", harmless=True, core=True),
    Row("K02", "E", "no new namespace can be made, and none entered", harmless=True, core=True),
    Row("K03", "E", "nothing can be mounted", harmless=True, core=True),
    Row("K04", "E", "io_uring is closed", harmless=True, core=True),
    Row("K05", "E", "BPF, perf, user faults and their kin are closed", harmless=True, core=True),
    Row("K06", "L", "keyrings are closed", harmless=True),
    Row("K07", "E", "no process reads the memory of another one of the machine's", harmless=True, core=True),
    Row("K08", "E", "the machine cannot be controlled: modules, clocks, swap, reboot", harmless=True),
    Row("K09", "E", "no file is opened by its handle", harmless=True),
    Row("K10", "E", "only ordinary socket families open", harmless=True, core=True),
    Row("K11", "E", "no other table of system calls answers", harmless=True),
    Row("K12", "E", "the system calls that are refused are those that the policy names", harmless=True),
    Row("K13", "E", "nothing can be typed into a terminal", harmless=True),
    Row("K14", "E", "no descriptor of the host is inherited", harmless=True, core=True),
    Row(
        "K15",
        "L",
        "/proc and /sys tell of the machine how busy it is, and change nothing",
        harmless=True,
        core=True,
    ),
    Row("K16", "E", "a missing layer is reported, and refused when strict", harmless=True, core=True),
    Row("K17", "L", "the set of devices is minimal", harmless=True),
    Row("F01", "E", "the system cannot be changed", harmless=True, core=True),
    Row("F02", "E", "what can be written is bounded, without set-uid programs and devices", harmless=True),
    Row("F03", "L", "nothing tells of the host's environment", harmless=True),
    Row("F04", "L", "files are not read through links", harmless=True, core=True),
    Row("F05", "E", "files are not written through links", harmless=True, core=True),
    Row("F06", "E", "owners, modes and clearing away do not follow links", core=True),
    Row("F07", "H", "special files do not hang the host", harmless=True),
    Row("F08", "L", "names are validated", harmless=True, core=True),
    Row("F09", "H", "archives are read within bounds"),
    Row("F10", "H", "collecting files is bounded"),
    Row("F11", "P", "bytes and files have a quota", harmless=True),
    Row("P01", "L", "no process of the host is seen or signalled", harmless=True, core=True),
    Row("P02", "S", "signals do not move init"),
    Row("P03", "P", "nothing outlives its sandbox", harmless=True, core=True),
    Row("P04", "S", "orphans are reaped"),
    Row("P05", "L", "no environment of the host is readable", harmless=True, core=True),
    Row("P06", "E", "no socket and no shared memory of the host is reached", harmless=True, core=True),
    Row("P07", "A", "a poisoned interpreter stays local"),
    Row("N01", "X", "without a network nothing is reached", harmless=True, core=True),
    Row("N02", "X", "the proxy is the only way out", core=True),
    Row("N03", "X", "a rule means exactly what it says"),
    Row("N04", "X", "names are read in one way only", core=True),
    Row("N05", "X", "no tunnels to addresses and odd ports"),
    Row("N06", "X", "the address behind a name is checked", core=True),
    Row("N07", "X", "the address that was checked is the one that is dialled"),
    Row("N08", "X", "the name in TLS and Host is the one that was allowed"),
    Row("N09", "X", "metadata services and the host's loopback are out of reach", harmless=True, core=True),
    Row("N10", "X", "questions for names carry nothing out", harmless=True, core=True),
    Row("N11", "X", "each request is judged"),
    Row("N12", "X", "it fails closed", core=True),
    Row("N13", "P", "the proxy is bounded"),
    Row("N14", "L", "secrets are not in the guest"),
    Row("R01", "H", "memory is bounded in every form", harmless=True, core=True),
    Row("R02", "H", "processes are bounded, and limits stay", harmless=True, core=True),
    Row("R03", "P", "the share of the processors is held"),
    Row("R04", "S", "every way of not ending is ended", harmless=True, core=True),
    Row("R05", "S", "limits are validated", harmless=True),
    Row("R06", "H", "output is bounded", harmless=True, core=True),
    Row("R07", "H", "results are bounded"),
    Row("R08", "S", "descriptors run out inside only"),
    Row("R09", "L", "no core is dumped", harmless=True),
    Row("R10", "H", "kernel objects are bounded", harmless=True),
    Row("R11", "P", "a full host says so at once"),
    Row("H01", "H", "frames have a size", core=True),
    Row("H02", "H", "nesting and nodes are bounded", core=True),
    Row("H03", "H", "encodings and numbers are checked"),
    Row("H04", "A", "forged and reordered messages reach no other call", core=True),
    Row("H05", "H", "stalls end by the clock"),
    Row("H06", "E", "nothing of a guest is carried out as code", core=True),
    Row("H07", "E", "passed descriptors are never taken", core=True),
    Row("H08", "L", "names and output forge no lines"),
    Row("H09", "E", "terminal escapes are made visible"),
    Row("H10", "H", "the host decodes nothing"),
    Row("H11", "H", "mutated frames end in a typed error or in nothing"),
    Row("W01", "L", "every route asks for a token", core=True),
    Row("W02", "L", "comparing a token tells nothing"),
    Row("W03", "E", "only our own host names are answered", core=True),
    Row("W04", "E", "other origins do nothing", core=True),
    Row("W05", "E", "forms are no requests"),
    Row("W06", "E", "HTML and SVG of a guest are in no origin of ours", core=True),
    Row("W07", "L", "downloads are shown by no browser"),
    Row("W08", "H", "requests are bounded, and reach no private network"),
    Row("W09", "A", "a key reaches its own sandboxes alone", core=True),
    Row("W10", "L", "defaults are safe, and errors tell nothing of the inside"),
    Row("T01", "A", "sandboxes do not see each other", harmless=True, core=True),
    Row("T02", "A", "each has a user of its own on the host", harmless=True),
    Row("T03", "A", "nothing is left to the next one", harmless=True, core=True),
    Row("T04", "S", "clones of a template diverge", harmless=True),
    Row("T05", "A", "what all share stays as it is"),
    Row("T06", "P", "a noisy neighbour fails no call"),
    Row("X01", "S", "a context that dies is reported and replaced", core=True),
    Row("X02", "S", "the death of init ends the sandbox, and nothing else", core=True),
    Row("X03", "H", "after the death of the host nothing is left", core=True),
    Row("X04", "H", "a fault at any step is rolled back"),
    Row("X05", "S", "a server stops gracefully"),
    Row("X06", "H", "two servers do not share a state"),
    Row("X07", "S", "a broken state is put aside and reported"),
    Row("X08", "H", "a full disk is refused by name"),
    Row("X09", "H", "used-up descriptors are survived"),
    Row("X10", "P", "a slow reader costs a bounded amount"),
    Row("X11", "S", "a client that has gone is noticed"),
    Row("X12", "S", "jumps of the clock change no limit"),
    Row("X13", "X", "without the proxy nothing goes out"),
    Row("X14", "S", "each cancelled call ends exactly once"),
    Row("X15", "S", "errors say whether the code may have run"),
    Row("X16", "H", "after thousands of runs nothing is left over"),
)
