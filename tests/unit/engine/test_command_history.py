"""The commands that a sandbox keeps for later readers: bounds of number and size, their ends, and pages of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, islice, product

import pytest

from fumehood.bounds import KIB, MIB
from fumehood.cli.logs import _behind
from fumehood.engine.command_history import CommandHistory, page_of, text_page
from fumehood.engine.command_output import CommandOutput
from fumehood.values.limits import Limits
from fumehood.values.looking import CommandPage, ReadCommands
from fumehood.values.requests import ProcessOutput
from fumehood.values.sandbox import ProcessInfo

END = 16 * KIB


class Running:
    """A command with the output of a real one."""

    timed_out = False

    def __init__(self, number: int = 0, limits: Limits | None = None) -> None:
        self.info = ProcessInfo(
            pid=number + 2, argv=("/bin/bash", "-l", "-c", f"run {number}"), cwd="/", envs={}
        )
        self.output = CommandOutput(limits or Limits())

    def excerpt(self, end_bytes: int) -> list[ProcessOutput]:
        return self.output.excerpt(end_bytes)


def read(history: CommandHistory, after: int | None = None, limit: int = 200) -> CommandPage:
    return text_page(history.find(ReadCommands(after=after, limit=limit)))


def turns(output: CommandOutput, count: int) -> None:
    for stream in islice(cycle(("stdout", "stderr")), count):
        output.add(stream, b"a")


def test_all_pages_have_every_command_that_is_kept_once_in_order():
    """Beyond 256 the oldest are dropped and counted, also one that runs; its end changes nothing then."""
    history, first = CommandHistory(), Running()
    history.begin(first)

    for number in range(1, 300):
        history.begin(running := Running(number))
        history.end(running, number)

    history.end(first, 0)
    pages = [read(history, limit=100)]

    while (after := pages[-1].next_cursor) is not None:
        pages.append(read(history, after, limit=100))

    assert [one.number for page in pages for one in page.items] == list(range(44, 300))
    assert [one.exit_code for one in pages[0].items] == list(range(44, 144))
    assert {page.dropped_commands for page in pages} == {44}
    assert read(history, after=299) == CommandPage(dropped_commands=44)


def test_streams_that_take_turns_hold_no_more_than_is_counted():
    """An excerpt has a bounded number of pieces, and each counts, so that the bound of the history holds."""
    history = CommandHistory()

    for number in range(8):
        history.begin(running := Running(number))
        turns(running.output, 2 * 16_384)
        running.output.end()
        history.end(running, 0)

    (page,) = [read(history)]
    assert [len(one.output) for one in page.items] == [66] * len(page.items)
    assert sum(piece.size_bytes for piece in page.items[0].output) == 32 * KIB
    assert history.size_bytes > 8 * 66 * 150

    for number in range(8, 100):
        history.begin(running := Running(number))
        running.output.add("stdout", bytes(100 * KIB))
        running.output.end()
        history.end(running, 0)

    assert history.size_bytes <= MIB
    assert read(history).dropped_commands > 60


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_page_is_bounded_by_its_output_also_of_commands_that_run(has_ended):
    """However many are asked for; the cursor leads to the rest."""
    history = CommandHistory()

    for number in range(20):
        history.begin(running := Running(number))
        running.output.add("stdout", bytes(100 * KIB))

        if has_ended:
            running.output.end()
            history.end(running, 0)

    page = read(history, limit=500)
    assert 0 < sum(piece.size_bytes for one in page.items for piece in one.output) < 320 * KIB
    assert page.next_cursor == page.items[-1].number < 19


def test_commands_of_an_ended_sandbox_are_within_the_same_bounds():
    """The latest are kept, those that ran until the end among them; pages of them are like those of a living one."""
    history = CommandHistory()

    for number in range(100):
        history.begin(running := Running(number))
        running.output.add("stdout", bytes(100 * KIB))

        if number % 2:
            running.output.end()
            history.end(running, number)

    last = history.take_last()
    assert last.size_bytes <= MIB
    whole = text_page(last.read())
    assert whole.dropped_commands + len(whole.items) == history.count == 100
    assert [one.number for one in whole.items] == list(range(whole.dropped_commands, 100))
    assert [one.exit_code for one in whole.items[-2:]] == [None, 99]
    assert 900 * KIB < sum(piece.size_bytes for one in whole.items for piece in one.output) < MIB

    pages = [page_of(whole, ReadCommands(limit=100))]
    assert len(pages[0].items) < 10

    while (after := pages[-1].next_cursor) is not None:
        pages.append(page_of(whole, ReadCommands(after=after)))

    assert tuple(one for page in pages for one in page.items) == whole.items
    bare = last.without_output()
    assert [one.number for one in text_page(bare.read()).items] == [one.number for one in whole.items]
    assert bare.size_bytes < 100 * KIB


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize(("out", "err"), list(product((0, 5, 20, 90, 300), (0, 9, 40, 300))))
@pytest.mark.parametrize("turn", [1, 20])
def test_the_ends_of_output_give_the_same_excerpt(out, err, turn, is_ended):
    """Whatever is within the limits, beyond them, or in many turns; the copy holds the ends only."""
    output = CommandOutput(replace(Limits(), stdout_bytes=64 * KIB, stderr_bytes=64 * KIB))
    sizes = {"stdout": out * KIB, "stderr": err * KIB}

    for number in range(turn):
        for place, (stream, size) in enumerate(sizes.items()):
            line = f"\u00e4\u20ac {number} {place}\n".encode()
            output.add(stream, (line * (size // len(line) + 1))[: size // turn])

    if is_ended:
        output.end()

    ends = output.ends(END)
    assert ends.size_bytes <= 4 * END
    assert ends.excerpt(END) == output.excerpt(END)


def test_an_excerpt_has_the_beginning_in_order_and_the_end_of_each_stream():
    """Each piece has its place in its stream, within the limits and beyond; characters stay whole."""
    limits = replace(Limits(), stdout_bytes=64 * KIB)
    history, running = CommandHistory(), Running(limits=limits)
    history.begin(running)
    output = running.output
    output.add("stdout", b"begin ")
    output.add("stderr", b"problem ")
    written = b"begin "

    for number in range(20_000):
        written += (line := f"\u00e4 {number}\n".encode())
        output.add("stdout", line)

    output.add("stdout", b"\xe2\x82")
    (one,) = read(history).items
    assert [piece.stream for piece in one.output] == ["stdout", "stderr", "stdout", "stdout"]

    for piece in one.output:
        if piece.stream == "stdout":
            end = piece.begin_bytes + piece.size_bytes
            assert piece.text.encode() == written[piece.begin_bytes : end]

    assert one.output[-1].begin_bytes + one.output[-1].size_bytes == len(written)
    assert sum(piece.size_bytes for piece in one.output[:3]) in range(END - 3, END + 1)
    assert one.output[-1].size_bytes in range(END - 6, END + 1)


@pytest.mark.parametrize(
    ("data", "skipped_bytes", "rest"),
    [
        ("a\u20acb".encode(), 4, "b"),
        (b"\xffab", 1, "ab"),
        ("\ufffdab".encode(), 3, "ab"),
        (b"\xff\xef\xbf\xbdab", 4, "ab"),
        (b"ab", 0, "ab"),
    ],
    ids=["text", "binary", "replacement", "both", "nothing"],
)
def test_a_follower_goes_on_at_a_byte(data, skipped_bytes, rest):
    """Also behind bytes that are no UTF-8, and behind characters that look like them."""
    history = CommandHistory()
    history.begin(running := Running())
    running.output.add("stdout", data)
    (piece,) = read(history).items[0].output
    assert _behind(piece, skipped_bytes) == rest
