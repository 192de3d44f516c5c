"""Events of sandboxes for their followers: what runs, what it writes, and how it ends.

Used on both sides of the port. An event is plain data, made for JSON: text in it is a guest's. Large content, such as
that of a result, is named and not carried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fumehood.values.charts import JsonValue
from fumehood.values.json_text import json_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """One event of a sandbox, or of all sandboxes.

    Attributes:
        type: Its type. `here` comes first: later events follow `seq`. `gap` says that the events `from` to
            `to` are not kept any more. `ended` is the last one of a sandbox, with the reason.
        seq: Its number, which rises; that of `here` and of a `gap` is the number of the last event before.
        fields: Its data, by name, as plain data.
    """

    type: str
    seq: int = 0
    fields: Mapping[str, JsonValue] = field(default_factory=dict)

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the event as one object: `type`, `seq` and the fields."""
        return {"type": self.type, "seq": self.seq, **self.fields}


class WatchEvents(tuple[WatchEvent, ...]):
    """What a follower is given at once: events in order, at least one."""

    @cached_property
    def json(self) -> bytes:
        """All of them as one list in JSON, made once for all that are given the same."""
        # One call for a hundred of them costs a third of a call for each.
        return json_bytes([event.plain_data() for event in self])


def watch_event_of(line: Mapping[str, JsonValue]) -> WatchEvent:
    """Returns an event from its plain data."""
    fields = {name: value for name, value in line.items() if name not in ("type", "seq")}
    seq = line.get("seq")
    return WatchEvent(type=str(line.get("type")), seq=seq if isinstance(seq, int) else 0, fields=fields)
