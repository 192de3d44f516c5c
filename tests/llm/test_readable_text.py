"""Texts for models, whatever a guest has written: bounded, counted, and nothing hidden in them."""

from __future__ import annotations

import re
import struct
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood import Execution, ExecutionError, LogEntry, Logs, Result
from fumehood.llm.error_text import Surroundings
from fumehood.llm.execution_text import Shape, preview_table, tell
from fumehood.llm.images import ImageBounds, ImageShelf
from fumehood.llm.readable_text import fair_shares, in_bytes, readable, readable_ends, shorten

MARK = re.compile(r"\n\.\.\. ([\d,]+) characters left out \.\.\.\n")
SHAPE = Shape(1_000, ImageBounds(2, 1_000))
TEXTS = st.text(st.characters(codec="utf-8"), max_size=3_000)


@given(TEXTS, st.integers(100, 2_000))
def test_what_is_shortened_is_counted(text: str, max_chars: int) -> None:
    """Head, tail and the number between them make the whole."""
    shown = shorten(text, max_chars)

    assert len(shown) <= max(max_chars, len(text) if len(text) <= max_chars else 0)

    if len(text) > max_chars:
        found = MARK.search(shown)
        assert found is not None
        assert len(shown) - len(found[0]) + int(found[1].replace(",", "")) == len(text)


@given(st.lists(st.integers(0, 10_000), max_size=20), st.integers(0, 10_000))
def test_shares_are_fair(sizes: list[int], room: int) -> None:
    """Nobody gets more than it needs, nothing is handed out twice, and nobody short waits for somebody long."""
    shares = fair_shares(sizes, room)

    assert sum(shares) <= room
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == sum(sizes) or room - sum(shares) < len(sizes)
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    assert not cut or max(cut) - min(cut) <= 1


@given(TEXTS)
def test_nothing_is_hidden(text: str) -> None:
    """No controls, no formats of text direction, no tags, none that cannot be encoded."""
    shown = readable(text)
    shown.encode()

    for character in set(shown) - {"\n", "\t"}:
        assert unicodedata.category(character) not in ("Cc", "Cs"), repr(character)
        assert not 0xE0000 <= ord(character) < 0xE0080


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r50%\r100%\ndone", "100%\ndone"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10%\r", "10%"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_texts_look_as_in_a_terminal(text: str, shown: str) -> None:
    """Colours and overwritten states go; what would act is spelled out."""
    assert readable(text) == shown


def test_a_line_without_end_costs_its_length() -> None:
    """Megabytes of one line, with a carriage return at the end: linear work."""
    assert readable("a" * 2_000_000 + "\n\rx") == "a" * 2_000_000 + "\nx"


def test_very_long_texts_are_looked_at_by_their_ends() -> None:
    """The middle is counted unseen."""
    excerpt = readable_ends("h" * 10_000_000 + "t", 1_000)
    shown = shorten(excerpt, 1_000)

    assert len(shown) <= 1_000
    assert shown.endswith("t")
    found = MARK.search(shown)
    assert found is not None
    assert int(found[1].replace(",", "")) == 10_000_001 - (len(shown) - len(found[0]))


@given(st.lists(TEXTS, max_size=6), TEXTS, st.integers(0, 30))
def test_the_whole_answer_is_bounded(texts: list[str], error: str, files: int) -> None:
    """However much was printed, shown, raised and left behind."""
    execution = Execution(
        id="e",
        context_id="default",
        logs=Logs(entries=tuple(LogEntry(stream="stdout", text=text * 3, at_seconds=0) for text in texts)),
        results=tuple(Result(parts={"text/plain": text.encode()}) for text in texts),
        error=ExecutionError(kind="exception", name="E", value=error, traceback=error * 3),
        execution_count=1,
    )
    told = tell(execution, "1/0", SHAPE, Surroundings(), [f"[new file: /mnt/data/{n}]" for n in range(files)])

    assert len(told.text) <= 1_300
    assert told.images == ()


@given(st.binary(max_size=200))
def test_any_bytes_may_call_themselves_an_image(data: bytes) -> None:
    """A header that is cut or lies is refused, and never an exception."""
    for mime, magic in (("image/png", b"\x89PNG\r\n\x1a\n"), ("image/jpeg", b"\xff\xd8\xff")):
        shelf = ImageShelf(ImageBounds(2, 1_000))
        assert shelf.take(Result(parts={mime: magic + data})).startswith("[image 1")


def jpeg(width: int, height: int) -> bytes:
    segment = b"\xff\xe0" + struct.pack(">H", 16) + bytes(14)
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return b"\xff\xd8" + segment + frame


def test_the_sides_of_a_jpeg_are_read() -> None:
    """From its frame header, past the segments before it."""
    shelf = ImageShelf(ImageBounds(2, 1_000))

    assert shelf.take(Result(parts={"image/jpeg": jpeg(640, 480)})).startswith("[image 1: image/jpeg")
    assert "9000 x 10 pixels" in shelf.take(Result(parts={"image/jpeg": jpeg(9000, 10)}))
    assert [image.name for image in shelf.images] == ["image-1.jpg"]


@pytest.mark.parametrize(
    ("data", "metadata"),
    [
        (b"{}", {}),
        (b"[1]", {}),
        (b'{"a": 1}', {}),
        (b'{"a": [1]}', {"rows": -5, "columns": "x"}),
        (b'{"a": [1]}', {"rows": 10**30, "columns": True}),
        (b'{"a": [], "b": [null]}', {"rows": 2.5}),
        (b"\xff", {}),
    ],
)
def test_what_a_guest_says_of_a_table_is_checked(data: bytes, metadata: dict[str, object]) -> None:
    """Numbers that are none are replaced by what has come."""
    mime = "application/vnd.fumehood.data+json"
    parts = {"text/plain": b"the text", mime: data}

    assert "the text" in preview_table(Result(parts=parts, metadata={mime: metadata}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (3 << 30, "3 GiB"),
    ],
)
def test_sizes_read_well(size: int, text: str) -> None:
    """As people write them."""
    assert in_bytes(size) == text
