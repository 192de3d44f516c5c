"""What the engine writes into the audit record of a sandbox, from the moment it is handed out to its end.

Guests come in as bounded text with its controls spelled out, as numbers and as digests; code, environment, input and
contents never do. What a guest can cause as often as it likes is written up to a bound and counted beyond it, so that
a guest cannot push out what it did before.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

from fumehood.audit.chain import AuditChain
from fumehood.bounds import KIB, MIB
from fumehood.text import visible_line
from fumehood.values.audit import AuditHead, AuditLog
from fumehood.values.charts import JsonValue
from fumehood.values.network import EgressRecord

_MAX_CHARACTERS = 200
_MAX_LISTED = 20
# Above this a digest is computed in a thread, or not at all where it would be of no more than some use.
_SMALL_BYTES = 256 * KIB
# Of each kind that a guest causes: so many at once, and so many a second in the long run.
_AT_ONCE = 100
_PER_SECOND = 10.0
_ENDED_BYTES = 16 * MIB

Fields = dict[str, JsonValue]


def shown(text: str) -> str:
    """Returns the beginning of a text as one line without controls."""
    # Cut first: nobody has said how long it is.
    return visible_line(text[: _MAX_CHARACTERS + 1], max_characters=_MAX_CHARACTERS)


def listed(texts: Sequence[str]) -> list[JsonValue]:
    """Returns the first of some texts, each as `shown`."""
    return [shown(text) for text in texts[:_MAX_LISTED]]


def small_digest(data: bytes) -> str | None:
    """Returns the SHA-256 of bytes that are few; None for many."""
    return hashlib.sha256(data).hexdigest() if len(data) <= _SMALL_BYTES else None


async def describe_code(code: str) -> Fields:
    """Returns size and SHA-256 of code; much of it is hashed in a thread."""
    return describe_little(code) if is_little(code) else await asyncio.to_thread(describe_little, code)


def is_little(code: str) -> bool:
    """Tells whether code is described in no time worth speaking of."""
    return len(code) <= _SMALL_BYTES


def describe_little(code: str) -> Fields:
    """Returns size and SHA-256 of code."""
    data = code.encode("utf-8", "surrogatepass")
    return {"code_bytes": len(data), "code_sha256": hashlib.sha256(data).hexdigest()}


def microseconds(seconds: float) -> int:
    """Returns a time as a record holds it: whole numbers alone."""
    return round(seconds * 1_000_000)


def whole(value: float | None) -> JsonValue:
    """Returns a number as a record holds it: one that is not whole becomes text."""
    if value is None or value == int(value):
        return value if value is None else int(value)

    return repr(value)


def _given(fields: Mapping[str, JsonValue]) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


class AuditTrail:
    """The audit record of one sandbox, as the engine writes it. Before `begin` and after `end` nothing is written."""

    def __init__(self) -> None:
        self._chain: AuditChain | None = None
        self._has_ended = False
        self._holds_on = False
        self._paces: dict[str, Pace] = {}
        self._left_out: Counter[str] = Counter()
        # What is to be written before the last entry: of executions that are under way when the sandbox ends.
        self._unfinished: dict[object, Callable[[], object]] = {}

    @property
    def is_open(self) -> bool:
        """Whether what is noted now is written."""
        return self._chain is not None and not self._has_ended

    @property
    def is_in_file(self) -> bool:
        """Whether what is noted outlives this process."""
        return self._chain is not None and self._chain.is_in_file

    @property
    def head(self) -> AuditHead | None:
        """Where it stands; None before it begins."""
        return None if self._chain is None else self._chain.head

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return 0 if self._chain is None else self._chain.size_bytes

    def begin(self, chain: AuditChain, make: Callable[[], Fields]) -> None:
        """The sandbox is handed out; what is made of it holds on to nothing that ends with it."""
        self._chain = chain
        self.note_later("created", make)

    def note(self, kind: str, fields: Mapping[str, JsonValue] | None = None) -> AuditHead | None:
        """Writes down what the engine or a caller does; what is empty in it is left out."""
        if self._chain is None or self._has_ended:
            return None

        return self._chain.add(kind, _given(fields or {}))

    def note_later(
        self, kind: str, make: Callable[[], Fields], *, holds_on: bool = False
    ) -> AuditHead | None:
        """Does what `note` does, but for what takes long: that is done by `settle`, or when somebody asks for it.

        Args:
            kind: What happened.
            make: Makes what is written.
            holds_on: Whether that keeps the sandbox in memory; then it is made at its end at the latest.
        """
        if self._chain is None or self._has_ended:
            return None

        self._holds_on = self._holds_on or holds_on
        return self._chain.add_later(kind, lambda: _given(make()))

    def settle(self) -> None:
        """Does what was left for later: now nobody waits."""
        if self._chain is not None:
            self._chain.settle()

    def note_of_guest(self, kind: str, fields: Mapping[str, JsonValue]) -> None:
        """Writes down what a guest has caused, unless it causes too much of it: then it is counted."""
        if not self.is_open:
            return

        if not self._paces.setdefault(kind, Pace()).admits():
            self._left_out[kind] += 1
            return

        self._tell_left_out(kind)
        self.note(kind, fields)

    def note_egress(self, record: EgressRecord) -> None:
        """Writes down what was decided about a connection."""
        self.note_of_guest(
            "egress",
            {
                "verdict": record.verdict,
                "protocol": record.kind,
                "name": shown(record.name),
                "port": record.port,
                "rule": shown(record.rule),
            },
        )

    def note_tool_call(self, execution_id: str, name: str, arguments: bytes) -> None:
        """Writes down that code has called a tool."""
        self.note_of_guest(
            "tool_call",
            {
                "execution": execution_id,
                "tool": name,
                "arguments_bytes": len(arguments),
                "arguments_sha256": small_digest(arguments),
            },
        )

    def under_way(self, key: object, write: Callable[[], object]) -> None:
        """Something goes on that must be written down even when the sandbox ends first."""
        self._unfinished[key] = write

    def is_finished(self, key: object) -> bool:
        """Something that went on has ended; true when it was written down already."""
        return self._unfinished.pop(key, None) is None

    def end(self, reason: str, breach: str) -> None:
        """The sandbox is no more."""
        if self._chain is None or self._has_ended:
            return

        for write in tuple(self._unfinished.values()):
            write()

        self._unfinished.clear()

        if self._holds_on:
            self._chain.settle()

        for kind in tuple(self._left_out):
            self._tell_left_out(kind)

        self.note_later("ended", lambda: {"reason": reason, "breach": shown(breach) or None})
        self._has_ended = True
        self._chain.close()

    def read(self, sandbox_id: str) -> AuditLog:
        """Returns the record as it stands."""
        # By the id that it has now: a fork may have taken the place of its parent.
        return AuditLog(sandbox_id=sandbox_id) if self._chain is None else self._chain.log(sandbox_id)

    def _tell_left_out(self, kind: str) -> None:
        count = self._left_out.pop(kind, 0)

        if count:
            self.note("left_out", {"kind": kind, "count": count})


class EndedTrails:
    """The records of sandboxes that have ended lately, within a bound of memory."""

    def __init__(self, max_bytes: int = _ENDED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        # Each with what it was counted for: its size is another once somebody has read it.
        self._trails: OrderedDict[str, tuple[AuditTrail, int]] = OrderedDict()

    def add(self, sandbox_id: str, trail: AuditTrail) -> None:
        """Keeps one; the oldest go."""
        _, former_bytes = self._trails.pop(sandbox_id, (None, 0))
        self._trails[sandbox_id] = trail, trail.size_bytes
        self._size_bytes += trail.size_bytes - former_bytes

        while self._size_bytes > self._max_bytes and len(self._trails) > 1:
            _, (_, oldest_bytes) = self._trails.popitem(last=False)
            self._size_bytes -= oldest_bytes

    def find(self, sandbox_id: str) -> AuditTrail | None:
        """Returns the record of a sandbox that has ended, if it is still kept."""
        trail, _ = self._trails.get(sandbox_id, (None, 0))
        return trail


class Pace:
    """How often something may be: so many at once, and so many a second in the long run."""

    def __init__(self) -> None:
        self._left = float(_AT_ONCE)
        self._looked_at = time.monotonic()

    def admits(self) -> bool:
        """Tells whether it may be once more, and counts it then."""
        now = time.monotonic()
        self._left = min(float(_AT_ONCE), self._left + (now - self._looked_at) * _PER_SECOND)
        self._looked_at = now

        if self._left < 1:
            return False

        self._left -= 1
        return True
