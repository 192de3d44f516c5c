"""The text of an error for a model: its own lines, each once, the message, and a hint.

Runs in the user's process; pure functions over an `ExecutionError`. A traceback is a guest's text: it is read line by
line, and other text is shown unchanged. Nothing of it is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fumehood import Execution, ExecutionError
from fumehood.llm.hints import LOST, Surroundings, hint_for, is_about_network
from fumehood.llm.readable_text import shorten

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
# Of compiled and frozen modules there is no source: the path is one of the machine that built them, or none.
_COMPILED = re.compile(r".*\.(?:pyx|pxi|pxd|c|cpp)|[^/].*")
# Errors whose message says all, wherever they were raised.
_TOLD_BY_MESSAGE = frozenset(("FileNotFoundError", "KeyError", "RecursionError"))
_SYNTAX = frozenset(("SyntaxError", "IndentationError", "TabError"))
_WRONG_LINE = re.compile(r"Cell In\[(\d{1,9})\], line (\d{1,9})(?=\n)")
# The end of a message that is meant for a calling program.
_FOR_CALLERS = re.compile(r" Pass stdin=.{0,100} to answer\.")
# The egress proxy's answer within the messages of clients.
_DENIAL = re.compile(r"Tunnel connection failed: 403 (.{1,300}?)(?:[\"']\)|>|$)", re.MULTILINE)


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
        """Those in code of the model."""
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

    chain = [_read(part, count, code) for part in _parts(error.traceback[-_MAX_READ_CHARS:])]
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
    """Read one exception as the guest writes it; all after the frames is its message."""
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
    """Return the line of Python inside a library that raised; none where the message says all of it."""
    if (
        error.name in _TOLD_BY_MESSAGE
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

    # Without a network the hint says all of it.
    return error.name if around.network.level == "none" else f"{error.name}: {found[1]}"
