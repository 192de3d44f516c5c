"""`fumehood` commands, forked from a process that has imported their modules once.

To import the server takes two seconds of a processor, and a client half of one, which some hundred tests would each
spend on a command of their own. What runs after the imports is what `python -m fumehood` runs, with the arguments, the
environment and the end of a command. The process that forks is a program of its own, since a test process has threads;
it ends with the test process, and its commands then get SIGTERM.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from tests import tls_contexts

_MODULES = (
    "aiosqlite",
    "aiosqlite.core",
    "alembic.command",
    "alembic.script",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "fumehood.cli.main",
    "fumehood.cli.batch",
    "fumehood.cli.run",
    "fumehood.cli.template",
    "fumehood.assemble",
    "fumehood.cluster.ray_settings",
    "fumehood.engine.backend",
    "fumehood.engine.supervisor",
    "fumehood.runtimes.landlock.runtime",
    "fumehood.runtimes.namespaces.runtime",
    "fumehood.client.backend",
    "fumehood.cli.serve",
    "fumehood.cli.host",
    "fumehood.server.run",
    *(
        f"fumehood.dialects.{name}.adapter"
        for name in ("e2b", "fusion", "jupyter", "librechat", "openai", "replit")
    ),
    "fumehood.dialects.mcp.adapter",
    "fumehood.mcp.stdio",
    "fumehood.daemon.run",
    "fumehood.console.routes",
)
_MESSAGE_BYTES = 256 * 1024
# What a pipe holds, so that nothing has to write while a command reads.
_INPUT_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1
_RELAY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "relay.py")
# In the order in which the files of a command are handed over.
_STREAMS = (2, 0, 1)


class ForkedCommand:
    """A command, with the part of `subprocess.Popen` that tests use.

    Args:
        words: The arguments of `fumehood`.
        environ: The whole environment.

    Attributes:
        pid: The process.
        stderr: What it writes there.
        returncode: Its exit code, or the negative number of the signal that ended it; None: not known to have ended.
    """

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        said, writes = os.pipe()

        try:
            self.pid, self._ended = _fork(words, environ, os.getcwd(), [writes])
        finally:
            os.close(writes)

        self.returncode: int | None = None
        self.stderr: IO[str] | None = open(said, encoding="utf-8")  # noqa: SIM115

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)

        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            ready, _, _ = select.select([self._ended], [], [], timeout)

            if not ready:
                raise subprocess.TimeoutExpired(f"fumehood, process {self.pid}", timeout or 0)

            # Nothing: the process that forks has ended before it.
            self.returncode = int(os.read(self._ended, 64) or -signal.SIGKILL)
            os.close(self._ended)

        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it is known to have ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run(
    words: Sequence[str], *, environ: Mapping[str, str], folder: str, stdin: str = "", seconds: float = 90
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run` does when it captures what the command prints.

    Args:
        words: The arguments of `fumehood`.
        environ: The whole environment.
        folder: Where it runs.
        stdin: Its standard input, no longer than a pipe holds.
        seconds: How long it may take.

    Raises:
        TimeoutExpired: It takes longer; it was killed.
    """
    given = stdin.encode()
    assert len(given) <= _INPUT_BYTES, "give it to a program that subprocess starts"
    reads, writes = os.pipe()
    os.write(writes, given)
    os.close(writes)
    printed, said = (os.memfd_create(name) for name in ("stdout", "stderr"))

    try:
        pid, ended = _fork(words, environ, folder, [said, reads, printed])
        done = select.select([ended], [], [], seconds)[0]

        if not done:
            os.kill(pid, signal.SIGKILL)

        code = int(os.read(ended, 64) or -signal.SIGKILL)
        os.close(ended)

        if not done:
            raise subprocess.TimeoutExpired(list(words), seconds)

        output, errors = (os.pread(file, os.fstat(file).st_size, 0).decode() for file in (printed, said))
        return subprocess.CompletedProcess(list(words), code, output, errors)
    finally:
        for descriptor in (reads, printed, said):
            os.close(descriptor)


def relayed(words: Sequence[str]) -> list[str]:
    """Return the arguments of a small program that passes its streams and its environment on to a command.

    For libraries that start a command themselves. The program takes signals to it, and ends with its exit code.
    """
    _forks()
    return [sys.executable, "-I", "-S", _RELAY, _address(), *words]


def _fork(words: Sequence[str], environ: Mapping[str, str], folder: str, files: list[int]) -> tuple[int, int]:
    """Start a command; `files` are its stderr, stdin and stdout, the first at least.

    Returns:
        Its process id, and a descriptor that its exit code can be read from when it has ended.
    """
    ended, tells = os.pipe()
    request = {"words": list(words), "environ": dict(environ), "folder": folder}
    forks = _forks()

    try:
        socket.send_fds(forks, [json.dumps(request).encode()], [tells, *files])
    finally:
        os.close(tells)

    return int(forks.recv(64)), ended


@functools.cache
def _address() -> str:
    """Return where relays reach the process that forks, in a folder of this user alone; it goes with this process."""
    folder = tempfile.mkdtemp(prefix="fh-forks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return f"{folder}/socket"


# Referred to as long as this process lives: one that is dropped while its process runs is warned of.
_STARTED: list[subprocess.Popen[bytes]] = []


@functools.cache
def _forks() -> socket.socket:
    """Start the process that forks, one for each test process, and return the socket that reaches it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relays = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relays.bind(_address())
    relays.listen()

    with theirs, relays:
        argv = [sys.executable, "-m", "tests.forked", str(theirs.fileno()), str(relays.fileno())]
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environ = {**os.environ, "PYTHONPATH": folder}
        pass_fds = (theirs.fileno(), relays.fileno())
        _STARTED.append(subprocess.Popen(argv, pass_fds=pass_fds, env=environ, stdin=subprocess.DEVNULL))

    return ours


def _serve(control: socket.socket, relays: socket.socket) -> int:
    """Fork for each request until the test process has ended; in a child, return the exit code of its command."""
    for name in _MODULES:
        if importlib.util.find_spec(name.rpartition(".")[0]):
            importlib.import_module(name)

    # Made here, for all commands that are clients.
    tls_contexts.share()
    importlib.import_module("httpx2").Client().close()
    gc.collect()
    gc.freeze()
    # By the descriptor of the process: its id, and where its end is told.
    running: dict[int, tuple[int, int]] = {}

    while True:
        for ready in _readable([control.fileno(), relays.fileno(), *running]):
            if ready in running:
                _tell_end(ready, *running.pop(ready))
                continue

            asks = control if ready == control.fileno() else relays.accept()[0]
            message, given, _, _ = socket.recv_fds(asks, _MESSAGE_BYTES, 1 + len(_STREAMS))

            if not message and asks is control:
                return 0

            # A relay reads the exit code from its own connection.
            tells, *files = given if asks is control else (asks.fileno(), *given)
            pid = os.fork()

            if not pid:
                ends = (end for _, end in running.values())
                foreign = {control.fileno(), relays.fileno(), tells, *running, *ends}

                for one in (control, relays, asks):
                    one.detach()

                for descriptor in foreign:
                    os.close(descriptor)

                return _run(json.loads(message), files)

            for file in files:
                os.close(file)

            asks.send(str(pid).encode())
            running[os.pidfd_open(pid)] = (pid, tells)

            if asks is not control:
                asks.detach()


def _readable(descriptors: list[int]) -> Iterator[int]:
    ready, _, _ = select.select(descriptors, [], [])
    yield from ready


def _tell_end(descriptor: int, pid: int, tells: int) -> None:
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)

    # The test process may not want to know any more.
    with contextlib.suppress(BrokenPipeError):
        os.write(tells, str(os.waitstatus_to_exitcode(status)).encode())

    os.close(tells)


def _run(request: Mapping[str, object], files: list[int]) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    for file, stream in zip(files, _STREAMS, strict=False):
        os.dup2(file, stream)
        os.close(file)

    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    os.chdir(str(request["folder"]))
    # What an interpreter reads at its start.
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = ["fumehood", *request["words"]]  # type: ignore[misc]

    from fumehood.cli.start import main

    return main()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(_serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:])))
