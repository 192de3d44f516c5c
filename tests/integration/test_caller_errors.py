"""What fails on the caller's side of a call is the caller's: it comes back as it is, and the sandbox goes on."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

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
