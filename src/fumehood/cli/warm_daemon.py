"""`python -m fumehood.cli.warm_daemon`: keeps sandboxes ready for `fumehood run`, until it is idle.

Runs in a process of its own, started by the first run of a user and ended when nothing has run for a while. It serves
processes of the same user and settings alone, reads none of their files and prints nothing: what a program writes is
sent back, made visible, and each run has a fresh sandbox, as it has without this process.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import click
from click.exceptions import Exit

from fumehood.api.artifacts import picture_of
from fumehood.api.async_sandbox import AsyncSandbox
from fumehood.api.silent_runs import arun_silently
from fumehood.api.transfers import list_tree
from fumehood.cancellation import stop
from fumehood.cli.hints import error_text
from fumehood.cli.options import sandbox_arguments, split_upload
from fumehood.cli.parser import EXIT_USAGE, Options
from fumehood.cli.program import Program, read_program
from fumehood.cli.run import (
    RUN,
    changed_since,
    data_of,
    exit_code_of,
    note_dropped,
    show_program_error,
    show_result,
)
from fumehood.cli.terminal import Screen
from fumehood.cli.warm import MAX_LINE_BYTES, identity, idle_seconds, is_same_user, socket_path
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError
from fumehood.text import visible
from fumehood.values.events import Question
from fumehood.values.execution import Execution
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH
from fumehood.values.plain_data import as_data
from fumehood.values.sandbox import FileInfo

_EXIT_SANDBOX_FAILED = 70
# Options that need more of this machine than standard streams are not served here.
_ORDINARY = ("lifetime", "no_daemon", "stop_daemon")


def main() -> None:
    """Serve until no run was requested for a while; return at once if another process serves already."""
    # The identity of this process, which was started with the settings and the packages of its callers.
    path = socket_path()

    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

    with open(os.open(f"{path}.lock", flags, 0o600), "w") as lock:
        try:
            # Not `flock`: the kernel names the holder of this lock, and no child inherits it.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return

        with suppress(FileNotFoundError):
            os.unlink(path)

        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(_Daemon(identity()).serve(path))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)


def listen_at(path: str) -> socket.socket:
    """Returns a socket that listens at a path; the path appears only once it listens, so no caller is refused."""
    listening = socket.socket(socket.AF_UNIX)
    unfinished = f"{path}~"

    with suppress(FileNotFoundError):
        os.unlink(unfinished)

    listening.bind(unfinished)
    listening.listen()
    os.rename(unfinished, path)
    return listening


class _Daemon:
    """Takes connections, each of which is one run.

    Args:
        wanted: The identity that callers must share with this process.
    """

    def __init__(self, wanted: list[object]) -> None:
        self._identity = wanted
        self._runs: set[asyncio.Task[None]] = set()
        self._used_at = time.monotonic()

    async def serve(self, path: str) -> None:
        """Serve until nothing has run for a while, or the process is asked to end."""
        serving = asyncio.current_task()
        assert serving is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)

        # Starts the template and fills its pool before the first run is accepted.
        async with AsyncSandbox():
            pass

        server = await asyncio.start_unix_server(self._take, sock=listen_at(path), limit=MAX_LINE_BYTES)
        idle = idle_seconds()
        self._used_at = time.monotonic()

        try:
            while self._runs or time.monotonic() - self._used_at < idle:
                await asyncio.sleep(min(1.0, idle / 4))
        finally:
            server.close()

            for run in self._runs:
                run.cancel()

            await asyncio.gather(*self._runs, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        run = asyncio.current_task()
        assert run is not None
        self._runs.add(run)

        try:
            if is_same_user(writer.get_extra_info("socket")):
                await _Run(reader, writer, self._identity).follow()
        except (OSError, ValueError):
            # The caller has closed the connection, or broken the protocol: there is no answer to send.
            pass
        finally:
            self._runs.discard(run)
            self._used_at = time.monotonic()
            writer.close()


class _RemoteScreen(Screen):
    """Sends a guest's text to the terminal of the caller."""

    def __init__(self, send: Any, *, raw: bool) -> None:
        super().__init__(raw=raw)
        self._send = send

    def out(self, text: str) -> None:
        self._send({"out": self.shown(text)})

    def err(self, text: str) -> None:
        self._send({"err": self.shown(text)})

    def result(self, text: str) -> None:
        self._send({"out" if self._raw else "result": self.shown(text)})

    def traceback(self, text: str) -> None:
        self._send({"traceback": self.shown(text)})

    def note(self, text: str) -> None:
        self._send({"err": f"fumehood: {visible(text)}\n"})


class _CallersFile:
    """A file that the caller reads, as `files.write` reads files: in a thread.

    Args:
        ask: Asks the caller.
        position: Its place among the files that the caller has opened.
    """

    def __init__(self, ask: Callable[[Mapping[str, object]], Awaitable[str | None]], position: int) -> None:
        self._ask = ask
        self._position = position
        self._loop = asyncio.get_running_loop()

    def read(self, size: int, /) -> bytes:
        """Return the next piece, whose size the caller chooses."""
        return base64.b64decode(asyncio.run_coroutine_threadsafe(self._piece(), self._loop).result() or "")

    async def _piece(self) -> str | None:
        return await self._ask({"piece_of": self._position})


class _Run:
    """One run of one caller."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wanted: list[object]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._identity = wanted
        # None: the caller has left.
        self._said: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()

    async def follow(self) -> None:
        """Read the request, run the program if it can be served here, and end it when the caller leaves."""
        asked = await self._read()
        options = _options(asked["words"]) if asked.get("identity") == self._identity else None

        if options is None:
            self._send({"decline": True})
            await self._writer.drain()
            return

        running = asyncio.create_task(self._run(options, is_fed=bool(asked.get("is_fed"))))
        try:
            listening = asyncio.create_task(self._listen())
            await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
            listening.cancel()
        finally:
            await stop(running)

    async def _listen(self) -> None:
        """Pass on the messages of the caller; return when it has left."""
        with suppress(OSError, ValueError):
            while True:
                self._said.put_nowait(await self._read())

        self._said.put_nowait(None)

    async def _hear(self) -> Mapping[str, Any]:
        """Return the next message of the caller.

        Raises:
            ConnectionResetError: The peer has disconnected.
        """
        said = await self._said.get()

        if said is None:
            # Put back, for the next caller of this method.
            self._said.put_nowait(None)
            raise ConnectionResetError

        return said

    async def _ask(self, question: Mapping[str, object]) -> str | None:
        self._send(question)
        answer: str | None = (await self._hear())["answer"]
        return answer

    async def _read(self) -> Mapping[str, Any]:
        line = await self._reader.readline()

        if not line:
            raise ConnectionResetError

        said = json.loads(line)

        if not isinstance(said, dict):
            raise ValueError("an object was expected")

        return said

    def _send(self, message: Mapping[str, object]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def _run(self, options: Options, *, is_fed: bool) -> None:
        screen = _RemoteScreen(self._send, raw=options.raw)

        try:
            uploads = [split_upload(given) for given in options.file]

            # Checked before standard input is read: without these files the caller makes the sandbox itself.
            if uploads or options.output is not None:
                paths = [path for path, _ in uploads]
                await self._ask({"open": paths, "folder": options.output, "overwrite": options.overwrite})

            content = b""

            if options.code is None and options.module is None:
                content = base64.b64decode(await self._ask({"read": options.words[0]}) or "")

            program = read_program(
                options.words,
                options.code,
                options.module,
                lambda _: content,
                is_fed=is_fed,
                language=options.language,
            )
            sandbox = AsyncSandbox(**sandbox_arguments(options))
            self._send({"begun": True})

            async with sandbox:
                await self._upload(sandbox, uploads)
                before = await self._prepare(sandbox, program, options)
                executions = [await self._execute(sandbox, program, screen, is_shown=not options.json)]
                note_dropped(executions, screen.note)
                self._send_pictures(executions, program.stem)

                if options.output is not None:
                    await self._hand_out(sandbox, before)

                if options.json:
                    self._send({"executions": data_of(executions, is_notebook=False)})

                self._send({"exit": exit_code_of(executions[-1].error) if executions else 0})
                await self._writer.drain()
        except FumehoodError as error:
            screen.note(error_text(error))
            is_usage = isinstance(error, InvalidArgumentError)
            self._send({"exit": EXIT_USAGE if is_usage else _EXIT_SANDBOX_FAILED})
            await self._writer.drain()

    async def _upload(self, sandbox: AsyncSandbox, uploads: list[tuple[str, str]]) -> None:
        for at, (_, destination) in enumerate(uploads):
            await sandbox.files.write(destination, _CallersFile(self._ask, at))

    async def _prepare(self, sandbox: AsyncSandbox, program: Program, options: Options) -> list[FileInfo]:
        """Write the program's own file, and return what is in the home directory before it runs."""
        if program.file:
            await sandbox.files.write(program.file, program.cells[0])

        return [] if options.output is None else await list_tree(sandbox.files, HOME_PATH)

    async def _hand_out(self, sandbox: AsyncSandbox, before: list[FileInfo]) -> None:
        """List the files that the run has written, and send the content of the requested ones."""
        found = {
            root: as_data(changed_since(before, await list_tree(sandbox.files, root)))
            for root in (DATA_PATH, HOME_PATH)
        }
        self._send({"found": found})
        content: AsyncGenerator[bytes, None] | None = None

        while "answer" not in (said := await self._hear()):
            try:
                if "fetch" in said:
                    content = await sandbox.files.read(said["fetch"], format="stream")

                if content is None:
                    raise ValueError("a piece of a file was asked for before its name")

                piece = await anext(content, None)
            except FileError as error:
                self._send({"failed": error.errno or 0})
            else:
                self._send({"data": None if piece is None else base64.b64encode(piece).decode()})

            await self._writer.drain()

    async def _execute(
        self, sandbox: AsyncSandbox, program: Program, screen: _RemoteScreen, *, is_shown: bool
    ) -> Execution:
        async def out(text: str) -> None:
            screen.out(text)
            await self._writer.drain()

        async def err(text: str) -> None:
            screen.err(text)
            await self._writer.drain()

        async def ask(question: Question) -> str | None:
            if program.is_fed:
                return await self._ask({"piece": True})

            return await self._ask({"ask": screen.shown(question), "password": question.is_password})

        callbacks: dict[str, Any] = {
            "on_stdout": out,
            "on_stderr": err,
            "on_result": lambda result: show_result(screen, result) if program.shows(result) else None,
            "on_error": lambda error: show_program_error(screen, error, program),
            "on_input": ask if program.has_stdin else None,
        }

        # As without a warm process: with JSON nothing else is printed, and the terminal is not asked for input.
        if not is_shown:
            callbacks = {"on_input": ask} if program.is_fed else {}

        if program.opening:
            await arun_silently(sandbox, program.opening)

        return await sandbox.run_code(program.cells[0], language=program.language, **callbacks)

    def _send_pictures(self, executions: list[Execution], stem: str) -> None:
        pictures = []

        for result in (result for execution in executions for result in execution.results):
            if (picture := picture_of(result)) is not None:
                mime = next(mime for mime, part in result.parts.items() if part == picture[0])
                pictures.append({"mime": mime, "content": base64.b64encode(picture[0]).decode()})

        if pictures:
            self._send({"pictures": pictures, "stem": stem})


def _options(words: object) -> Options | None:
    """Returns the options of a run; None if it cannot be served here, or if a word is wrong (the caller reports it)."""
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        return None

    try:
        with RUN.make_context("run", list(words)) as context:
            options = Options(**context.params)
    except (click.UsageError, Exit):
        return None

    is_ordinary = any(getattr(options, name) for name in _ORDINARY)
    is_notebook = options.code is None and options.module is None and options.words[0].endswith(".ipynb")
    return None if is_ordinary or is_notebook else options


if __name__ == "__main__":
    main()
