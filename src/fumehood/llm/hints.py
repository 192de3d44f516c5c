"""One line for the model about what to do next, for each common way in which code fails.

Runs in the host process; pure functions over an `ExecutionError` and what is known of the sandbox. A hint states
only what holds for this sandbox; guest text enters it nowhere, but for the plain path in what the engine says itself
of a wall that code ran into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fumehood import Execution, ExecutionError, Network
from fumehood.llm.wording import counted, shorten

_NETWORK_NAMES = frozenset(
    (
        "ClientConnectorError",
        "ConnectError",
        "ConnectTimeout",
        "ConnectionError",
        "ConnectionRefusedError",
        "HTTPError",
        "MaxRetryError",
        "NameResolutionError",
        "NewConnectionError",
        "ProxyError",
        "SSLError",
        "URLError",
        "gaierror",
    )
)
_NETWORK_WORDS = (
    "name resolution",
    "Network is unreachable",
    "Name or service not known",
    "No route to host",
)
_LOST = (
    "All variables of earlier calls are gone, files are kept: import, load and define again what you need."
)
_CELL = re.compile(r"Cell In\[(\d{1,9})\], line (\d{1,9})")
_FRAMES_CHARS = 4_000
# What IPython draws above a traceback.
_RULE = re.compile(r"\A-{20,}\n")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What hints may say of the sandbox.

    Attributes:
        network: What can be reached.
        files: Paths of files that are there, for code that missed one; each fit to be shown.
        memory: Its memory, as people write it.
        to_install: How a missing package is installed, where the model has tools for it; empty: as `network` allows.
        to_reach: How more of the network is reached, where the model has tools for it.
    """

    network: Network = field(default_factory=Network)
    files: tuple[str, ...] = ()
    memory: str = ""
    to_install: str = ""
    to_reach: str = ""


def describe_error(execution: Execution, code: str, around: Surroundings) -> str:
    """Return what the model reads of a failure: frames of its own code, the line, the message, a hint."""
    error = execution.error

    if error is None:
        return ""

    parts = [shorten(condense_frames(str(error).rstrip()), _FRAMES_CHARS)]
    line = _failing_line(error, execution.execution_count, code)

    if line:
        parts.append(line)

    hint = hint_for(error, around)

    if execution.state_lost:
        hint = f"{hint} {_LOST}".strip()

    if hint:
        parts.append(f"Hint: {hint}")

    return "\n".join(parts)


def condense_frames(traceback: str) -> str:
    """Return a traceback without the frames inside libraries, but for the innermost; they are counted."""
    blocks = traceback.split("\n\n")
    kept: list[str] = []
    skipped = 0

    for place, block in enumerate(blocks):
        is_innermost = place + 1 == len(blocks) or not blocks[place + 1].startswith("File ")

        if block.startswith("File ") and not is_innermost:
            skipped += 1
            continue

        if skipped:
            kept.append(f"... {counted(skipped, 'frame')} inside libraries ...")
            skipped = 0

        kept.append(_RULE.sub("", block))

    return "\n\n".join(kept)


def hint_for(error: ExecutionError, around: Surroundings) -> str:
    """Return one line about what to do next; empty when the message alone says it."""
    if error.kind != "exception":
        return _stopped(error, around)

    if error.name == "ModuleNotFoundError" or error.name == "ImportError":
        return _missing_module(around)

    if _is_about_network(error):
        return around.to_reach or _unreachable(around.network)

    if error.hint:
        # What stood in the way is known where the sandbox lives.
        return f"{error.hint[0].upper()}{error.hint[1:]}."

    if error.name == "FileNotFoundError":
        shown = ", ".join(around.files) or "none yet"
        return f"Look with os.listdir('/mnt/data') first. Files that are there: {shown}."

    return _BY_NAME.get(error.name, "")


_BY_NAME = {
    "NameError": "A name exists only after a call that defined it has succeeded: define or import it in this call.",
    "SyntaxError": "Nothing of this code was run. Correct it and send all of it again.",
    "IndentationError": "Nothing of this code was run. Correct it and send all of it again.",
    "TabError": "Nothing of this code was run. Correct it and send all of it again.",
    "KeyError": "Print what is there first, such as df.columns or list(d), and use a name from it.",
    "EOFError": "There is no standard input here: write the values into the code in place of input().",
    "MemoryError": "Work on less at a time: read in chunks, take only the columns you need, del what is done with.",
    "RecursionError": "Check that the recursion ends, or write it as a loop.",
    "PermissionError": "Write below /mnt/data or /home/user; the rest of the system is read-only.",
}


def _stopped(error: ExecutionError, around: Surroundings) -> str:
    match error.kind:
        case "time_limit" | "cpu_limit":
            return (
                "Do less in one call: try it on a small part first, use vectorised operations, or go on in "
                "several calls that keep their results in variables."
            )
        case "out_of_memory":
            within = f" within {around.memory}" if around.memory else ""
            return f"Work on less at a time{within}: read in chunks, take only the columns you need."
        case "context_died" if error.hint:
            return f"{error.hint[0].upper()}{error.hint[1:]}."
        case "context_died":
            return "Do not end the process (exit(), os._exit(), os.kill)."
        case _:
            return ""


def _missing_module(around: Surroundings) -> str:
    if around.to_install:
        return around.to_install

    if around.network.internet or "pip" in around.network.presets:
        return "Install it with %pip install NAME in a call of its own, or use a package that is there."

    return (
        "It is not installed, and it cannot be installed from here. Use the standard library or a package that is "
        "there (importlib.metadata.distributions() lists them)."
    )


def _unreachable(network: Network) -> str:
    match network.level:
        case "none":
            return "This sandbox has no network. Use the files that are there, or ask the user to upload the data."
        case "listed":
            return (
                "This sandbox reaches only what its network policy lists. Do not try other addresses; ask the user to "
                "upload the data."
            )
        case _:
            return "Check the address; only public addresses on ports 80 and 443 can be reached."


def _is_about_network(error: ExecutionError) -> bool:
    return error.name in _NETWORK_NAMES or any(word in error.value for word in _NETWORK_WORDS)


def _failing_line(error: ExecutionError, count: int | None, code: str) -> str:
    """The last line of this call's code among the frames, quoted from the code that we have sent."""
    lines = code.splitlines()
    numbers = [
        int(line) for cell, line in _CELL.findall(error.traceback[-20_000:]) if int(cell) == (count or -1)
    ]

    if not numbers or not 1 <= numbers[-1] <= len(lines):
        return ""

    return f"Failed in line {numbers[-1]} of this call: {shorten(lines[numbers[-1] - 1].strip(), 300)}"
