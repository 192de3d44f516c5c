"""sys.stdout and sys.stderr of user code.

Text is sent at each newline, at 8 KiB, and before anything else becomes visible. Lines that follow one another faster
than every few milliseconds are gathered and sent together (`gathering`), and taken by C code (`bursts`). Any thread may
write; lines of different threads are not mixed. Nothing here touches fds 1 and 2, which belong to child processes and C
code, except in a process that user code has forked.
"""

from __future__ import annotations

# The C functions: the wrappers in `signal` make an enum of every member, which costs more than the call.
import _signal  # type: ignore[import-not-found]
import codecs
import io
import threading
from typing import Any, Callable, Dict, List, NoReturn, Optional

from fumehood_guest.context.bursts import Burst
from fumehood_guest.context.gathering import Gathering
from fumehood_guest.context.outlet import STREAM_FDS, Outlet
from fumehood_guest.context.signals import ALL_SIGNALS

_FLUSH_CHARACTERS = 8 * 1024


class Streams:
    """The pair of standard output and standard error, kept in order with each other."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self._set_mask = _signal.pthread_sigmask
        self.lock = threading.RLock()
        self.gathering = Gathering(self)
        self.stdout = OutputStream(self, "stdout")
        self.stderr = OutputStream(self, "stderr")
        self.last_written = self.stdout

    def uninterrupted(self, step: Callable[..., None], *arguments: Any) -> None:
        """Runs a step that moves text. The caller holds the lock.

        Signals are blocked meanwhile: what a handler of the user raises, or an interrupt, is raised before the step or
        after it, and no text is lost between two places. Only a signal that another thread has received can
        still raise within it.
        """
        # A process that user code has forked writes to a descriptor, for as long as its reader likes.
        if self.is_detached:
            step(*arguments)
            return

        # Read first: a handler that raises inside the blocking call would lose the old mask.
        mask = self._set_mask(_signal.SIG_BLOCK, ())
        try:
            self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
            step(*arguments)
        finally:
            self._set_mask(_signal.SIG_SETMASK, mask)

    def flush(self) -> None:
        """Sends pending text of both, in the order of writing."""
        other = self.stderr if self.last_written is self.stdout else self.stdout
        other.send_pending()
        self.last_written.send_pending()

    def send_pending(self) -> None:
        """Sends pending text, and ends the gathering thread: at the end of a cell, and before a fork."""
        self.flush()
        self.gathering.rest()

    @property
    def is_detached(self) -> bool:
        """Whether this process was forked by user code, and sends nothing itself."""
        return self.outlet.is_detached

    def end_burst(self) -> None:
        """Ends the burst of the stream that was last written to, and gathers its text. The caller holds the lock."""
        self.last_written.end_burst()

    def send_gathered(self) -> None:
        """Sends the waiting lines. The caller holds the lock."""
        self.last_written.send_gathered()

    def pull_bursts(self) -> bool:
        """Takes over what bursts buffer; returns whether there is any text."""
        return self.stdout.pull_burst() or self.stderr.pull_burst()

    def detach(self) -> None:
        """Discards, in a forked child, what its parent has not sent yet."""
        self.lock = threading.RLock()
        self.gathering = Gathering(self)
        self.stdout.forget()
        self.stderr.forget()


class OutputStream(io.TextIOBase):
    """A text stream that writes to the outlet."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    def __init__(self, streams: Streams, name: str) -> None:
        self._streams = streams
        self._outlet = streams.outlet
        self._stream_name = name
        # Unfinished lines, by thread: print() writes the newline separately.
        self._pending: Dict[int, List[str]] = {}
        self._pending_characters = 0
        self._get_thread = threading.get_ident
        # Made with the first burst. A program may have kept its `write`, so that it is drained ever after.
        self._burst: Optional[Burst] = None
        self._burst_thread = 0
        self.buffer = _ByteSide(self)

    @property
    def name(self) -> str:
        """The name that Python gives its standard streams."""
        return f"<{self._stream_name}>"

    @property
    def mode(self) -> str:
        """The mode of the stream: text, for writing."""
        return "w"

    @property
    def line_buffering(self) -> bool:
        """True: a newline sends the line."""
        return True

    def write(self, text: str) -> int:
        """Takes text; a complete line is sent at once, or together with lines that follow it closely."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")

        streams = self._streams

        with streams.lock:
            streams.uninterrupted(self._take, text)

        return len(text)

    def _take(self, text: str) -> None:
        """Takes text. The caller holds the lock."""
        streams = self._streams
        self.end_burst()
        self._write_next()

        # A handler of the user may run between any two of these steps in a forked process, print and flush: each step
        # takes or leaves the whole state.
        thread = self._get_thread()
        try:
            self._pending[thread].append(text)
        except KeyError:
            self._pending[thread] = [text]

        if "\n" in text:
            line = "".join(self._pending.pop(thread, ()))
            self._pending_characters = max(0, self._pending_characters - len(line) + len(text))

            if streams.gathering.take(line):
                self.send_gathered()
            elif not self._pending and streams.gathering.allows_burst():
                self._begin_burst()
        else:
            self._pending_characters += len(text)

            if self._pending_characters >= _FLUSH_CHARACTERS:
                self._send_all()

    def flush(self) -> None:
        """Sends pending text."""
        self.send_pending()

    def send_pending(self) -> None:
        """Sends pending text: gathered lines, then the unfinished line of each thread."""
        with self._streams.lock:
            self._streams.uninterrupted(self._send_all)

    def _send_all(self, least_characters: int = 0) -> None:
        """Sends gathered lines, and unfinished ones if these have that many characters. The caller holds the lock."""
        self.end_burst()

        if self._streams.last_written is self:
            self.send_gathered()

        if self._pending_characters < least_characters:
            return

        unfinished, self._pending, self._pending_characters = self._pending, {}, 0

        for pending in unfinished.values():
            self._outlet.text(self._stream_name, "".join(pending))

    def send_gathered(self) -> None:
        """Sends gathered lines, and no unfinished one: the rest of it may follow a line of another thread."""
        gathering = self._streams.gathering

        while True:
            text, receipt = gathering.next_chunk()

            if not text:
                break

            self._outlet.chunk(self._stream_name, text, receipt)

        gathering.note_sent()

    def pull_burst(self) -> bool:
        """Takes over what the burst buffers; returns whether there is any text."""
        return self._burst is not None and self._burst.pull()

    def end_burst(self) -> None:
        """Gathers what a burst has taken; the next line is taken by Python code. The caller holds the lock."""
        burst = self._burst

        if burst is None:
            return

        self.__dict__.pop("write", None)

        if not self.pull_burst():
            return

        self._write_next()
        rest = self._streams.gathering.add(burst)

        if rest:
            self._pending.setdefault(self._burst_thread, []).append(rest)
            self._pending_characters += len(rest)

    def _begin_burst(self) -> None:
        if self._burst is None:
            self._burst = Burst(self._hand_on)

        self._burst_thread = self._get_thread()
        self.__dict__["write"] = self._burst.write

    def _hand_on(self) -> None:
        with self._streams.lock:
            self._streams.uninterrupted(self._send_all, _FLUSH_CHARACTERS)

    def _write_next(self) -> None:
        """Sends the pending text of the other stream if that was written to last: the order of output is kept."""
        streams = self._streams

        if streams.last_written is not self:
            streams.last_written._send_all()
            streams.last_written = self

    def forget(self) -> None:
        """Discards pending text."""
        self._pending, self._pending_characters = {}, 0
        self.__dict__.pop("write", None)

        if self._burst is not None:
            self._burst.clear()

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
        """Returns the byte side, of which a program makes a stream of its own; this stream stays usable."""
        self.send_pending()
        return self.buffer

    def close(self) -> None:
        """Sends pending text; the stream stays open, because the next cell needs it."""
        self.send_pending()

    def __del__(self) -> None:
        """Does nothing: there is nothing to close."""


class _ByteSide(io.BufferedIOBase):
    """The `buffer` of a text stream: decodes bytes incrementally."""

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
        """Sends the remaining text, and stays open."""
        self._stream.flush()

    def detach(self) -> NoReturn:
        """Raises io.UnsupportedOperation: the stream cannot be separated from the layer below."""
        raise io.UnsupportedOperation("detach")

    def __del__(self) -> None:
        """Does nothing: there is nothing to close."""
