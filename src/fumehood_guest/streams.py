"""sys.stdout and sys.stderr of user code.

Runs in a context. Text is sent at each newline, at 8 KiB, and whenever something else is about to be seen. Lines
that follow one another faster than every few milliseconds are gathered, see `Gathering`: a frame for each would
cost more than printing it. Any thread may write, and the lines of several stay whole. Nothing here touches fds
1 and 2, which belong to child processes and C code, except in a process that user code has forked.
"""

from __future__ import annotations

import codecs
import io
import threading
from typing import Any, Dict, Iterable, List, NoReturn

from fumehood_guest.gathering import Gathering
from fumehood_guest.outlet import STREAM_FDS, Outlet

_FLUSH_CHARACTERS = 8 * 1024


class Streams:
    """The pair of standard output and standard error, kept in order with each other."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.lock = threading.RLock()
        self.gathering = Gathering(self)
        self.stdout = OutputStream(self, "stdout")
        self.stderr = OutputStream(self, "stderr")
        self.last_written = self.stdout

    def flush(self) -> None:
        """Sends what is left in both, in the order of writing."""
        other = self.stderr if self.last_written is self.stdout else self.stdout
        other.send_pending()
        self.last_written.send_pending()

    def settle(self) -> None:
        """Sends what is left, and ends the thread of the gathering: for the end of a cell, and before a fork."""
        self.flush()
        self.gathering.rest()

    def detach(self) -> None:
        """Forgets, in a forked child, what its parent has still to send."""
        self.lock = threading.RLock()
        self.gathering = Gathering(self)
        self.stdout.forget()
        self.stderr.forget()


class OutputStream(io.TextIOBase):
    """A text stream whose text leaves through the outlet."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._outlet = streams.outlet
        self._stream_name = name
        # Unfinished lines, by thread: print() writes the newline by itself.
        self._pending: Dict[int, List[str]] = {}
        self._pending_characters = 0
        self._get_thread = threading.get_ident
        self.buffer = _ByteSide(self)

    @property
    def name(self) -> str:
        """The name that Python gives its standard streams."""
        return f"<{self._stream_name}>"

    @property
    def mode(self) -> str:
        """Text, for writing."""
        return "w"

    @property
    def line_buffering(self) -> bool:
        """True: a newline sends the line."""
        return True

    def write(self, text: str) -> int:
        """Takes text; a complete line is sent, at once or together with those that follow it closely."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")

        streams = self._streams

        with streams.lock:
            if streams.last_written is not self:
                streams.last_written.send_pending()
                streams.last_written = self

            # A handler of the user may run between any two of these steps, print and flush: each of them takes, or
            # leaves, all that there is.
            thread = self._get_thread()
            try:
                self._pending[thread].append(text)
            except KeyError:
                self._pending[thread] = [text]

            if "\n" in text:
                line = "".join(self._pending.pop(thread, ()))
                self._pending_characters = max(0, self._pending_characters - len(line) + len(text))

                if streams.gathering.take(line):
                    self._send_gathered()
            else:
                self._pending_characters += len(text)

                if self._pending_characters >= _FLUSH_CHARACTERS:
                    self.send_pending()

        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Writes each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Sends what was not sent yet."""
        self.send_pending()

    def send_pending(self) -> None:
        """Sends what was not sent yet: gathered lines, then unfinished ones, a text for each thread."""
        with self._streams.lock:
            if self._streams.last_written is self:
                self._send_gathered()

            if not self._pending:
                return

            unfinished, self._pending, self._pending_characters = self._pending, {}, 0

            for pending in unfinished.values():
                self._send("".join(pending))

    def _send_gathered(self) -> None:
        gathering = self._streams.gathering
        self._send(gathering.hand_over())
        gathering.note_sent()

    def _send(self, text: str) -> None:
        if text:
            self._outlet.text(self._stream_name, text)

    def forget(self) -> None:
        """Drops what was not sent yet."""
        self._pending, self._pending_characters = {}, 0

    def fileno(self) -> int:
        """The descriptor that child processes inherit; flush first."""
        self.send_pending()
        return STREAM_FDS[self._stream_name]

    def writable(self) -> bool:
        """Always true."""
        return True

    def isatty(self) -> bool:
        """Always false."""
        return False

    def reconfigure(self, **_options: Any) -> None:
        """Accepted and without effect: the encoding is that of the wire."""

    def detach(self) -> Any:
        """Gives the byte side, of which a program makes a stream of its own; this one stays, for the next cell."""
        self.send_pending()
        return self.buffer

    def close(self) -> None:
        """Sends what is left; the stream stays open, for the next cell needs it."""
        self.send_pending()

    def __del__(self) -> None:
        """Does nothing: there is nothing to close."""


class _ByteSide(io.BufferedIOBase):
    """The `buffer` of a text stream: bytes that become text as they come, a character at a time."""

    def __init__(self, stream: OutputStream) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def raw(self) -> _ByteSide:
        """Itself: there is no layer below."""
        return self

    def write(self, data: Any) -> int:
        """Takes bytes."""
        content = bytes(data)
        self._stream.write(self._decoder.decode(content))
        return len(content)

    def flush(self) -> None:
        """Sends what was not sent yet."""
        self._stream.flush()

    def fileno(self) -> int:
        """The descriptor that child processes inherit."""
        return self._stream.fileno()

    def writable(self) -> bool:
        """Always true."""
        return True

    def isatty(self) -> bool:
        """Always false."""
        return False

    def close(self) -> None:
        """Sends what is left, and stays open."""
        self._stream.flush()

    def detach(self) -> NoReturn:
        """Refused, as by a stream that has no layer below."""
        raise io.UnsupportedOperation("detach")

    def __del__(self) -> None:
        """Does nothing: there is nothing to close."""
