"""sys.stdout and sys.stderr of user code.

Runs in a context. Text is sent at each newline, at 8 KiB, and before anything else becomes visible. Lines that follow
one another faster than every few milliseconds are gathered and sent together (`Gathering`): a frame for each would cost
more than printing it, and so would a call of Python code (`_Burst`). Any thread may write, and the lines of each stay
whole. Nothing here touches fds 1 and 2, which belong to child processes and C code, except in a process that user code
has forked.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import codecs
import collections
import functools
import io
import os
import sys
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterable, List, NoReturn, Optional, Tuple

from fumehood_guest.context.outlet import STREAM_FDS, Outlet
from fumehood_guest.context.signals import ALL_SIGNALS

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
        """Sends pending text of both, in the order of writing."""
        other = self.stderr if self.last_written is self.stdout else self.stdout
        other.send_pending()
        self.last_written.send_pending()

    def send_pending(self) -> None:
        """Sends pending text, and ends the gathering thread: at the end of a cell, and before a fork."""
        self.flush()
        self.gathering.rest()

    def in_burst(self) -> bool:
        """Whether a burst of either may have taken text."""
        return self.stdout.in_burst() or self.stderr.in_burst()

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
        self._burst: Optional[_Burst] = None
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
            self.end_burst()
            self._write_next()

            # A handler of the user may run between any two of these steps, print and flush: each step takes or leaves
            # the whole state.
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
                    self.send_pending()

        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        """Writes each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Sends pending text."""
        self.send_pending()

    def send_pending(self) -> None:
        """Sends pending text: gathered lines, then the unfinished line of each thread."""
        with self._streams.lock:
            self.end_burst()

            if self._streams.last_written is self:
                self.send_gathered()

            if not self._pending:
                return

            unfinished, self._pending, self._pending_characters = self._pending, {}, 0

            for pending in unfinished.values():
                self._send("".join(pending))

    def send_gathered(self) -> None:
        """Sends gathered lines, and no unfinished one: the rest of it may follow a line of another thread."""
        gathering = self._streams.gathering
        self._send(gathering.hand_over())
        gathering.note_sent()

    def in_burst(self) -> bool:
        """Whether a burst may have taken text."""
        return self._burst is not None and self._burst.has_text()

    def end_burst(self) -> None:
        """Gathers what a burst has taken; the next line is taken by Python code. The caller holds the lock."""
        burst = self._burst

        if burst is None:
            return

        self.__dict__.pop("write", None)

        if not self.in_burst():
            return

        self._write_next()
        rest = self._streams.gathering.add(burst)

        if rest:
            self._pending.setdefault(self._burst_thread, []).append(rest)
            self._pending_characters += len(rest)

    def _begin_burst(self) -> None:
        if self._burst is None:
            self._burst = _Burst(self._hand_on)

        self._burst_thread = self._get_thread()
        self.__dict__["write"] = self._burst.write

    def _hand_on(self) -> None:
        with self._streams.lock:
            self.end_burst()
            self.send_gathered()

            if self._pending_characters >= _FLUSH_CHARACTERS:
                self.send_pending()

    def _write_next(self) -> None:
        """Makes this the stream that is written: what was written to the other one comes before."""
        streams = self._streams

        if streams.last_written is not self:
            streams.last_written.send_pending()
            streams.last_written = self

    def _send(self, text: str) -> None:
        if text:
            self._outlet.text(self._stream_name, text)

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
        """Sends what is left, and stays open."""
        self._stream.flush()

    def detach(self) -> NoReturn:
        """Raises, as a stream without a layer below does."""
        raise io.UnsupportedOperation("detach")

    def __del__(self) -> None:
        """Does nothing: there is nothing to close."""


# What a burst takes before it hands it on. With a line that waits already it is no more than `_GATHER_CHARACTERS`.
_BURST_BYTES = 7 * 1024
_MOST_WAITING_CHARACTERS = 1024


class _Burst:
    """Text of a burst of lines, which C code takes: two calls of Python code cost ten times what a print does.

    No bytecode runs between a write and its end, nor within `move_to`, so that no signal handler finds a part of either
    done. It is for one thread.

    Args:
        hand_on: Is called when it has taken some KiB.
    """

    def __init__(self, hand_on: Callable[[], None]) -> None:
        self._pieces: Deque[bytes] = collections.deque()
        self._below = _Pieces(self._pieces, hand_on)
        self._text = io.TextIOWrapper(self._below, "utf-8", "surrogatepass", newline="\n")  # type: ignore[type-var]
        self._text._CHUNK_SIZE = _BURST_BYTES  # type: ignore[attr-defined]
        self.write = self._text.write
        self._as_text = functools.partial(str, encoding="utf-8", errors="surrogatepass")

    def has_text(self) -> bool:
        """Whether there is any text."""
        self._below.is_drained = True
        try:
            self._text.flush()
        finally:
            self._below.is_drained = False

        return bool(self._pieces)

    def move_to(self, lines: List[str]) -> None:
        """Adds all text to a list, and has none then."""
        try:
            lines.extend(map(self._as_text, iter(self._pieces.popleft, None)))
        except IndexError:
            pass  # that was the last piece

    def clear(self) -> None:
        """Discards all text."""
        self.has_text()
        self._pieces.clear()


class _Pieces:
    """Where a text stream of C code puts its bytes.

    Args:
        pieces: They are added here.
        hand_on: Is called then, unless they are drained.
    """

    closed = False

    def __init__(self, pieces: Deque[bytes], hand_on: Callable[[], None]) -> None:
        self._pieces = pieces
        self._hand_on = hand_on
        self.is_drained = False

    def write(self, piece: bytes) -> int:
        """Takes bytes."""
        self._pieces.append(piece)

        if not self.is_drained:
            self._hand_on()

        return len(piece)

    def flush(self) -> None:
        """Does nothing: what was written is where it belongs."""

    def readable(self) -> bool:
        """Always false."""
        return False

    def writable(self) -> bool:
        """Always true."""
        return True

    def seekable(self) -> bool:
        """Always false."""
        return False

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


# After a pause of this length a line is sent at once, and waiting lines are due.
_GATHER_SECONDS = 0.005
_GATHER_CHARACTERS = 8 * 1024
# This many lines of a burst are sent one by one before any waits.
_MAX_SINGLE_LINES = 16
# How often the thread checks whether the code has stopped printing; the code itself checks at each line.
_LOOK_SECONDS = 0.02
# The thread ends after so many checks without a waiting line.
_MAX_VAIN_LOOKS = 5
_MAX_WAITS_FOR_END = 200
# These start or signal other programs, which may write to the same place: earlier output must be sent first.
_STARTS = frozenset(
    (
        "subprocess.Popen",
        "os.system",
        "os.posix_spawn",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
    )
)


class _Watch:
    """One run of the thread."""

    def __init__(self) -> None:
        # Released to make the thread end.
        self.end_wanted = _thread.allocate_lock()
        self.end_wanted.acquire()
        # Held while the thread runs.
        self.running = _thread.allocate_lock()
        self.running.acquire()
        self.thread_id: Optional[int] = None


class Gathering:
    """The waiting lines, all of the stream that was written last. The caller holds the lock of the streams.

    Args:
        streams: The pair of streams.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._clock = time.monotonic
        self._sleep = time.sleep
        self._exists = os.path.exists
        self._count_threads = _thread._count
        self._set_mask = _signal.pthread_sigmask
        self._lines: List[str] = []
        self._characters = 0
        # How many lines were sent one by one since the last pause.
        self._single_lines = 0
        self._sent_at = 0.0
        self._watch: Optional[_Watch] = None
        self._is_hooked = False

    def take(self, line: str) -> bool:
        """Adds a line; returns whether all waiting lines are due."""
        is_late = self._clock() - self._sent_at >= _GATHER_SECONDS

        if is_late and not self._lines:
            self._single_lines = 0

        self._lines.append(line)
        self._characters += len(line)

        if is_late:
            return True

        if self._single_lines < _MAX_SINGLE_LINES:
            self._single_lines += 1
            return True

        if self._characters >= _GATHER_CHARACTERS:
            return True

        # Without the thread no line may wait.
        return self._watch is None and not self._begin_watch()

    def allows_burst(self) -> bool:
        """Whether the thread sends what waits, is the only one beside the main thread, and little waits yet."""
        is_alone = self._watch is not None and self._count_threads() == 1
        return is_alone and self._characters <= _MOST_WAITING_CHARACTERS

    def add(self, burst: _Burst) -> str:
        """Adds the lines that a burst has taken; returns what follows the last of them, an unfinished line."""
        lines, rest = self._lines, ""
        count = len(lines)
        burst.move_to(lines)

        while len(lines) > count and not lines[-1].endswith("\n"):
            text = lines.pop()
            end = text.rfind("\n") + 1
            rest = text[end:] + rest

            if end:
                lines.append(text[:end])

        self._characters += sum(map(len, lines[count:]))
        return rest

    def hand_over(self) -> str:
        """Returns and clears the waiting lines."""
        lines, self._lines = self._lines, []
        self._characters = 0
        return "".join(lines)

    def note_sent(self) -> None:
        """Records when the lines were sent."""
        self._sent_at = self._clock()

    def rest(self) -> None:
        """Ends the thread, and returns when the kernel has removed it. The caller does not hold the lock."""
        watch = self._watch

        if watch is None:
            return

        try:
            watch.end_wanted.release()
        except RuntimeError:
            pass  # another thread has requested it already

        with watch.running:
            pass

        for _ in range(_MAX_WAITS_FOR_END):
            if not self._exists(f"/proc/self/task/{watch.thread_id}"):
                break

            self._sleep(0.0001)

    def _begin_watch(self) -> bool:
        """Starts the thread; returns False if none can be started or this is a forked child."""
        if self._streams.outlet.is_detached:
            return False

        if not self._is_hooked:
            self._is_hooked = True
            sys.addaudithook(self._hear)

        # The thread starts with all signals blocked: a signal delivered to it would run its handler between two cells.
        mask = self._set_mask(_signal.SIG_BLOCK, ())
        try:
            self._set_mask(_signal.SIG_BLOCK, ALL_SIGNALS)
            self._watch = watch = _Watch()
            _thread.start_new_thread(self._look, (watch,))
        except RuntimeError:
            self._watch = None
            return False
        finally:
            self._set_mask(_signal.SIG_SETMASK, mask)

        return True

    def _look(self, watch: _Watch) -> None:
        """Sends lines that are due; ends after a while without any."""
        try:
            watch.thread_id = _thread.get_native_id()
            vain_looks = 0
            lock = self._streams.lock

            while not watch.end_wanted.acquire(timeout=_LOOK_SECONDS):
                # The lock's holder writes, and sends what is due; or it waits in `rest` for this thread to end.
                if not lock.acquire(blocking=False):
                    continue

                try:
                    self._streams.last_written.end_burst()
                    vain_looks = 0 if self._lines else vain_looks + 1

                    if self._lines and self._clock() - self._sent_at >= _GATHER_SECONDS:
                        self._streams.last_written.send_gathered()

                    if vain_looks >= _MAX_VAIN_LOOKS:
                        # With the lock held: a line that comes now starts another thread.
                        self._forget(watch)
                        return
                finally:
                    lock.release()
        finally:
            self._forget(watch)
            watch.running.release()

    def _forget(self, watch: _Watch) -> None:
        if self._watch is watch:
            self._watch = None

    def _hear(self, event: str, _arguments: Tuple[Any, ...]) -> None:
        if event in _STARTS and self._streams.gathering is self and (self._lines or self._streams.in_burst()):
            self._streams.flush()
