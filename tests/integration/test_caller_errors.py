"""What fails on the caller's side of a call is the caller's: it comes back as it is, and the sandbox goes on."""

from __future__ import annotations

import asyncio
import errno
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import get_type_hints

import pytest

import fumehood
from fumehood import AsyncSandbox, FumehoodError, Sandbox, Template
from fumehood.llm import CodeInterpreter
from fumehood.tracebacks import ending_at_caller

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
        lambda: fumehood.run_code("1", memory="lots"),
        lambda: fumehood.run_code("1", timout=4),  # type: ignore[call-arg]
        lambda: list(fumehood.run_many([3])),  # type: ignore[list-item]
        lambda: fumehood.build_template("in valid"),
        lambda: fumehood.build_template("named", requirement="six"),  # type: ignore[call-arg]
        lambda: fumehood.explore(3, []),  # type: ignore[arg-type]
        lambda: fumehood.replay("no such file.ipynb"),
        lambda: fumehood.remove_template("default"),
        lambda: fumehood.list_templates(url="127.0.0.1:8791"),
        lambda: fumehood.read_saved("no such id"),
        lambda: fumehood.read_saved_record("no such id"),
        lambda: fumehood.read_server_audit(url="127.0.0.1:8791"),
        lambda: fumehood.scan(3),  # type: ignore[arg-type]
        lambda: fumehood.wrap_output(3),  # type: ignore[arg-type]
        lambda: fumehood.output_instructions(3),  # type: ignore[arg-type]
        lambda: CodeInterpreter(network="interent").run("1"),  # type: ignore[arg-type]
        lambda: CodeInterpreter(timout=4),  # type: ignore[call-arg]
        lambda: CodeInterpreter(network="interent").__enter__(),  # type: ignore[arg-type]
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

            with pytest.raises(FumehoodError) as caught:
                async for _ in made.stream_code("1", timeout=-1):
                    pass

            assert len(traceback.extract_tb(caught.value.__traceback__)) == 1

            with pytest.raises(FumehoodError) as caught:
                await fumehood.arun_code("1", libraries=["--bad"])

            assert len(traceback.extract_tb(caught.value.__traceback__)) == 1

    asyncio.run(main())


def test_what_is_wrapped_is_still_what_it_was() -> None:
    """Its signature, its kind and its pickled name; and a class of a user's is left alone."""
    assert "timeout" in inspect.signature(Sandbox.run_code).parameters
    assert "requirements" in inspect.signature(fumehood.build_template).parameters
    assert inspect.iscoroutinefunction(AsyncSandbox.run_code)
    assert inspect.iscoroutinefunction(fumehood.arun_code)
    assert inspect.isasyncgenfunction(AsyncSandbox.stream_code)
    assert get_type_hints(Sandbox.kill)
    assert pickle.loads(pickle.dumps(fumehood.run_code)) is fumehood.run_code
    assert pickle.loads(pickle.dumps(Sandbox)) is Sandbox

    class Mine(Sandbox):
        def own(self) -> None: ...

    assert not hasattr(Mine.own, "__wrapped__")


def test_a_fault_of_this_package_keeps_its_lines() -> None:
    """A TypeError that no argument of the caller's explains is for the report of a fault: where it was counts."""

    @ending_at_caller
    def faulty() -> None:
        len(3)  # type: ignore[arg-type]

    @ending_at_caller
    async def awaited() -> None:
        len(3)  # type: ignore[arg-type]

    # As if these were of this package, whose frames are left out of errors of the caller's.
    for fault in (faulty, lambda: asyncio.run(awaited())):
        with pytest.raises(TypeError) as caught:
            fault()

        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert any(name in {"called", "awaited"} for name in names)
