"""An interactive bash on a terminal of a sandbox: lines go in, and come back with their output and exit code.

Runs in the process of a framework, on one asyncio loop. Where a line begins and ends is marked in the output, with a
random word of this shell's own. The guest can read the word and forge a mark, but output and exit code are the guest's
own claims anyway. Its output is kept up to a bound, and must never be interpreted as anything but text.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fumehood import AsyncPtyHandle, AsyncSandbox, CommandError, ProcessNotFoundError, SandboxClosedError

# More than this is not kept of one line's output: the oldest goes first.
_MOST_BYTES = 8 << 20
# Patterns are searched for in the newest output, as programs that wait for a prompt do.
_PATTERN_WINDOW_BYTES = 64 << 10
# The mark of an end: two signs, the word, a letter and a number.
_LONGEST_MARK_BYTES = 64
# Readline takes some 20 microseconds for a character that is typed.
_LONGEST_TYPED_CHARS = 8 << 10
_START_SECONDS = 60.0
_KILL_SECONDS = 10.0
_ESCAPE = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_][0-?]*[ -/]*[@-~])")
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {"\\", "'", "!"}
_INTERRUPT = b"\x03"
# The process group in front of the terminal of shell $1, which stat (proc_pid_stat(5)) names in field 8.
_KILL_FOREGROUND = (
    'read -r _ _ _ _ _ _ _ group _ < "/proc/$1/stat" && [ "$group" != "$1" ] && kill -KILL "-$group"'
)


class ShellEndedError(RuntimeError):
    """The shell has ended, by `exit` for instance; the message has its last output."""


class ShellTimeoutError(TimeoutError):
    """A line did not end in time; it runs on, until it is interrupted."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of one line.

    Attributes:
        output: The output, without escape sequences and with plain line ends.
        exit_code: The exit code; None if the line still runs and waits for input.
        matched: The text that matched a pattern; empty when the line ended.
    """

    output: str
    exit_code: int | None
    matched: str = ""


class TerminalShell:
    """One bash with its variables, directory and jobs. It is made by `start`, and used by one task at a time."""

    def __init__(self, sandbox: AsyncSandbox, terminal: AsyncPtyHandle, word: str) -> None:
        self._sandbox = sandbox
        self._terminal = terminal
        self._word = word.encode()
        self._ended_mark = re.compile(rb"\x1e%se(\d+)\x1e" % self._word)
        self._buffer = bytearray()
        self._is_over = False
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._count = 0
        self._last_code = 0
        # Whether the mark with which a line begins has still to come, and what was written before it to be dropped.
        self._is_before_line = False
        self._is_at_prompt = True
        self._scanned_bytes = 0
        self._dropped_bytes = 0
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, sandbox: AsyncSandbox, *, envs: Mapping[str, str] | None = None) -> TerminalShell:
        """Start a shell, and wait until it has read its `.bashrc`.

        Raises:
            CommandStartError: The image has no bash.
            ShellTimeoutError: The shell did not start in time.
        """
        word = secrets.token_hex(8)
        terminal = await sandbox.pty.create(
            ("/bin/bash", "-i"),
            # Without colours, and without the marks of pasted text.
            envs={**(envs or {}), "TERM": "dumb", "PROMPT_COMMAND": _prompt_command(word)},
        )
        shell = cls(sandbox, terminal, word)

        try:
            await shell.run("set +o history +o histexpand", timeout=_START_SECONDS)
        except BaseException:
            await shell.close()
            raise

        return shell

    async def run(self, line: str, *, patterns: Sequence[str] = (), timeout: float | None = None) -> Reply:
        """Run one or more lines, and wait until all have ended, or until the output matches a pattern.

        Args:
            line: The lines; they may be any text that bash takes, here-documents included.
            patterns: Regular expressions; output that matches one ends the wait, although the line continues to run.
            timeout: Seconds; None: no limit.

        Raises:
            ShellTimeoutError: The timeout has passed.
            ShellEndedError: The shell has ended.
        """
        async with self._turn:
            self._count += 1
            self._is_before_line = True
            await self._type(self._framed(await self._command_of(line.replace("\0", ""))))
            return await self._reply(patterns, timeout)

    async def type_line(
        self, line: str, *, patterns: Sequence[str] = (), timeout: float | None = None
    ) -> Reply:
        """Type a line into the program in the foreground; without one, run the line as a command.

        Args:
            line: The line, which is typed as it is.
            patterns: Regular expressions, as for `run`; the end of the program ends the wait too.
            timeout: Seconds; None: no limit.

        Raises:
            ShellTimeoutError: The timeout has passed.
            ShellEndedError: The shell has ended.
        """
        if self._is_at_prompt:
            return await self.run(line, patterns=patterns, timeout=timeout)

        async with self._turn:
            await self._type(line.encode() + b"\n")
            return await self._reply(patterns, timeout)

    async def interrupt(self, *, patterns: Sequence[str] = (), timeout: float = 1.0, tries: int = 3) -> Reply:
        """Interrupt the foreground program, as Ctrl-C does; kill it if that does not end it.

        Args:
            patterns: Prompts of programs that outlive an interrupt.
            timeout: Seconds that each try may take.
            tries: How often Ctrl-C is typed.

        Raises:
            ShellTimeoutError: The command continues to run.
            ShellEndedError: The shell has ended.
        """
        for _ in range(tries):
            await self._type(_INTERRUPT)

            with suppress(ShellTimeoutError):
                return await self._after_interrupt(patterns, timeout)

        arguments = ("/bin/sh", "-c", _KILL_FOREGROUND, "sh", str(self._terminal.pid))

        with suppress(CommandError):
            await self._sandbox.commands.run(arguments, timeout=_KILL_SECONDS)

        return await self._after_interrupt(patterns, max(timeout, _KILL_SECONDS))

    async def close(self) -> None:
        """End the shell and what runs in it."""
        # What runs in front has a process group of its own; the end of the terminal ends it.
        with suppress(ProcessNotFoundError):
            await self._terminal.kill()

        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _after_interrupt(self, patterns: Sequence[str], timeout: float) -> Reply:
        # Another task may still wait for the line's end, and comes first.
        try:
            async with asyncio.timeout(timeout):
                await self._turn.acquire()
        except TimeoutError:
            raise _late(timeout) from None

        try:
            if self._is_at_prompt:
                return Reply("", self._last_code)

            # A line whose beginning has not come was typed into another program.
            self._is_before_line = False
            return await self._reply(patterns, timeout)
        finally:
            self._turn.release()

    async def _command_of(self, line: str) -> str:
        """Return the command by which bash evaluates these lines: the lines themselves, or a file that holds them."""
        if len(line) > _LONGEST_TYPED_CHARS:
            path = f"/tmp/.line-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
            await self._sandbox.files.write(path, line)
            return f'"$(cat {path}; rm -f {path})"'

        # Plain characters alone, so that neither readline nor the history sees anything to act upon.
        quoted = "".join(
            char if char in _PLAIN else "".join(f"\\x{byte:02x}" for byte in char.encode()) for char in line
        )
        return f"$'{quoted}'"

    def _framed(self, command: str) -> bytes:
        # What an earlier line has made of the prompt is undone, and the exit code of that line is there again.
        word = self._word.decode()
        again = f"(exit {self._last_code}); " if self._last_code else ""
        return (
            f" stty -echo 2>/dev/null; export PROMPT_COMMAND={_quoted(_prompt_command(word))} PS1= PS2= PS0=; "
            f"printf '\\036%sb%s\\036' {word} {self._count}; "
            f"{again}eval {command}; printf '\\036%se%s\\036' {word} $?\n"
        ).encode()

    async def _type(self, text: bytes) -> None:
        self._is_at_prompt = False

        try:
            await self._terminal.send(text)
        except ProcessNotFoundError:
            self._is_over = True
            raise self._ended() from None

    async def _reply(self, patterns: Sequence[str], timeout: float | None) -> Reply:
        compiled = [re.compile(pattern, re.DOTALL) for pattern in patterns]

        try:
            async with asyncio.timeout(timeout):
                while (reply := self._look(compiled)) is None:
                    if self._is_over:
                        raise self._ended()

                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise _late(timeout) from None

        return reply

    def _look(self, patterns: Sequence[re.Pattern[str]]) -> Reply | None:
        """Return the reply that the output holds so far, and remove it from the buffer."""
        if self._is_before_line:
            return None

        ended = self._ended_mark.search(self._buffer, self._scanned_bytes)
        end = ended.start() if ended else len(self._buffer)

        if patterns:
            begin = max(0, end - _PATTERN_WINDOW_BYTES)
            window = _text(bytes(self._buffer[begin:end]))
            matches = [match for pattern in patterns if (match := pattern.search(window)) is not None]

            if matches:
                first = min(matches, key=re.Match.start)
                output = _text(bytes(self._buffer[:begin])) + window[: first.start()]
                # What came behind the match belongs to the next reply.
                self._buffer[:end] = window[first.end() :].encode()
                self._scanned_bytes = 0
                return Reply(self._with_gap(output), None, first[0])

        if ended is None:
            self._scanned_bytes = max(0, end - _LONGEST_MARK_BYTES)
            return None

        # Before the buffer moves, which the match looks into.
        self._last_code = int(ended[1])
        output = _text(bytes(self._buffer[:end]))
        del self._buffer[: ended.end()]
        self._scanned_bytes, self._is_at_prompt = 0, True
        return Reply(self._with_gap(output), self._last_code)

    def _with_gap(self, output: str) -> str:
        dropped, self._dropped_bytes = self._dropped_bytes, 0
        return f"[{dropped:,} bytes left out]\n{output}" if dropped else output

    def _ended(self) -> ShellEndedError:
        output = _text(bytes(self._buffer)).strip()
        return ShellEndedError(f"the shell has ended{': ' if output else ''}{output[-2000:]}")

    async def _read(self) -> None:
        try:
            async for piece in self._terminal:
                self._take(piece)
                self._changed.set()
        except SandboxClosedError as error:
            self._buffer[:] = error.message.encode()
        finally:
            self._is_over = True
            self._changed.set()

    def _take(self, piece: bytes) -> None:
        self._buffer += piece

        if self._is_before_line:
            mark = b"\x1e%sb%d\x1e" % (self._word, self._count)
            found = self._buffer.find(mark)

            if found >= 0:
                del self._buffer[: found + len(mark)]
                self._is_before_line = False
                self._scanned_bytes = self._dropped_bytes = 0

        if len(self._buffer) > _MOST_BYTES:
            # Half, so that a flood does not move the rest for each piece.
            excess = len(self._buffer) - _MOST_BYTES // 2
            del self._buffer[:excess]
            self._dropped_bytes += excess
            self._scanned_bytes = max(0, self._scanned_bytes - excess)


def _late(timeout: float | None) -> ShellTimeoutError:
    return ShellTimeoutError(f"the line still runs after {timeout:g} s")


def _prompt_command(word: str) -> str:
    return f"printf '\\036%se%s\\036' {word} $?"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _text(written: bytes) -> str:
    """Return output as text, without escape sequences, and with plain ends of lines."""
    return _ESCAPE.sub("", written.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")
