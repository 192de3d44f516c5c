"""Records of sandboxes that have ended: questions about them, and their answers.

Used on both sides of the port. Text in the answers comes from the guest, which ran with the rights of a key that may
have been deleted since.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fumehood.values.checks import check_integer, check_text
from fumehood.values.sandbox import SandboxInfo

MAX_LISTED_RECORDS = 500
_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptContext:
    """A context whose record is kept.

    Attributes:
        id: The context.
        language: Its language.
        cells: How many cells are kept.
    """

    id: str
    language: str
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedSandbox:
    """A sandbox that has ended, and whose record is kept.

    Attributes:
        sandbox: The description of the sandbox at its end.
        ended_at: When it ended (UTC).
        reason: Why it ended: killed, expired, idle, died, host_closed, lost, protocol_violation, out_of_memory,
            policy or excess.
        contexts: Its contexts with a record.
        cells: How many cells have run in it.
        commands: How many commands and terminals were started in it through the API.
        failed: How many of the kept cells ended with an error.
        last_outcome: The outcome of the cell that ended last: ok, or the kind of its error; None without any.
        cpu_seconds: CPU time of the kept cells, in seconds.
        peak_memory_bytes: The most memory that one of the kept cells used.
        size_bytes: The size of the record on its host's disk.
    """

    sandbox: SandboxInfo
    ended_at: datetime
    reason: str
    contexts: tuple[KeptContext, ...] = ()
    cells: int = 0
    commands: int = 0
    failed: int = 0
    last_outcome: str | None = None
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    size_bytes: int = 0

    @property
    def id(self) -> str:
        """The id that the sandbox had."""
        return self.sandbox.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRecords:
    """Asks for a page of the sandboxes that have ended, the latest end first.

    Attributes:
        owner: Only sandboxes of this owner.
        text: Only sandboxes with this text in id, template, owner, reason or a label, ignoring case.
        before: Only sandboxes listed after this one: the id of the last sandbox of the previous page.
        limit: The most sandboxes of the page.
    """

    owner: str | None = None
    text: str = ""
    before: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        check_text("q", self.text, max_bytes=_NAME_BYTES, empty=True)
        check_integer("limit", self.limit, low=1, high=MAX_LISTED_RECORDS)

        if self.before is not None:
            check_text("cursor", self.before, max_bytes=_NAME_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordList:
    """A page of the sandboxes that have ended.

    Attributes:
        is_kept: Whether records of sandboxes that end now are kept.
        items: The sandboxes, the latest end first.
        next_cursor: The `before` of the next page; None: this is the last page.
        left_out_hosts: The names of the machines of a cluster that did not answer: their records are in no page.
    """

    is_kept: bool
    items: tuple[EndedSandbox, ...] = ()
    next_cursor: str | None = None
    left_out_hosts: tuple[str, ...] = ()
