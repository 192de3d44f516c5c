"""The form of results between a host daemon and the server in front of it: bytes in base64, not parsed values.

Pure functions. The server keeps a result as bytes and may never read them. As parsed values, a guest's JSON would be
parsed on both sides, in calls that hold the interpreter's lock for as long as the guest's content takes; the time to
read base64 does not depend on the content.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import TypeVar

from fumehood.values.charts import JsonValue
from fumehood.values.events import ExecutionFinished, ResultEvent
from fumehood.values.execution import Execution
from fumehood.values.plain_data import as_data
from fumehood.values.results import Result
from fumehood.values.stateless import StatelessReply

# A request with this header gets results in this form where the server knows it, and as values where it does not.
HEADER = "X-Fumehood-Results"
PARTS = "parts"
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CarriedResult(Result):
    """A result whose plain data consists of its raw parts, which `fumehood.values.codec` reads back."""

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the parts in base64 by MIME type, and the other fields as in any result."""
        return {
            "parts": {mime: base64.b64encode(part).decode() for mime, part in self.parts.items()},
            "metadata": as_data(self.metadata),
            "is_main_result": self.is_main_result,
            "display_id": self.display_id,
            "truncated": as_data(self.truncated),
        }


def carried(value: _T) -> _T:
    """Return a copy of an execution, an event or a reply with its results in this form; any other value unchanged."""
    match value:
        case Execution():
            return dataclasses.replace(value, results=tuple(map(_carried, value.results)))
        case ExecutionFinished() | StatelessReply():
            return dataclasses.replace(value, execution=carried(value.execution))
        case ResultEvent():
            return dataclasses.replace(value, result=_carried(value.result))
        case _:
            return value


def _carried(result: Result) -> Result:
    return CarriedResult(**{field.name: getattr(result, field.name) for field in dataclasses.fields(Result)})
