"""What fails on the caller's side of a call is the caller's: it comes back as it is, and the sandbox goes on."""

from __future__ import annotations

import asyncio
import errno
import sys
import traceback
from collections.abc import Callable, Iterator

import pytest

from fumehood import AsyncSandbox, FumehoodError, Sandbox, Template

PLAIN = Template(name="plain", preload=())


class BrokenFile:
    """A file of the caller's that breaks while it is read."""

    def __init__(self, number: int) -> None:
        self._number = number

    def read(self, _size: int) -> bytes:
        raise OSError(self._number, "the caller's disk")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(template=PLAIN) as made:
        yield made


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOENT])
def test_a_file_that_cannot_be_read_is_the_callers(sandbox: Sandbox, number: int) -> None:
    """Not one of ours, and with its own words."""
    with pytest.raises(OSError, match="the caller's disk") as caught:
        sandbox.files.write("a", BrokenFile(number))  # type: ignore[arg-type]

    assert caught.value.errno == number
    assert not isinstance(caught.value, FumehoodError)
    assert sandbox.run_code("6 * 7").text == "42"


def test_a_file_that_breaks_in_a_loop_is_the_callers() -> None:
    """The same, awaited."""

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as made:
            with pytest.raises(OSError, match="the caller's disk") as caught:
                await made.files.write("a", BrokenFile(errno.EIO))  # type: ignore[arg-type]

            assert not isinstance(caught.value, FumehoodError)
            assert (await made.run_code("6 * 7")).text == "42"

    asyncio.run(main())


def _lines_behind_the_caller(refused: Callable[[], object]) -> tuple[str, list[str]]:
    with pytest.raises((FumehoodError, TypeError)) as caught:
        refused()

    frames = traceback.extract_tb(caught.value.__traceback__)
    # The two frames of this file: the one above, and the function that is refused.
    return str(caught.value), [f"{frame.filename}:{frame.lineno}" for frame in frames[2:]]


@pytest.mark.skipif(sys.flags.dev_mode, reason="the development mode of Python shows all frames")
def test_a_traceback_ends_at_the_line_of_the_caller(sandbox: Sandbox) -> None:
    """Of constructors, methods, their parts and awaited ones: no line of this package is of use to its caller."""
    refused: list[Callable[[], object]] = [
        lambda: Sandbox(memory="lots"),
        lambda: Sandbox(timout=4),  # type: ignore[call-arg]
        lambda: Sandbox(url="127.0.0.1:8791"),
        lambda: Sandbox(network="interent"),  # type: ignore[arg-type]
        lambda: Sandbox.connect("no such id"),
        lambda: sandbox.upload("nope.csv"),
        lambda: sandbox.rollback("nowhere"),
        lambda: sandbox.files.read("/nope"),
        lambda: sandbox.commands.run("false", envs=3),  # type: ignore[arg-type]
    ]

    for call in refused:
        words, behind = _lines_behind_the_caller(call)
        assert behind == [], words

    with pytest.raises(FileNotFoundError, match=r"cannot upload 'nope.csv'(?s:.)*of this machine"):
        sandbox.upload("nope.csv")

    async def main() -> None:
        async with AsyncSandbox(template=PLAIN) as made:
            with pytest.raises(FumehoodError) as caught:
                await made.rollback("nowhere")

            assert len(traceback.extract_tb(caught.value.__traceback__)) == 1

    asyncio.run(main())
