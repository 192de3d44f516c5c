"""What it costs to read text of a guest or a client: as much as it is long, never its square.

Nothing here is held against a clock on the wall. Eight times the text may cost some thirty times as much processor time
of this thread, which is generous for work that grows with the length and half of what its square would cost.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable

import pytest

from fumehood import scan
from fumehood.advice.cells import read_cell
from fumehood.dialects.jupyter.kernel_state import History
from fumehood.dialects.librechat.tool_runs import BrokerLines
from fumehood.egress.http_messages import HeadError, read_request_head
from fumehood.engine.security_events import unusual_program
from fumehood.llm.file_links import rewrite_links
from fumehood.llm.providers.fenced import FenceSplitter
from fumehood.mcp.files import Lines, _Window
from fumehood.server.downloads import Span, wanted_span
from fumehood.templates import requirements
from fumehood.values.sandbox import FileInfo

_TIMES = 8
_MOST_TIMES = 32
# What is quicker than this says nothing about growth; a square takes many times as long with each of these texts.
_IDLE_SECONDS = 0.02


def _seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        # A collection would count for the text that it happens to meet.
        gc.collect()
        gc.disable()
        try:
            begun = time.thread_time()
            work()
            return time.thread_time() - begun
        finally:
            gc.enable()

    return min(once() for _ in range(5))


def _assert_grows_evenly(read: Callable[[int], Callable[[], object]], size: int) -> None:
    small, large = _seconds(read(size)), _seconds(read(size * _TIMES))
    assert large <= max(_IDLE_SECONDS, small * _MOST_TIMES), f"{small:.4f} s, then {large:.4f} s"


def _proxy_header(size: int) -> Callable[[], object]:
    head = b"GET http://a/ HTTP/1.1\r\na:" + b" " * size + b"\x01\r\n\r\n"

    def read() -> None:
        with pytest.raises(HeadError):
            read_request_head(head)

    return read


def _range(size: int) -> Callable[[], object]:
    return lambda: _asked_for("bytes=" + " " * size + "x")


def _base64(size: int) -> Callable[[], object]:
    code = f'x = """{"A" * 200}{chr(9) * size}!"""'
    return lambda: scan(code)


def _history(size: int) -> Callable[[], object]:
    history = History()
    history.add(1, "a" * 100_000)
    return lambda: _searched(history, "*" + "?" * size + "b")


def _broker_line(size: int) -> Callable[[], object]:
    def read() -> None:
        lines = BrokerLines()

        for _ in range(size):
            lines.add(b"a" * 1_000)
            assert lines.take() is None

        lines.add(b"\nb\nc")
        assert lines.take() == b"a" * 1_000 * size
        assert (lines.take(), lines.take(), lines.held_bytes) == (b"b", None, 1)

    return read


def _fence(size: int) -> Callable[[], object]:
    return lambda: FenceSplitter().feed("```" + " " * size + "`\n")


def _spaces_one_by_one(size: int) -> Callable[[], object]:
    def read() -> None:
        splitter = FenceSplitter()
        told = [part for _ in range(size) for part in splitter.feed(" ")] + splitter.finish()
        assert "".join(part.text for part in told) == splitter.prose == " " * size

    return read


def _brackets(size: int) -> Callable[[], object]:
    text = ("[" + "a" * 19) * size
    return lambda: rewrite_links(text, [])


def _titles(size: int) -> Callable[[], object]:
    text = f"](sandbox:a{' ' * size}b)" * 50
    return lambda: rewrite_links(text, [])


def _shell_lines(size: int) -> Callable[[], object]:
    return lambda: [unusual_program(["sh", "-c", "\n" * size]) for _ in range(20)]


def _include(size: int) -> Callable[[], object]:
    return lambda: requirements._INCLUDE.match("-r" + " " * size)


def _file_lines(size: int) -> Callable[[], object]:
    def read() -> None:
        window = _Window(1, size + 1, size * 4)
        assert not any(window.take(b"a\n") for _ in range(size))
        assert window.lines(size * 4) == Lines("a\n" * size, None, is_cut=False)

    return read


def _asked_for(value: str) -> Span | None:
    info = FileInfo(
        name="a",
        path="/a",
        type="file",
        size_bytes=100,
        mode=0o644,
        permissions="",
        owner="",
        group="",
        modified_at=None,
    )
    return wanted_span({"range": value}, info, "e")


def _searched(history: History, pattern: str) -> list[int]:
    found = history.answer({"hist_access_type": "search", "pattern": pattern, "n": 10})
    return [number for _, number, _ in found]


@pytest.mark.parametrize(
    ("read", "size"),
    [
        pytest.param(_proxy_header, 3_000, id="header to the proxy"),
        pytest.param(_range, 4_000, id="range"),
        pytest.param(_base64, 4_000, id="encoded text"),
        pytest.param(_broker_line, 3_000, id="line of a broker"),
        pytest.param(_fence, 2_000, id="first line of a block"),
        pytest.param(_spaces_one_by_one, 4_000, id="spaces one by one"),
        pytest.param(_brackets, 15_000, id="brackets"),
        pytest.param(_titles, 230, id="title of a link"),
        pytest.param(_shell_lines, 480, id="lines of a shell"),
        pytest.param(_include, 2_000, id="line of requirements"),
        pytest.param(_file_lines, 400, id="lines of a file"),
    ],
)
def test_reading_costs_as_much_as_the_text_is_long(
    read: Callable[[int], Callable[[], object]], size: int
) -> None:
    """Texts made for readers that go back over what they have read."""
    _assert_grows_evenly(read, size)


def test_a_search_of_the_history_is_bounded() -> None:
    """A pattern is as long as a search of a console is, and a cell is searched as far as people look."""
    short, long = _seconds(_history(90)), _seconds(_history(90 * 10))
    assert long <= max(_IDLE_SECONDS, short * 3)

    history = History()
    history.add(1, "import pandas\n" + "x = 1\n" * 10_000)
    history.add(2, "y" * 200)
    assert _searched(history, "import*") == [1]
    assert _searched(history, "*pandas*") == [1]
    assert _searched(history, "y" * 150 + "*") == [2]
    assert _searched(history, "z" * 150 + "*") == []


def test_a_range_is_read_with_its_spaces() -> None:
    """As the standard's lists allow them."""
    assert _asked_for("bytes = 2 - 5 ") == Span(2, 6)
    assert _asked_for("bytes=-5") == Span(95, 100)
    assert _asked_for("bytes=90-") == Span(90, 100)
    assert _asked_for("bytes=-") is None


def test_nothing_is_kept_of_how_far_a_cell_is_indented() -> None:
    """The indent of a whole cell goes; what has read it holds nothing that is as large."""
    assert read_cell(" \n  x = 1\n    y\n z\n").python == " \nx = 1\n  y\n z\n"
    tracemalloc.start()
    try:
        read_cell(" " * 200_000 + "x = 1\n")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held_bytes < 100_000


@pytest.mark.parametrize("step", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("first", "count", "shown", "goes_on_at"),
    [
        (1, 2, "a\nbb\n", 3),
        (2, 2, "bb\n\n", 4),
        (3, 9, "\nd", None),
        (1, 4, "a\nbb\n\nd", None),
        (9, 1, "", None),
    ],
)
def test_lines_are_the_same_in_any_pieces(
    step: int, first: int, count: int, shown: str, goes_on_at: int | None
) -> None:
    """Wherever a line is cut, and whether or not more follows the last that is wanted."""
    window = _Window(first, count, 1_000)
    content = b"a\nbb\n\nd"

    for at in range(0, len(content), step):
        if window.take(content[at : at + step]):
            break

    assert window.lines(1_000) == Lines(shown, goes_on_at, is_cut=False)
