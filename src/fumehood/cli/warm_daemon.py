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
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click
from click.exceptions import Exit

from fumehood.api.artifacts import picture_of
from fumehood.api.async_sandbox import AsyncSandbox
from fumehood.cli.options import sandbox_arguments
from fumehood.cli.parser import EXIT_USAGE, Options
from fumehood.cli.program import Program, read_program
from fumehood.cli.run import RUN, exit_code_of, show_error, show_result
from fumehood.cli.terminal import Screen
from fumehood.cli.warm import MAX_LINE_BYTES, identity, idle_seconds, is_same_user, socket_path
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.text import visible
from fumehood.values.events import Question
from fumehood.values.execution import Execution

_EXIT_SANDBOX_FAILED = 70
# What needs more of this machine than standard streams takes the ordinary way.
_ORDINARY = ("output", "overwrite", "json", "file", "lifetime", "no_daemon", "stop_daemon")


def main() -> None:
    """Serve until nothing has run for a while; return at once if another process does."""
    # Of this process: it was started with the settings and the packages of its callers.
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


class _Daemon:
    """Takes connections, each of which is one run.

    Args:
        wanted: What callers must share with this process.
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

        # Makes the template, and what is kept ready of it, before anything is taken.
        async with AsyncSandbox():
            pass

        server = await asyncio.start_unix_server(self._take, path, limit=MAX_LINE_BYTES)
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


class _Run:
    """One run of one caller."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wanted: list[object]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._identity = wanted
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()

    async def follow(self) -> None:
        """Read what is wanted, run it unless it takes the ordinary way, and end it when the caller leaves."""
        asked = await self._read()
        options = _options(asked["words"]) if asked.get("identity") == self._identity else None

        if options is None:
            self._send({"decline": True})
            await self._writer.drain()
            return

        running = asyncio.create_task(self._run(options, is_fed=bool(asked.get("is_fed"))))
        try:
            if options.code is None and options.module is None:
                self._send({"read": options.words[0]})

            listening = asyncio.create_task(self._listen())
            await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
            listening.cancel()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def _listen(self) -> None:
        """Hand on what the caller sends; return when it has left."""
        with suppress(OSError, ValueError):
            while True:
                said = await self._read()
                self._answers.put_nowait(said["content"] if "content" in said else said["answer"])

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
            content = b""

            if options.code is None and options.module is None:
                content = base64.b64decode(await self._answers.get() or "")

            program = read_program(
                options.words, options.code, options.module, lambda _: content, is_fed=is_fed
            )
            sandbox = AsyncSandbox(**sandbox_arguments(options))
            self._send({"begun": True})

            async with sandbox:
                executions = await self._execute(sandbox, program, screen)
                self._send_pictures(executions, program.stem)
                self._send({"exit": exit_code_of(executions[-1].error) if executions else 0})
                await self._writer.drain()
        except FumehoodError as error:
            screen.note(str(error))
            is_usage = isinstance(error, InvalidArgumentError)
            self._send({"exit": EXIT_USAGE if is_usage else _EXIT_SANDBOX_FAILED})
            await self._writer.drain()

    async def _execute(
        self, sandbox: AsyncSandbox, program: Program, screen: _RemoteScreen
    ) -> list[Execution]:
        async def out(text: str) -> None:
            screen.out(text)
            await self._writer.drain()

        async def err(text: str) -> None:
            screen.err(text)
            await self._writer.drain()

        async def ask(question: Question) -> str | None:
            if program.is_fed:
                self._send({"piece": True})
            else:
                self._send({"ask": screen.shown(question), "password": question.is_password})

            return await self._answers.get()

        if program.file:
            await sandbox.files.write(program.file, program.cells[0])

        if program.opening:
            await sandbox.run_code(program.opening)

        execution = await sandbox.run_code(
            program.cells[0],
            language="bash" if program.is_bash else "python",
            on_stdout=out,
            on_stderr=err,
            on_result=lambda result: show_result(screen, result),
            on_error=lambda error: show_error(screen, error),
            on_input=ask if program.has_stdin else None,
        )
        return [execution]

    def _send_pictures(self, executions: list[Execution], stem: str) -> None:
        pictures = []

        for result in (result for execution in executions for result in execution.results):
            if (picture := picture_of(result)) is not None:
                mime = next(mime for mime, part in result.parts.items() if part == picture[0])
                pictures.append({"mime": mime, "content": base64.b64encode(picture[0]).decode()})

        if pictures:
            self._send({"pictures": pictures, "stem": stem})


def _options(words: object) -> Options | None:
    """Returns the options of a run, or None: it takes the ordinary way, where wrong words are named as well."""
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
