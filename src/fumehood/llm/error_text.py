"""The text of an error for a model: its own lines, each once, the message, and a hint about the next step.

Runs in the user's process; pure functions over an `ExecutionError` and the state of the sandbox. A traceback is a
guest's text: it is read line by line, and never evaluated. A hint states only facts about this sandbox;
guest text never enters it, except for the path in the engine's own message about a denied access.
"""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fumehood import Execution, ExecutionError, Network
from fumehood.llm.readable_text import shorten
from fumehood.values.failure_signs import is_unreached, without_similar_file

# Follows the hint when the variables are gone.
LOST = "All variables of earlier calls are gone, files are kept: import, load and define again what you need."
NOT_INSTALLABLE = "Nothing can be installed here: use another package or the standard library."
_FRAMES_CHARS = 4_000
# These start a program, and fail when it is missing or refused.
_PROGRAM = re.compile(r"\b(?:_execute_child|posix_spawnp?|execv[pe]{0,2}|execl[pe]{0,2})\b")
_NO_PROGRAM = (
    "There is no such program here (shutil.which(NAME) tells), and no root to install one with sudo or apt: use a "
    "package of Python, or a program that is there."
)
# The error is the same whether the program or its working directory is missing.
_NO_PROGRAM_OR_FOLDER = (
    "The program or the folder given as cwd does not exist here: shutil.which(NAME) and os.path.isdir(CWD) "
    "tell which."
)
_GIVES_FOLDER = re.compile(r"\bcwd\s*=")
_NOT_EXECUTABLE = (
    "The file may not be executed: give it to its interpreter (bash FILE, python FILE), or os.chmod it first."
)
# The path in the message of a FileNotFoundError, bounded since it is compared with others.
_PATH = re.compile(r"'([^']{1,300})'$")
_MAX_SHOWN_FILES = 10
# The guest's line about the keys of a table, in place of a hint to look for them.
_KEYS_MARK = "\nThere are: "
_READ_ONLY = "Read-only file system"
_IN_REACH = re.compile(r"'(?:/mnt/data|/home/user)/[^']{1,300}'$")
_INSTALLS = re.compile(r"\bpip3?\s+(?:install|download)\b")
_WAITS = re.compile(r"\b(?:sleep|wait|recv|accept|acquire|urlopen|input)\(|\bjoin\(\)")
_SIGNAL = re.compile(r"\(signal (SIG[A-Z0-9]+)\)")
_MARKED_PATH = re.compile(r"^-+> \d+ (.{1,300})", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The facts about the sandbox that hints may state.

    Attributes:
        network: The network that can be reached.
        files: Paths of existing files, for code that missed one; each fit to be shown.
        memory: Its memory, as people write it.
        to_install: How a missing package is installed, where the model has tools for it; empty: as `network` allows.
        to_reach: How more of the network is reached, where the model has tools for it.
    """

    network: Network = field(default_factory=Network)
    files: tuple[str, ...] = ()
    memory: str = ""
    to_install: str = ""
    to_reach: str = ""


def hint_for(error: ExecutionError, around: Surroundings, code: str = "") -> str:
    """Return one line about the next step; empty when the message is enough.

    Args:
        error: The error.
        around: The facts about the sandbox.
        code: The code that was run.
    """
    if error.kind != "exception":
        return _stopped(error, around, code)

    if error.name == "ModuleNotFoundError" or error.name == "ImportError":
        return _missing_module(around)

    if is_about_network(error):
        return around.to_reach or _unreachable(around.network)

    if error.name == "PermissionError" and _IN_REACH.search(error.value):
        return "That file is read-only: write to a file of another name."

    if _READ_ONLY in error.value:
        return _BY_NAME["PermissionError"]

    if error.hint:
        # The engine knows the reason and has given a hint.
        return f"{error.hint[0].upper()}{error.hint[1:]}{'' if error.hint.endswith('?') else '.'}"

    if error.name in ("FileNotFoundError", "PermissionError") and _PROGRAM.search(error.traceback):
        return _not_started(error, code)

    if error.name == "FileNotFoundError":
        return _missing_file(error.value, around.files)

    if error.name == "KeyError" and _KEYS_MARK in error.traceback:
        return ""

    return _BY_NAME.get(error.name, "")


def installs(code: str) -> bool:
    """Return whether code installs packages with pip."""
    return _INSTALLS.search(code) is not None


def is_about_network(error: ExecutionError) -> bool:
    """Return whether an error seems to be that an address was not reached."""
    return is_unreached(error.name, error.value)


_BY_NAME = {
    "NameError": "A name exists only after a call that defined it has succeeded: define or import it in this call.",
    "SyntaxError": "Nothing of this code was run. Correct it and send all of it again.",
    "IndentationError": "Nothing of this code was run. Correct it and send all of it again.",
    "TabError": "Nothing of this code was run. Correct it and send all of it again.",
    "UnicodeDecodeError": "It is no UTF-8: name its encoding, such as encoding='latin-1', or read it as bytes.",
    "KeyError": "Print what is there first, such as df.columns or list(d), and use a name from it.",
    "EOFError": "There is no standard input here: write the values into the code in place of input().",
    "MemoryError": "Work on less at a time: read in chunks, take only the columns you need, del what is done with.",
    "RecursionError": "Check that the recursion ends, or write it as a loop.",
    "SystemExit": "It ends this call only, and variables stay.",
    "PermissionError": "Write below /mnt/data or /home/user; the rest of the system is read-only.",
}


def _stopped(error: ExecutionError, around: Surroundings, code: str) -> str:
    match error.kind:
        case "time_limit" if installs(code):
            return _missing_module(around)
        case "time_limit" if _WAITS.search(_last_marked_line(error.traceback)):
            return "It was waiting, not computing: wait for less in one call, and look again in the next."
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
            return _ended_process(error.value)
        case _:
            return ""


def _ended_process(value: str) -> str:
    """Return the next step when the process of the code has ended; `value` is the engine's sentence about how."""
    signal = _SIGNAL.search(value)

    if signal is not None:
        return (
            "Do not send signals to the process of the code (os.kill, signal.alarm); end a call by returning."
        )

    return (
        "Do not end the process (os._exit(), os.execv()), and do not close descriptors that the code has not opened "
        "(os.closerange()); to end a call early use sys.exit()."
    )


def _last_marked_line(traceback: str) -> str:
    lines = _MARKED_PATH.findall(traceback[-_FRAMES_CHARS:])
    return lines[-1] if lines else ""


def _not_started(error: ExecutionError, code: str) -> str:
    if error.name == "PermissionError":
        return _NOT_EXECUTABLE

    return _NO_PROGRAM_OR_FOLDER if _GIVES_FOLDER.search(code) else _NO_PROGRAM


def _missing_file(value: str, files: tuple[str, ...]) -> str:
    """Return the hint for a missing file: one of a similar name, or all files; `value` is the error's message."""
    missed = _PATH.search(value)
    names = {posixpath.basename(path).lower(): path for path in files}
    meant = difflib.get_close_matches(posixpath.basename(missed[1]).lower(), names, n=1) if missed else []

    if meant:
        return f"Did you mean {names[meant[0]]}?"

    shown = ", ".join(files[:_MAX_SHOWN_FILES]) or "none yet"
    more = f", and {len(files) - _MAX_SHOWN_FILES:,} more" if len(files) > _MAX_SHOWN_FILES else ""
    return f"Files that are there: {shown}{more}."


def _missing_module(around: Surroundings) -> str:
    if around.to_install:
        return around.to_install

    if around.network.internet or "pip" in around.network.presets:
        return "Install it with %pip install NAME in a call of its own, or use a package that is there."

    return NOT_INSTALLABLE


def _unreachable(network: Network) -> str:
    match network.level:
        case "none":
            return "This sandbox has no network: use files that are there, or ask the user for them."
        case "pip" | "listed":
            return (
                "This sandbox reaches only what its network policy lists. Do not try other addresses; ask the user to "
                "upload the data."
            )
        case _:
            return "Check the address; only public addresses on ports 80 and 443 can be reached."


_MAX_CHARS = 4_000
_MAX_SOURCE_CHARS = 200
# A traceback of ten causes with thirty frames of code each stays below this.
_MAX_READ_CHARS = 400_000
_MAX_FRAMES = 12
_RULE = re.compile(r"\s*-{20,}")
_HEADING = re.compile(r"\s*\S+ +Traceback \(most recent call last\)")
_CELL = re.compile(r"Cell In\[(\d{1,9})\], line (\d{1,9})(?:, in (.{1,200}))?")
_NAMED_CELL = re.compile(r"File (.{1,1000}), line (\d{1,9})(?:, in (.{1,200}))?")
_LIBRARY = re.compile(r"File (.{1,1000}):(\d{1,9}), in (.{1,200})")
_GAP = re.compile(r" {4}\.\.\. ([\d,]{1,12}) frames left out \.\.\.")
_MARKED = re.compile(r"-+> \d+ (.*)")
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_LIBRARIES = re.compile(r".*/(?:site|dist)-packages/|.*/lib(?:64)?/python3[^/]*/|/usr/|/opt/")
# Compiled and frozen modules have no source here: their path is one of the machine that built them, or none.
_COMPILED = re.compile(r".*\.(?:pyx|pxi|pxd|c|cpp)|[^/].*")
# Errors whose message is enough, wherever they were raised.
_CLEAR_BY_MESSAGE = frozenset(("FileNotFoundError", "KeyError", "RecursionError"))
_SYNTAX = frozenset(("SyntaxError", "IndentationError", "TabError"))
_WRONG_LINE = re.compile(r"Cell In\[(\d{1,9})\], line (\d{1,9})(?=\n)")
# The end of a message that is meant for a calling program.
_FOR_CALLERS = re.compile(r" Pass stdin=.{0,100} to answer\.")
# The egress proxy's answer within the messages of clients.
_DENIAL = re.compile(
    r"(?:Tunnel connection failed: 403 |(?:HTTP Error 403|403 Client Error): (?=this sandbox ))(.{1,300}?)"
    r"(?:[\"']\)|>| for url: |$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class _Frame:
    """One frame: the words about its place, its source line, and whose code it is."""

    place: str
    source: str = ""
    kind: Literal["own", "library", "compiled"] = "own"

    def __str__(self) -> str:
        return f"{self.place}: {self.source}" if self.source else self.place


@dataclass(frozen=True, slots=True)
class _Link:
    """One exception of a chain: its frames, how many more are left out, and its message."""

    frames: tuple[_Frame, ...]
    left_out: int
    message: str

    @property
    def own(self) -> list[_Frame]:
        """The frames in code of the model."""
        return [frame for frame in self.frames if frame.kind == "own"]


def describe_error(execution: Execution, code: str, around: Surroundings) -> str:
    """Return the model's description of a failure: its own lines, the message, a hint."""
    error = execution.error

    if error is None:
        return ""

    parts = [shorten(_describe(error, code, execution.execution_count, around), _MAX_CHARS)]
    hint = hint_for(error, around, code)

    if execution.state_lost:
        hint = f"{hint} {LOST}".strip()

    if hint:
        parts.append(f"Hint: {hint}")

    return "\n".join(parts)


def _describe(error: ExecutionError, code: str, count: int | None, around: Surroundings) -> str:
    if not error.traceback:
        return f"{error.name}: {error.value}" if error.value else error.name

    if error.name in _SYNTAX and (found := _WRONG_LINE.match(error.traceback)) and int(found[1]) == count:
        return f"line {found[2]}{error.traceback[found.end() :].rstrip()}"

    traceback = without_similar_file(error.traceback[-_MAX_READ_CHARS:])
    chain = [_read(part, count, code) for part in _parts(traceback)]
    last = chain[-1]
    message = last.message

    if denial := _denial(error, around):
        message, chain = denial, [last]

    causes = [link for link in chain[:-1] if link.own or link.message.partition(": ")[2] not in message]
    lines = [line for cause in causes for line in (*_frames(cause), cause.message, "and then:")]

    if error.kind == "exception":
        return "\n".join([*lines, *_frames(last), *_origin(last, error), message])

    return "\n".join([message, *(f"interrupted in {frame}" for frame in last.own[-1:])])


def _parts(traceback: str) -> Iterable[list[str]]:
    """Return the lines of each exception of a chain, causes first."""
    part: list[str] = []

    for line in traceback.rstrip().split("\n"):
        if line in _LINKS and part:
            yield part
            part = []
        else:
            part.append(line)

    yield part


def _read(lines: Sequence[str], count: int | None, code: str) -> _Link:
    """Read one exception as the guest writes it; all text after the frames is its message."""
    lines = [line for line in lines if not _RULE.fullmatch(line) and not _HEADING.fullmatch(line)]
    frames: list[_Frame] = []
    left_out = at = 0

    while at < len(lines):
        gap = _GAP.fullmatch(lines[at])

        if gap:
            left_out += int(gap[1].replace(",", "") or 0)
            at += 1
            continue

        if not lines[at]:
            at += 1
            continue

        end = next((i for i in range(at, len(lines)) if not lines[i]), len(lines))
        frame = _frame(lines[at:end], count, code) if end < len(lines) else None

        if frame is None:
            break

        frames.append(frame)
        at = end

    message = _FOR_CALLERS.sub("", "\n".join(lines[at:]).strip("\n"))
    return _Link(tuple(frames), left_out, message)


def _frame(block: Sequence[str], count: int | None, code: str) -> _Frame | None:
    head, body = block[0], block[1:]

    if found := _CELL.fullmatch(head):
        inside = f", in {found[3]}" if found[3] else ""
        is_this_call = int(found[1]) == (count or -1)
        # Source comes from the code that was sent, where it is at hand.
        sent = code.split("\n")[int(found[2]) - 1 : int(found[2])] if is_this_call else []
        place = f"line {found[2]}" if is_this_call else f"Cell In[{found[1]}], line {found[2]}"
        return _Frame(place + inside, _bounded(sent[0] if sent else _marked(body)))

    if found := _NAMED_CELL.fullmatch(head):
        inside = f", in {found[3]}" if found[3] else ""
        return _Frame(f"{found[1]}, line {found[2]}{inside}", _bounded(_marked(body)))

    if found := _LIBRARY.fullmatch(head):
        path, place = found[1], f":{found[2]}, in {found[3]}"

        if _COMPILED.fullmatch(path):
            return _Frame(path + place, kind="compiled")

        if _LIBRARIES.match(path):
            return _Frame(_LIBRARIES.sub("", path, count=1) + place, kind="library")

        return _Frame(path + place, _bounded(body[0] if body else ""))

    return None


def _marked(body: Sequence[str]) -> str:
    return next((found[1] for line in body if (found := _MARKED.match(line))), "")


def _bounded(source: str) -> str:
    source = source.strip()
    return source if len(source) <= _MAX_SOURCE_CHARS else f"{source[:_MAX_SOURCE_CHARS]}..."


def _frames(link: _Link) -> list[str]:
    """Return a line for each different frame of a model's code, in the order of the calls; equal ones are counted."""
    counts: dict[str, int] = {}

    for frame in link.own:
        counts[str(frame)] = counts.get(str(frame), 0) + 1

    more = "+" if link.left_out else ""
    lines = [text if number == 1 else f"{text} ({number}{more} times)" for text, number in counts.items()]

    if len(lines) <= _MAX_FRAMES:
        return lines

    side = _MAX_FRAMES // 2
    return [*lines[:side], f"... {len(lines) - 2 * side:,} more lines ...", *lines[-side:]]


def _origin(link: _Link, error: ExecutionError) -> list[str]:
    """Return the line of Python inside a library that raised, or nothing where the message is enough."""
    if (
        error.name in _CLEAR_BY_MESSAGE
        or is_about_network(error)
        or not link.frames
        or link.frames[-1].kind == "own"
    ):
        return []

    return [str(frame) for frame in link.frames if frame.kind == "library"][-1:]


def _denial(error: ExecutionError, around: Surroundings) -> str:
    """Return the proxy's own sentence out of the nested messages of a client; empty where there is none."""
    found = _DENIAL.search(error.value[:_MAX_CHARS])

    if found is None:
        return ""

    # Without a network the hint contains the same.
    return error.name if around.network.level == "none" else f"{error.name}: {found[1]}"
