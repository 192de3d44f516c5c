"""The MCP server over standard input and output, for a host that has started us: one JSON message a line.

Runs in the process of `fumehood mcp`. The two descriptors are reserved for the protocol; any other output to standard
output is sent to standard error. It ends when its input ends or on a signal, and kills its sandboxes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import anyio
from mcp.server.stdio import stdio_server

from fumehood import InvalidArgumentError
from fumehood.log import events
from fumehood.log.setup import configure
from fumehood.mcp.caller import Caller
from fumehood.mcp.outputs import Outputs
from fumehood.mcp.server import make_server
from fumehood.mcp.setup import Setup
from fumehood.mcp.toolbox import TOOL_NAMES
from fumehood.values.network import NETWORK_LEVELS

_GONE = (BrokenPipeError, ConnectionResetError)
# Eight million characters of a file, escaped, and the message around them.
_MAX_LINE_BYTES = 16 << 20
_PIECE_BYTES = 256 * 1024
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Replaces a line that was too long: no JSON, so that the client gets an error.
_TOO_LONG = "a line that is too long"


def serve_stdio(max_network: str, setup: Setup | None = None, *, tools: Collection[str] = ()) -> int:
    """Serve until the input ends or a signal comes, and return the exit code.

    Args:
        max_network: The most network that a sandbox may be given: none, pip, listed or internet.
        setup: The default options of sandboxes; None: those of the library.
        tools: The names of the tools that are served; empty: all of them.

    Raises:
        InvalidArgumentError: `max_network` is not one of these words, or a tool is unknown.
    """
    if max_network not in NETWORK_LEVELS:
        raise InvalidArgumentError(field="max_network", value=max_network, allowed=", ".join(NETWORK_LEVELS))

    for name in tools:
        if name not in TOOL_NAMES:
            raise InvalidArgumentError(field="tools", value=name, allowed=", ".join(TOOL_NAMES))

    setup = setup or Setup()
    outputs = Outputs(setup.output) if setup.output else None
    caller = Caller(
        keeps=True, max_network=max_network, setup=setup, outputs=outputs, tools=tools or TOOL_NAMES
    )

    # Before the SDK sets up a log of its own, which shows the code around each error.
    configure("warning", "console")

    with _taken_streams() as (source, sink):
        asyncio.run(_serve(source, sink, caller))

    return 0


async def _serve(source: int, sink: int, caller: Caller) -> None:
    server = make_server(caller)
    loop = asyncio.get_running_loop()
    serving = asyncio.current_task()
    assert serving is not None

    def end() -> None:
        # The next signal ends it at once.
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

        serving.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, end)

    # They read and write as the SDK's files do, but never in a thread that cannot be ended.
    lines, pen = cast("Any", _Lines(source)), cast("Any", _Pen(sink, end))

    try:
        with suppress(asyncio.CancelledError):
            async with stdio_server(lines, pen) as (read_stream, write_stream):
                await server.run(read_stream, write_stream, server.create_initialization_options())
    except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
        # The SDK may still hold a message for a part of it that has ended already.
        pass


class _Lines:
    """Yields the lines of a descriptor, as they come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._is_over = False

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        searched = 0

        while (end := self._buffer.find(b"\n", searched)) < 0:
            if self._is_over:
                return self._rest()

            if len(self._buffer) > _MAX_LINE_BYTES:
                await self._skip_line()
                return _TOO_LONG

            searched = len(self._buffer)
            await self._read_more()

        line = self._buffer[:end].decode("utf-8", "replace")
        del self._buffer[: end + 1]
        return _mended(line)

    def _rest(self) -> str:
        if not self._buffer:
            raise StopAsyncIteration

        line = self._buffer.decode("utf-8", "replace")
        self._buffer.clear()
        return line

    async def _skip_line(self) -> None:
        while (end := self._buffer.find(b"\n")) < 0 and not self._is_over:
            self._buffer.clear()
            await self._read_more()

        del self._buffer[: end + 1 or None]

    async def _read_more(self) -> None:
        loop = asyncio.get_running_loop()

        try:
            piece = await _when_ready(
                lambda: os.read(self._descriptor, _PIECE_BYTES),
                self._descriptor,
                loop.add_reader,
                loop.remove_reader,
            )
        except OSError:
            # A terminal that hangs up raises this.
            piece = b""

        self._buffer += piece
        self._is_over = not piece


class _Pen:
    """Writes to a descriptor, and calls `end` when its reader has closed it."""

    def __init__(self, descriptor: int, on_gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_gone = on_gone
        self._waiting = bytearray()

    async def write(self, text: str) -> None:
        self._waiting += text.encode("utf-8", "replace")

    async def flush(self) -> None:
        loop = asyncio.get_running_loop()

        while self._waiting:
            try:
                sent = await _when_ready(
                    lambda: os.write(self._descriptor, self._waiting[:_PIECE_BYTES]),
                    self._descriptor,
                    loop.add_writer,
                    loop.remove_writer,
                )
            except OSError as error:
                if not isinstance(error, _GONE):
                    events.STDOUT_FAILED.log(reason=error.strerror)

                self._on_gone()
                # The whole server is being cancelled.
                await anyio.sleep_forever()

            del self._waiting[:sent]


def _mended(line: str) -> str:
    """Returns a line without half surrogate pairs, which the SDK would drop silently: its client would hang."""
    if "\\ud" not in line and "\\uD" not in line:
        return line

    try:
        return json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace").decode()
    except (ValueError, RecursionError):
        return line


async def _when_ready(
    act: Callable[[], Any],
    descriptor: int,
    add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> Any:
    """Repeat an operation that would block as soon as it can continue."""
    while True:
        try:
            return act()
        except BlockingIOError:
            ready = asyncio.Event()
            add(descriptor, ready.set)

        try:
            await ready.wait()
        finally:
            remove(descriptor)


@contextmanager
def _taken_streams() -> Iterator[tuple[int, int]]:
    """Yields copies of our standard input and output as descriptors that only this code has."""
    source, sink = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3) for number in (0, 1))
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    was_blocking = [os.get_blocking(number) for number in (source, sink)]
    try:
        for number in (source, sink):
            os.set_blocking(number, False)

        yield source, sink
    finally:
        # A terminal is shared with the shell that has started us.
        for number, is_blocking in zip((source, sink), was_blocking, strict=True):
            with suppress(OSError):
                os.set_blocking(number, is_blocking)

            os.close(number)
