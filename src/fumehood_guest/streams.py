"""sys.stdout and sys.stderr of user code.

Runs in a context. Text is sent at each newline, at 8 KiB, and whenever something else is about to be seen;
so a line is one frame. Any thread may write, and the lines of several stay whole. Nothing here touches fds
1 and 2, which belong to child processes and C code, except in a process that user code has forked.
"""

from __future__ import annotations

import codecs
import io
import threading
from typing import Any, Dict, Iterable, List, NoReturn

from fumehood_guest.outlet import STREAM_FDS, Outlet

_FLUSH_CHARACTERS = 8 * 1024


class Streams:
    """The pair of standard output and standard error, kept in order with each other."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.lock = threading.RLock()
        self.stdout = OutputStream(self, "stdout")
        self.stderr = OutputStream(self, "stderr")
        self.last_written = self.stdout

    def flush(self) -> None:
        """Sends what is left in both, in the order of writing."""
        other = self.stderr if self.last_written is self.stdout else self.stdout
        other.send_pending()
        self.last_written.send_pending()

    def detach(self) -> None:
        """Forgets, in a forked child, what its parent has still to send."""
        self.lock = threading.RLock()
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
        """Takes text; sends it when a line is complete."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")

        streams = self._streams

        with streams.lock:
            if streams.last_written is not self:
                streams.last_written.send_pending()
                streams.last_written = self

            pending = self._pending.setdefault(self._get_thread(), [])
            pending.append(text)
            self._pending_characters += len(text)

            if self._pending_characters >= _FLUSH_CHARACTERS:
                self.send_pending()
            elif "\n" in text:
                self._send(pending)

        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Writes each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Sends what was not sent yet."""
        self.send_pending()

    def send_pending(self) -> None:
        """Sends what was not sent yet, one text for each thread."""
        if not any(self._pending.values()):
            return

        with self._streams.lock:
            for pending in list(self._pending.values()):
                self._send(pending)

            self._pending.clear()
            self._pending_characters = 0

    def _send(self, pending: List[str]) -> None:
        text = "".join(pending)
        pending.clear()
        self._pending_characters -= len(text)

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
