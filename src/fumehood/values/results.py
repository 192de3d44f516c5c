"""One result of an execution: a MIME bundle, decoded when it is read.

The parts are a guest's bytes: kept as received (within the limits), decoded only on request, within bounds, and never
rendered, imported or executed. A part that does not have its type's format reads as None; its bytes stay in `parts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from fumehood.text import shortened, visible
from fumehood.values import safe_html
from fumehood.values.charts import Chart, JsonValue, read_chart
from fumehood.values.json_values import JSON_STRING, count_values
from fumehood.values.plain_data import as_data

TEXT_MIME = "text/plain"
DATA_MIME = "application/vnd.fumehood.data+json"
CHART_MIME = "application/vnd.fumehood.chart+json"

# The attribute of `Result` for each type that has one; all other types are in `extra`.
FORMATS: Mapping[str, str] = {
    TEXT_MIME: "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    DATA_MIME: "data",
    CHART_MIME: "chart",
}

# The formats that a notebook on the host may show of a guest's bundle. HTML, SVG and JavaScript are excluded: they
# would run in the page.
_PASSIVE = ("image/png", "image/jpeg")
# Characters of the text in `repr`.
_REPR_CHARACTERS = 60

# A JSON value costs about 40 bytes of memory, whatever the length of its text.
_MAX_JSON_VALUES = 1_000_000
# A member of an object costs five times the time as well: all of them are parsed in one call that cannot be
# interrupted.
_MAX_JSON_MEMBERS = 100_000
# The maximum cost of a value, beside its text: an object in an object.
_VALUE_BYTES = 200
# Parsed when the attribute is read, and when a result is written for a client: a value of a list costs little, a list,
# an object and each of its members much more.
_READ_MIMES = ("application/json", DATA_MIME, CHART_MIME)
_ITEM_BYTES = 20
_MEMBER_BYTES = 100
# Below this cost separators inside texts are not told apart from values, and neither above this number of texts.
_SMALL_COST_BYTES = 1 << 20
_MANY_TEXTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result that an execution displayed (`display`, a figure) or returned (its last expression).

    Attributes:
        parts: The bytes of each format by MIME type, as the guest sent them.
        metadata: Metadata of the formats, such as the size of a picture.
        is_main_result: True for the value of the last expression.
        display_id: The name under which the code may update it.
        truncated: The original size in bytes of each format that was cut or left out because of
            `limits.result_bytes`.
    """

    parts: Mapping[str, bytes]
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    is_main_result: bool = False
    display_id: str | None = None
    truncated: Mapping[str, int] = field(default_factory=dict)

    def formats(self) -> list[str]:
        """Return the names of the attributes that are not None, and the types in `extra`."""
        return [FORMATS.get(mime, mime) for mime in self.parts]

    @property
    def size_bytes(self) -> int:
        """Size of all parts together."""
        return sum(len(part) for part in self.parts.values())

    @property
    def text(self) -> str | None:
        """The plain text, as `repr` gave it."""
        return self._text(TEXT_MIME)

    @property
    def html(self) -> str | None:
        """The HTML; hostile, so never put it in a page without a sandboxed frame."""
        return self._text("text/html")

    @property
    def markdown(self) -> str | None:
        """The Markdown."""
        return self._text("text/markdown")

    @property
    def svg(self) -> str | None:
        """The SVG; it may hold scripts, so treat it like HTML."""
        return self._text("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """The result as the bytes of a PNG file; None if it has no such format."""
        return self.parts.get("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """The result as the bytes of a JPEG file; None if it has no such format."""
        return self.parts.get("image/jpeg")

    @property
    def pdf(self) -> bytes | None:
        """The bytes of a PDF file."""
        return self.parts.get("application/pdf")

    @property
    def latex(self) -> str | None:
        """The LaTeX."""
        return self._text("text/latex")

    @property
    def javascript(self) -> str | None:
        """The JavaScript; hostile."""
        return self._text("application/javascript")

    @cached_property
    def json(self) -> JsonValue:
        """The JSON value, or None if the result has none or it cannot be read within bounds."""
        return read_json(self.parts.get("application/json"))

    @cached_property
    def data(self) -> dict[str, list[JsonValue]] | None:
        """A data frame as lists by column."""
        value = read_json(self.parts.get(DATA_MIME))

        if not isinstance(value, dict):
            return None

        return {name: column for name, column in value.items() if isinstance(column, list)}

    @cached_property
    def chart(self) -> Chart | None:
        """A figure as data."""
        return read_chart(read_json(self.parts.get(CHART_MIME)))

    @property
    def extra(self) -> dict[str, bytes]:
        """The parts whose type has no attribute."""
        return {mime: part for mime, part in self.parts.items() if mime not in FORMATS}

    @cached_property
    def _held_bytes(self) -> int:
        # Computed once: it takes milliseconds for a large text, and each queue on the way needs it.
        read = sum(_read_cost(self.parts[mime]) for mime in _READ_MIMES if mime in self.parts)
        return self.size_bytes + read + json_cost(self.metadata)

    def _text(self, mime: str) -> str | None:
        part = self.parts.get(mime)
        return None if part is None else part.decode("utf-8", "replace")

    def plain_data(self) -> dict[str, JsonValue]:
        """Return the result as plain data: its formats by name, binary ones in base64, and its metadata."""
        formats = {name: as_data(getattr(self, name)) for name in FORMATS.values()}
        return {
            **{name: content for name, content in formats.items() if content is not None},
            "extra": as_data(self.extra),
            "metadata": as_data(self.metadata),
            "is_main_result": self.is_main_result,
            "display_id": self.display_id,
            "truncated": as_data(self.truncated),
        }

    def __str__(self) -> str:
        return self.text or f"Result({', '.join(self.formats())})"

    def __repr__(self) -> str:
        shown = [] if self.text is None else [f"text={shortened(self.text, _REPR_CHARACTERS)!r}"]
        shown += [
            f"{FORMATS.get(mime, mime)}: {len(part):,} bytes"
            for mime, part in self.parts.items()
            if mime != TEXT_MIME
        ]
        return f"Result({', '.join(shown)})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str | bytes]:
        """Show pictures and plain text in a notebook on the host; nothing that could run there."""
        shown: dict[str, str | bytes] = {mime: self.parts[mime] for mime in _PASSIVE if mime in self.parts}
        shown[TEXT_MIME] = visible(str(self))
        return shown

    def _repr_html_(self) -> str:
        """Show a picture, a table or the text in a page; the guest's own HTML is left out, since it could run there."""
        picture = next((mime for mime in _PASSIVE if mime in self.parts), None)

        if picture is not None:
            return safe_html.picture(picture, self.parts[picture])

        return safe_html.table(self.data) if self.data else safe_html.preformatted(str(self))


def held_bytes(result: Result) -> int:
    """Return the approximate size of a result in memory: its parts, their parsed values, and its metadata."""
    return result._held_bytes


def json_cost(value: Mapping[str, JsonValue]) -> int:
    """Return an upper bound of the memory of a JSON object, however small its values are."""
    if not value:
        return 0

    text = json.dumps(value)
    return len(text) + _VALUE_BYTES * sum(map(text.count, ",[{"))


def _read_cost(data: bytes) -> int:
    """Return the approximate memory of the values of a JSON text."""
    cost = _count_cost(data)

    if cost <= _SMALL_COST_BYTES or data.count(b'"') > 2 * _MANY_TEXTS:
        return cost

    return _count_cost(_without_texts(data))


def _without_texts(data: bytes) -> bytes:
    """Return a JSON text without the content of its strings; three times as fast as a pattern for strings."""
    # A pair of backslashes is a character of its own, so that it escapes no quotation mark behind it.
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(unescaped.split(b'"')[::2])


def _count_cost(data: bytes) -> int:
    return _ITEM_BYTES * data.count(b",") + _MEMBER_BYTES * sum(map(data.count, (b"[", b"{", b":")))


def fit_result(result: Result, max_bytes: int) -> Result:
    """Return `result` cut to fit: the smallest formats are kept, plain text is cut, and other formats are left out."""
    if result.size_bytes <= max_bytes:
        return result

    room = max_bytes
    kept: dict[str, bytes] = {}
    truncated = dict(result.truncated)

    for mime, part in sorted(result.parts.items(), key=lambda item: len(item[1])):
        if len(part) <= room:
            kept[mime] = part
        else:
            truncated.setdefault(mime, len(part))

            if mime == TEXT_MIME:
                kept[mime] = cut_text(part, room)

        room = max_bytes - sum(len(other) for other in kept.values())

    return Result(
        parts={mime: kept[mime] for mime in result.parts if mime in kept},
        metadata=result.metadata,
        is_main_result=result.is_main_result,
        display_id=result.display_id,
        truncated=truncated,
    )


def cut_text(text: bytes, max_bytes: int) -> bytes:
    """Return the longest head of UTF-8 `text` within `max_bytes` that does not end inside a character."""
    return text[:max_bytes].decode("utf-8", "ignore").encode() if len(text) > max_bytes else text


def read_json(data: bytes | None) -> JsonValue:
    """Return the JSON value in a guest's bytes, or None if it is broken, too deep or has too many values."""
    if data is None or not _is_bounded(data):
        return None

    try:
        value: JsonValue = json.loads(data)
    except (ValueError, RecursionError):
        return None

    return value


def _is_bounded(data: bytes) -> bool:
    if data.count(b":") <= _MAX_JSON_MEMBERS and count_values(data) <= _MAX_JSON_VALUES:
        return True

    # Separators inside strings are no values; checked only when it matters, string by string: one call for all of them
    # would hold the interpreter's lock for long.
    members = values = end = 0

    for string in JSON_STRING.finditer(data):
        between = data[end : string.start()]
        end = string.end()
        members += between.count(b":")
        values += count_values(between)

        if members > _MAX_JSON_MEMBERS or values > _MAX_JSON_VALUES:
            return False

    rest = data[end:]
    return members + rest.count(b":") <= _MAX_JSON_MEMBERS and values + count_values(rest) <= _MAX_JSON_VALUES
