"""Events of sandboxes for their followers: what runs, what it writes, and how it ends.

Used on both sides of the port. An event is plain data, made for JSON; text in it comes from a guest. Large content,
such as that of a result, is referred to and not included.
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
        type: Its type. `here` comes first; later events follow its `seq`. `gap` means that the events `from` to `to`
            are not kept any more. `ended` is the last one of a sandbox, with the reason.
        seq: Its number, in ascending order; for `here` and `gap`, the number of the last event before it.
        fields: Its data, by name, as plain data.
    """

    type: str
    seq: int = 0
    fields: Mapping[str, JsonValue] = field(default_factory=dict)

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the event as one object: `type`, `seq` and the fields."""
        return {"type": self.type, "seq": self.seq, **self.fields}


class WatchEvents(tuple[WatchEvent, ...]):
    """A batch of events for a follower: at least one, in order."""

    @cached_property
    def json(self) -> bytes:
        """The batch as a JSON list, made once for all followers that get the same batch."""
        # One call for a hundred of them costs a third of a call for each.
        return json_bytes([event.plain_data() for event in self])


def watch_event_of(line: Mapping[str, JsonValue]) -> WatchEvent:
    """Returns an event from its plain data."""
    fields = {name: value for name, value in line.items() if name not in ("type", "seq")}
    seq = line.get("seq")
    return WatchEvent(type=str(line.get("type")), seq=seq if isinstance(seq, int) else 0, fields=fields)
