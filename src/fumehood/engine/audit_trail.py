"""The audit record of a sandbox as the engine writes it, from the hand-out to the end.

Data of guests is recorded as bounded text with escaped control characters, as numbers and as digests; code,
environment, input and contents never are. Events that a guest can cause at will are recorded up to a rate and counted
beyond it, so that a guest cannot displace earlier entries.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

from fumehood.audit.chain import AuditChain
from fumehood.bounds import KIB, MIB
from fumehood.text import visible_line
from fumehood.token_bucket import TokenBucket
from fumehood.values.audit import AuditHead, AuditLog
from fumehood.values.charts import JsonValue
from fumehood.values.network import EgressRecord

_MAX_CHARACTERS = 200
_MAX_LISTED = 20
# Above this size a digest is computed in a thread, or not at all if it is dispensable.
_SMALL_BYTES = 256 * KIB
# Rate of the entries of each kind that a guest causes: burst, and per second in the long run.
_AT_ONCE = 100
_PER_SECOND = 10.0
# The same for reads of files by readers of shares.
_READS_AT_ONCE = 10
_READS_PER_SECOND = 1 / 60
_ENDED_BYTES = 16 * MIB

Fields = dict[str, JsonValue]


def shown(text: str) -> str:
    """Returns the beginning of a text as one line without control characters."""
    # The text is cut before it is escaped, because its length is not bounded.
    return visible_line(text[: _MAX_CHARACTERS + 1], max_characters=_MAX_CHARACTERS)


def listed(texts: Sequence[str]) -> list[JsonValue]:
    """Returns the first of some texts, each as `shown`."""
    return [shown(text) for text in texts[:_MAX_LISTED]]


def small_digest(data: bytes) -> str | None:
    """Returns the SHA-256 of few bytes; None for many."""
    return hashlib.sha256(data).hexdigest() if len(data) <= _SMALL_BYTES else None


async def describe_code(code: str) -> Fields:
    """Returns size and SHA-256 of code; much of it is hashed in a thread."""
    return describe_little(code) if is_little(code) else await asyncio.to_thread(describe_little, code)


def is_little(code: str) -> bool:
    """Whether the code is so short that its digest takes negligible time."""
    return len(code) <= _SMALL_BYTES


def describe_little(code: str) -> Fields:
    """Returns size and SHA-256 of code."""
    data = code.encode("utf-8", "surrogatepass")
    return {"code_bytes": len(data), "code_sha256": hashlib.sha256(data).hexdigest()}


def microseconds(seconds: float) -> int:
    """Returns a time for a record, which holds whole numbers only."""
    return round(seconds * 1_000_000)


def whole(value: float | None) -> JsonValue:
    """Returns an integer as it is and any other number as text, because entries hold no fractions."""
    if value is None or value == int(value):
        return value if value is None else int(value)

    return repr(value)


def _given(fields: Mapping[str, JsonValue]) -> Fields:
    return {name: value for name, value in fields.items() if value is not None}


class AuditTrail:
    """The audit record of one sandbox, as the engine writes it. Before `begin` and after `end` it discards entries."""

    def __init__(self) -> None:
        self._chain: AuditChain | None = None
        self._has_ended = False
        self._holds_on = False
        self._buckets: dict[str, TokenBucket] = {}
        self._left_out: Counter[str] = Counter()
        # Writers for executions under way, called before the last entry when the sandbox ends.
        self._unfinished: dict[object, Callable[[], object]] = {}

    @property
    def is_open(self) -> bool:
        """Whether entries are recorded now."""
        return self._chain is not None and not self._has_ended

    @property
    def is_in_file(self) -> bool:
        """Whether entries outlive this process."""
        return self._chain is not None and self._chain.is_in_file

    @property
    def head(self) -> AuditHead | None:
        """The head of the record; None before it begins."""
        return None if self._chain is None else self._chain.head

    @property
    def size_bytes(self) -> int:
        """The memory that the record takes, in bytes."""
        return 0 if self._chain is None else self._chain.size_bytes

    def begin(self, chain: AuditChain, make: Callable[[], Fields]) -> None:
        """Begins the record; `make` must not hold references to the sandbox."""
        self._chain = chain
        self.note_later("created", make)

    def note(self, kind: str, fields: Mapping[str, JsonValue] | None = None) -> AuditHead | None:
        """Records an action of the engine or a caller; None values are left out."""
        if self._chain is None or self._has_ended:
            return None

        return self._chain.add(kind, _given(fields or {}))

    def note_later(
        self, kind: str, make: Callable[[], Fields], *, holds_on: bool = False
    ) -> AuditHead | None:
        """Like `note`, for entries that take long to make: they are made by `hash_pending`, or for the first reader.

        Args:
            kind: The kind of entry.
            make: Returns the fields.
            holds_on: Whether `make` keeps the sandbox in memory; if so, it is called at the sandbox's end at the
                latest.
        """
        if self._chain is None or self._has_ended:
            return None

        self._holds_on = self._holds_on or holds_on
        return self._chain.add_later(kind, lambda: _given(make()))

    def hash_pending(self) -> None:
        """Makes the deferred entries, at a moment when no caller waits."""
        if self._chain is not None:
            self._chain.hash_pending()

    def note_of_guest(self, kind: str, fields: Mapping[str, JsonValue]) -> None:
        """Records an event that a guest has caused; only counts it beyond the allowed rate."""
        if not self.is_open:
            return

        if not self._buckets.setdefault(kind, event_bucket()).take():
            self._left_out[kind] += 1
            return

        self._tell_left_out(kind)
        self.note(kind, fields)

    def note_share_read(self, fields: Mapping[str, JsonValue]) -> None:
        """Records that the reader of a share has read a file; most of many such reads are only counted."""
        self._buckets.setdefault("share_read", TokenBucket(_READS_AT_ONCE, _READS_PER_SECOND))
        self.note_of_guest("share_read", fields)

    def note_volume_read(self, fields: Mapping[str, JsonValue]) -> None:
        """Records that a file was read for a volume; most of many such reads are only counted."""
        self._buckets.setdefault("volume_read", TokenBucket(_READS_AT_ONCE, _READS_PER_SECOND))
        self.note_of_guest("volume_read", fields)

    def note_egress(self, record: EgressRecord) -> None:
        """Records a decision about a connection."""
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
        """Records that code has called a tool."""
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
        """Registers a function that writes the entry of an execution if the sandbox ends before the execution does."""
        self._unfinished[key] = write

    def is_finished(self, key: object) -> bool:
        """Unregisters an execution; returns True if its entry was written already."""
        return self._unfinished.pop(key, None) is None

    def end(self, reason: str, breach: str) -> None:
        """Writes the last entries, and closes the record."""
        if self._chain is None or self._has_ended:
            return

        for write in tuple(self._unfinished.values()):
            write()

        self._unfinished.clear()

        if self._holds_on:
            self._chain.hash_pending()

        for kind in tuple(self._left_out):
            self._tell_left_out(kind)

        self.note_later("ended", lambda: {"reason": reason, "breach": shown(breach) or None})
        self._has_ended = True
        self._chain.close()

    def reading(self, sandbox_id: str) -> Callable[[], AuditLog]:
        """Returns a function that makes the log of the entries so far; it may run in another thread."""
        return (
            (lambda: AuditLog(sandbox_id=sandbox_id))
            if self._chain is None
            else self._chain.reading(sandbox_id)
        )

    def read(self, sandbox_id: str) -> AuditLog:
        """Returns the record in its present state."""
        # Under its present id: a fork may have taken the place of its parent.
        return AuditLog(sandbox_id=sandbox_id) if self._chain is None else self._chain.log(sandbox_id)

    def _tell_left_out(self, kind: str) -> None:
        count = self._left_out.pop(kind, 0)

        if count:
            self.note("left_out", {"kind": kind, "count": count})


class EndedTrails:
    """The records of sandboxes that ended recently, within a bound of memory."""

    def __init__(self, max_bytes: int = _ENDED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        # Each with its counted size, which changes once the record is read.
        self._trails: OrderedDict[str, tuple[AuditTrail, int]] = OrderedDict()

    def add(self, sandbox_id: str, trail: AuditTrail) -> None:
        """Stores an ended sandbox's trail, and evicts the oldest beyond the memory bound."""
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


def event_bucket() -> TokenBucket:
    """Returns the bound of one kind of events that a guest can cause at will."""
    return TokenBucket(_AT_ONCE, _PER_SECOND)
