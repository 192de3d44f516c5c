"""The warm path of `fumehood run`: sends the run to another process of the user, which keeps sandboxes ready.

Runs in the user's terminal, before anything heavy is imported: a run that the other process takes costs a start of
Python, a connection, and the run. That process reads and writes no file of the user's: programs are read here, and
figures written here; `warm_files` brings other files in and out. The socket is in a folder that only the user can
enter, and each end asks the kernel for the peer's user. After an error before the run has begun, this process makes the
sandbox itself.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import stat
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from fumehood.cli.full_output import EXIT_FILE_FAILED, give_up_output, reason_of_full_output

if TYPE_CHECKING:
    from fumehood.api.transfers import Saved
    from fumehood.cli.warm_files import CarriedFiles

# The first message of each connection: versions that differ do not talk to each other.
PROTOCOL = 4
MAX_LINE_BYTES = 1 << 26
IDLE_SECONDS = 300.0
_VARIABLE = "FUMEHOOD_DAEMON"
# Where templates and the settings of pip are; those of pip itself are variables as well.
_PLACES = ("HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_CREDENTIALS = 12
_MAX_CODE_BYTES = 8 << 20
_PIECE_BYTES = 64 << 10
_EXIT_LOST = 70
# As `fumehood.cli.run` has it: the code ended well, and a file that it left could not be brought back.
_EXIT_LEFT_OUT = 73
_EXIT_INTERRUPTED = 130
_OFF = "--no-daemon"


def run_warm(words: Sequence[str]) -> int | None:
    """Let the process that keeps sandboxes run a program.

    Args:
        words: The arguments that follow `fumehood run`.

    Returns:
        The exit code, or None if this process has to make the sandbox itself.
    """
    if not is_wanted(words):
        return None

    try:
        connection = _connected()
    except OSError:
        return None

    with connection:
        try:
            return _Run(connection).follow(words)
        except KeyboardInterrupt:
            # The other end sees the connection closed, and ends the sandbox.
            return _EXIT_INTERRUPTED


def is_wanted(words: Sequence[str]) -> bool:
    """Return whether the words and the environment allow the warm path.

    If the environment requests a log, this process must make the sandbox, because only the process that makes it writes
    the log.
    """
    is_ordinary = any(os.environ.get(name) for name in ("FUMEHOOD_URL", "FUMEHOOD_LOG_LEVEL"))
    # Warm sandboxes are those of the default template, which has no display.
    is_shown = any(word.startswith("--screenshot") for word in words)
    return _OFF not in words and not is_shown and not is_ordinary and idle_seconds() > 0


def idle_seconds() -> float:
    """Return for how many seconds an idle warm process stays; 0 turns warm processes off."""
    try:
        return float(os.environ.get(_VARIABLE) or IDLE_SECONDS)
    except ValueError:
        return 0.0


def start_daemon() -> None:
    """Start the warm process, unless one runs already, without waiting for it."""
    # Imported late: this is the end of a run that took the ordinary way.
    import subprocess

    subprocess.Popen(
        [sys.executable, "-P", "-m", "fumehood.cli.warm_daemon"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def identity() -> list[object]:
    """Return the identity that a warm process must share with its caller: fumehood, packages and settings."""
    # A package that was installed or removed changes its folder.
    folders = [path for path in sys.path if path.endswith("-packages")]
    settings = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(("FUMEHOOD_", "PIP_")) or name in _PLACES
    )
    here = os.path.dirname(os.path.abspath(__file__))
    return [
        PROTOCOL,
        sys.executable,
        *(f"{path} {os.stat(path).st_mtime_ns}" for path in (here, *folders) if os.path.isdir(path)),
        *(f"{name}={value}" for name, value in settings),
    ]


def runtime_folder() -> str:
    """Return the user's own folder for the sockets, made if it is missing.

    Raises:
        OSError: The folder cannot be made, or belongs to another user.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = os.path.join(base, "fumehood") if _is_own(base) else f"/tmp/fumehood-{os.getuid()}"  # noqa: S108

    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        found = os.lstat(folder)

        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{folder} is not a folder of this user's own") from None

    return folder


def socket_path() -> str:
    """Return the path of the socket.

    Raises:
        OSError: The folder cannot be made, or belongs to another user.
    """
    name = zlib.crc32(json.dumps(identity()).encode())
    return os.path.join(runtime_folder(), f"run-{name:08x}.sock")


def _is_own(folder: str) -> bool:
    """Return whether only this user can replace entries of a folder.

    After `su`, XDG_RUNTIME_DIR names the previous user's folder, whose owner could replace what root has made there.
    """
    try:
        found = os.stat(folder)
    except OSError:
        return False

    return os.path.isabs(folder) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the peer is a process of this user, by the kernel's credentials."""
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS)
    return int.from_bytes(given[4:8], sys.byteorder) == os.getuid()


def _connected() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(socket_path())

        if not is_same_user(connection):
            raise PermissionError("the process at the socket is another user's")
    except BaseException:
        connection.close()
        raise

    return connection


class _Run:
    """A run in the warm process, whose requests about files and the terminal are carried out here."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._has_begun = False
        self._lines: BinaryIO | None = None
        self._files: CarriedFiles | None = None
        self._shown: Mapping[str, Any] | None = None
        self._saved: list[Saved] = []
        self.exit_code: int | None = None

    def follow(self, words: Sequence[str]) -> int | None:
        """Send the run and carry out the warm process's requests; return the exit code, or None if it is refused."""
        try:
            asked = {"identity": identity(), "words": list(words), "is_fed": _is_fed()}
            _send(self._connection, asked)

            with self._connection.makefile("rb") as lines:
                self._lines = lines

                while line := lines.readline():
                    if not self._obey(json.loads(line)):
                        return self.exit_code

            return self._lost()
        except BrokenPipeError:
            # Either the reader of standard output has left, as `head` does, or the warm process has closed the
            # connection.
            if sys.stdout is None or _is_open(sys.stdout):
                return self._lost()

            give_up_output()
            return 1
        except OSError as error:
            return _full(error) or self._lost()
        except ValueError:
            return self._lost()

    def _obey(self, answer: object) -> bool:
        """Handle one message; return whether more follow."""
        match answer:
            case {"out": text}:
                _write(sys.stdout, text)
            case {"err": text}:
                _write(sys.stderr, text)
            case {"result": text}:
                _write(sys.stdout, _fit_for(sys.stdout, text))
            case {"traceback": text}:
                _write_traceback(text)
            case {"ask": prompt, "password": is_password}:
                _send(self._connection, {"answer": _asked(prompt, is_password=is_password)})
            case {"piece": _}:
                _send(self._connection, {"answer": _next_piece()})
            case {"read": path}:
                return self._read(path)
            case {"begun": _}:
                self._has_begun = True
            case {"open": paths, "folder": folder, "overwrite": overwrite}:
                return self._open(paths, folder, overwrite)
            case {"piece_of": at} if self._files is not None:
                _send(self._connection, {"answer": self._files.next_piece(at)})
            case {"found": entries} if self._files is not None:
                self._files.bring_back(entries, self._ask)
                _send(self._connection, {"answer": None})
            case {"pictures": pictures, "stem": stem}:
                self._save(pictures, stem)
            case {"executions": data}:
                self._shown = data
            case {"exit": code}:
                self._end(int(code))
                return False
            case _:
                return False

        return True

    def _open(self, paths: Sequence[str], folder: str | None, overwrite: bool) -> bool:
        # Imported late: most runs need none.
        from fumehood.cli.warm_files import CarriedFiles

        try:
            self._files = CarriedFiles(paths, folder, overwrite=overwrite)
        except OSError:
            # The path without a warm process reports the error.
            return False

        _send(self._connection, {"answer": None})
        return True

    def _ask(self, question: Mapping[str, object]) -> Mapping[str, Any]:
        """Send a question and return the answer; nothing else may be sent meanwhile."""
        assert self._lines is not None
        _send(self._connection, question)
        line = self._lines.readline()

        if not line:
            raise ConnectionResetError

        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _end(self, code: int) -> None:
        saved = [*self._saved, *([] if self._files is None else self._files.saved)]

        if saved or self._shown is not None:
            # Imported late: most runs leave nothing.
            from fumehood.cli.reports import report

            report(saved, self._shown)

        is_left_out = any(item.skipped for item in saved)
        self.exit_code = _EXIT_LEFT_OUT if code == 0 and is_left_out else code

    def _read(self, path: str) -> bool:
        content = _content(path)

        if content is None:
            return False

        # From here on standard input may have been read, so the run cannot be repeated without the warm process.
        self._has_begun = True
        _send(self._connection, {"answer": base64.b64encode(content).decode()})
        return True

    def _save(self, pictures: Sequence[Mapping[str, str]], stem: str) -> None:
        # Imported late: most runs make none.
        from fumehood.api.artifacts import save_pictures
        from fumehood.values.results import Result

        results = [Result(parts={item["mime"]: base64.b64decode(item["content"])}) for item in pictures]

        if self._files is None:
            self._saved = save_pictures(results, into=".", stem=stem)
        else:
            self._files.save_pictures(results, stem)

    def _lost(self) -> int | None:
        if not self._has_begun:
            return None

        _write(
            sys.stderr,
            "fumehood: the process that kept the sandbox has ended; `--no-daemon` runs without it\n",
        )
        return _EXIT_LOST


def _full(error: OSError) -> int | None:
    """Report that standard output has no space left; return the exit code, or None for any other error."""
    reason = reason_of_full_output(error)

    if not reason:
        return None

    _write(sys.stderr, f"fumehood: {reason}\n")
    give_up_output()
    return EXIT_FILE_FAILED


def _is_open(stream: Any) -> bool:
    import select

    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return not any(events & select.POLLERR for _, events in poll.poll(0))


def _send(connection: socket.socket, message: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _write(stream: Any, text: str) -> None:
    if stream is not None:
        stream.write(text.encode("utf-8", "replace").decode())
        stream.flush()


def _write_traceback(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        # Imported late: colours are for terminals.
        from fumehood.cli.terminal import write_traceback

        write_traceback(_fit_for(sys.stderr, text), sys.stderr)
    else:
        _write(sys.stderr, text)


def _fit_for(stream: Any, text: str) -> str:
    if stream is None or not stream.isatty():
        return text

    # Imported late: most output is read by programs.
    from fumehood.cli.terminal import fit_for

    return fit_for(stream, text)


def _content(path: str) -> bytes | None:
    """Returns the program's content, or None if it cannot be read; the ordinary path reports that."""
    if path == "-":
        return b"" if sys.stdin is None else sys.stdin.buffer.read(_MAX_CODE_BYTES + 1)

    try:
        with open(path, "rb") as file:
            return file.read(_MAX_CODE_BYTES + 1)
    except OSError:
        return None


def _is_fed() -> bool:
    """Returns whether a program reads standard input in pieces, and not lines of a terminal."""
    return sys.stdin is None or not sys.stdin.isatty()


def _next_piece() -> str | None:
    piece = b"" if sys.stdin is None else os.read(sys.stdin.fileno(), _PIECE_BYTES)
    return base64.b64encode(piece).decode() if piece else None


def _asked(prompt: str, *, is_password: bool) -> str | None:
    if sys.stdin is None:
        return None

    if is_password and sys.stdin.isatty():
        import getpass

        _write(sys.stderr, prompt)
        return getpass.getpass("")

    _write(sys.stdout, prompt)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None
