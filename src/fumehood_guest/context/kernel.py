"""The language "kernel:NAME": a Jupyter kernel of the template or the sandbox, with a client in the context.

The kernel is a program of its own, started by its kernel spec; the context talks to it over unix sockets or the
loopback of the sandbox, with a random key, and does not trust its messages. A kernel that ends takes the context with
it. Whether it keeps its state at an interrupt, and how soon it answers, depends on the kernel.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from fumehood_guest.context.child_language import ChildLanguage, end_as, end_damaged, end_unavailable
from fumehood_guest.context.introspection import Answerer, Matches
from fumehood_guest.context.kernel_variables import Variables, variables_of
from fumehood_guest.context.outlet import GuestExecution, Outlet
from fumehood_guest.context.signals import SignalGate
from fumehood_guest.context.streams import Streams
from fumehood_guest.languages.zmtp import DEALER, SUB, ZmtpError, ZmtpSocket
from fumehood_guest.shared.folders import HOME

_PREFIX = "kernel:"
_DAMAGED = "the kernel has sent what no kernel sends"
_CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
# Programs whose libraries know no unix sockets; ports of TCP are taken by others between asking for them and their use.
_BY_TCP = frozenset(("deno", "java"))
# Programs that end at a signal and interrupt a cell at a message, which their specs do not mention.
_BY_MESSAGE = frozenset(("deno",))
# Programs that report the end of a cell before all that it has shown, against the protocol; seen 15 ms later.
_LATE = frozenset(("deno",))
_LATE_SECONDS = 0.1
# A cell may have left a timer that shows something again and again.
_MOST_LATE_SECONDS = 1.0
# The specs of kernels that are one program, which writes its spec only when its user asks for it.
_PROGRAMS = {"deno": ("deno", "jupyter", "--kernel", "--conn", "{connection_file}")}
_DELIMITER = b"<IDS|MSG>"
_START_SECONDS = 50.0
_RETRY_SECONDS = 0.02
# How long a kernel may take to react to an interrupt before it is interrupted again.
_PATIENCE_SECONDS = 0.5
# A kernel that has just started may miss what it was asked before its sockets were all there.
_ASK_SECONDS = 1.0
_MAX_SPEC_BYTES = 1 << 20


class NoKernelError(Exception):
    """The kernel spec does not exist; the message lists the existing ones."""


class KernelShell(ChildLanguage):
    """A running kernel.

    Args:
        language: The language as `kernel:NAME`, with the name of the kernel spec.
        outlet: Takes results and errors.
        streams: Standard output and standard error, which receive the kernel's output.
        gate: Blocks signals while something is sent.
    """

    def __init__(self, language: str, outlet: Outlet, streams: Streams, gate: SignalGate) -> None:
        super().__init__(outlet, gate)
        self._streams = streams
        name = language[len(_PREFIX) :]
        try:
            spec = _find_spec(name)
        except NoKernelError as error:
            end_unavailable(str(error))

        program = os.path.basename(str(spec["argv"][0]))
        self._by_message = spec.get("interrupt_mode") == "message" or program in _BY_MESSAGE
        self._is_late = program in _LATE
        self._key = secrets.token_hex(16)
        self._session = secrets.token_hex(16)
        # A kernel asks for input on another connection than the request has come on, and finds it by this name.
        self._identity = secrets.token_hex(8).encode()
        self._number = 0
        self._sockets: Dict[str, ZmtpSocket] = {}
        # The name of the language that the kernel gives itself.
        self._spoken = ""
        self._process = self._started(name, spec)
        self.answerer: Answerer = KernelAnswerer(self)
        self._await_answer()

    def run_source(self, source: str, execution: GuestExecution) -> None:
        """Runs one cell to its end.

        Raises:
            KeyboardInterrupt: The cell was interrupted, and the kernel has abandoned it.
        """
        self._begin(execution)

        if not execution.envs:
            self._run(source, execution)
            return

        variables = variables_of(self._spoken, execution.envs)

        if variables is None:
            words = f"variables of a call are not known in kernels of {self._spoken!r}: set them in the code"
            self._error = ("NotImplementedError", words, [f"NotImplementedError: {words}"])
            return

        self._run_with(variables, source, execution)

    def _run_with(self, variables: Variables, source: str, execution: GuestExecution) -> None:
        """Runs one cell between two pieces of code that set and restore variables.

        If setting them fails, the cell is not run.
        """
        try:
            reply = self._run(variables.taking, None)

            if reply.get("status") == "error":
                name, words = str(reply.get("ename", "")), f"variables are not set: {reply.get('evalue', '')}"
                self._error = (name, words, [f"{name}: {words}"])
                return

            self._run(source, execution)
        finally:
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                self._run(variables.giving_back, None)
            finally:
                signal.signal(signal.SIGINT, handler)

    def _run(self, source: str, execution: Optional[GuestExecution]) -> Dict[str, Any]:
        """Runs code to its end and returns the reply; its output is passed on only if an execution is given.

        Raises:
            KeyboardInterrupt: The code was interrupted, and the kernel has abandoned it.
        """
        is_cell = execution is not None
        content = {
            "code": source,
            "silent": execution is None or execution.flags["silent"],
            "store_history": execution is not None and execution.store_history,
            "user_expressions": {},
            "allow_stdin": is_cell,
            "stop_on_error": False,
        }
        asked = self._send("shell", "execute_request", content)
        try:
            reply = self._follow(asked, None, is_shown=is_cell)
        except KeyboardInterrupt:
            self._interrupt(asked)
            raise

        if self._is_late and is_cell:
            self._take_late(asked)

        return reply or {}

    def ask(self, kind: str, content: Dict[str, Any]) -> Dict[str, Any]:
        """Returns the content of the answer to a question between two cells."""
        return self._follow(self._send("shell", kind, content), None) or {}

    # -- start

    def _started(self, name: str, spec: Dict[str, Any]) -> "subprocess.Popen[bytes]":
        stem = f"/tmp/.fumehood-kernel-{secrets.token_hex(8)}"  # noqa: S108 - of the sandbox
        path = f"{stem}.json"
        is_tcp = os.path.basename(str(spec["argv"][0])) in _BY_TCP
        ports = _free_ports(len(_CHANNELS)) if is_tcp else list(range(1, len(_CHANNELS) + 1))
        named = dict(zip(_CHANNELS, ports))  # noqa: B905 - guests run on Python 3.9 too
        self._addresses = {channel: port if is_tcp else f"{stem}-{port}" for channel, port in named.items()}
        connection = {
            "transport": "tcp" if is_tcp else "ipc",
            "ip": "127.0.0.1" if is_tcp else stem,
            "key": self._key,
            "signature_scheme": "hmac-sha256",
            "kernel_name": name,
            **{f"{channel}_port": port for channel, port in named.items()},
        }
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

        with open(fd, "w", encoding="utf-8") as file:
            json.dump(connection, file)

        values = {"connection_file": path, "resource_dir": str(spec["resource_dir"])}
        argv = [_filled(str(word), values) for word in spec["argv"]]

        # The Python of a spec is that of the environment in which it was installed: here it is this one.
        if os.path.basename(argv[0]).startswith("python") and not os.access(argv[0], os.X_OK):
            argv[0] = sys.executable

        # As clients of Jupyter do: without it ipykernel prints how to connect to it.
        envs = {**os.environ, "JPY_PARENT_PID": str(os.getpid())}
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                # The host signals the group of the context, and kernels that take messages may end at that.
                start_new_session=True,
                env={**envs, **{str(one): str(text) for one, text in spec.get("env", {}).items()}},
            )
        except OSError as error:
            end_unavailable(f"the program of the kernel {name!r} does not start: {error}")

    def _await_answer(self) -> None:
        """Connects, and waits until the kernel answers."""
        deadline = time.monotonic() + _START_SECONDS

        for channel, kind in (("shell", DEALER), ("iopub", SUB), ("stdin", DEALER), ("control", DEALER)):
            self._sockets[channel] = self._connected(kind, self._addresses[channel], deadline)

        while time.monotonic() < deadline:
            asked = self._send("shell", "kernel_info_request", {})

            found = self._follow(asked, time.monotonic() + _ASK_SECONDS)

            if found is not None:
                language = found.get("language_info")
                self._spoken = str(language.get("name", "")) if isinstance(language, dict) else ""
                return

        end_unavailable("the kernel does not answer")

    def _connected(self, kind: str, address: Union[str, int], deadline: float) -> ZmtpSocket:
        while True:
            try:
                return ZmtpSocket(kind, address, _START_SECONDS, self._identity)
            except (OSError, ZmtpError) as error:
                if self._process.poll() is not None:
                    end_unavailable(f"the kernel has ended with status {self._process.returncode}")

                if time.monotonic() > deadline:
                    end_unavailable(f"the kernel accepts no connection: {error}")

                time.sleep(_RETRY_SECONDS)

    # -- messages

    def _send(self, channel: str, kind: str, content: Dict[str, Any]) -> str:
        self._number += 1
        name = f"{self._session}-{self._number}"
        header = {
            "msg_id": name,
            "username": "user",
            "session": self._session,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "msg_type": kind,
            "version": "5.3",
        }
        parts = [json.dumps(part).encode("utf-8", "replace") for part in (header, {}, {}, content)]
        signature = hmac.new(self._key.encode(), b"".join(parts), hashlib.sha256).hexdigest().encode()

        with self._gate.closed():
            try:
                self._sockets[channel].send([_DELIMITER, signature, *parts])
            except OSError:
                end_as(self._process)

        return name

    def _follow(
        self, asked: str, deadline: Optional[float], *, is_shown: bool = True
    ) -> Optional[Dict[str, Any]]:
        """Passes on the output of a request, unless it is silent, until the reply has arrived and the kernel is idle.

        Returns the content of the reply; None if the time runs out first.
        """
        reply: Optional[Dict[str, Any]] = None
        is_idle = False

        while reply is None or not is_idle:
            message = self._next(deadline)

            if message is None:
                return None

            channel, kind, parent, content = message

            if parent != asked:
                continue

            if channel == "shell":
                reply = content
            elif kind == "status":
                is_idle = is_idle or content.get("execution_state") == "idle"
            elif is_shown:
                self._take(kind, content)

        return reply

    def _take_late(self, asked: str) -> None:
        """Passes on late output of an ended cell, until none arrives for a moment or it lasts too long."""
        now = time.monotonic()
        quiet, latest = now + _LATE_SECONDS, now + _MOST_LATE_SECONDS

        while (message := self._next(min(quiet, latest))) is not None:
            channel, kind, parent, content = message

            if channel == "iopub" and parent == asked and kind != "status":
                self._take(kind, content)
                quiet = time.monotonic() + _LATE_SECONDS

            # What has arrived is returned at any time.
            if time.monotonic() >= latest:
                return

    def _next(self, deadline: Optional[float]) -> Optional[Tuple[str, str, str, Dict[str, Any]]]:
        """Returns the next message: its channel, its kind, the request that it answers, its content."""
        while True:
            for channel in ("iopub", "stdin", "shell", "control"):
                try:
                    frames = self._sockets[channel].take()
                except (OSError, ZmtpError):
                    end_damaged(_DAMAGED)

                if frames is not None:
                    return (channel, *self._read(frames))

            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = select.select(list(self._sockets.values()), (), (), left)[0]

            if not ready:
                return None

            # An interrupt between reading and keeping would lose bytes.
            with self._gate.closed():
                try:
                    for one in ready:
                        one.read()
                except ZmtpError:
                    end_as(self._process)

    def _read(self, frames: List[bytes]) -> Tuple[str, str, Dict[str, Any]]:
        try:
            place = frames.index(_DELIMITER)
            header, parent, _, content = (json.loads(frame) for frame in frames[place + 2 : place + 6])
            return str(header["msg_type"]), str(parent.get("msg_id", "")), dict(content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            end_damaged(_DAMAGED)

    def _take(self, kind: str, content: Dict[str, Any]) -> None:
        """Sends one message about a cell to the host."""
        if kind == "input_request":
            self._answer_input(content)
            return

        with self._gate.closed():
            if kind == "stream":
                stream = self._streams.stderr if content.get("name") == "stderr" else self._streams.stdout
                stream.write(str(content.get("text", "")))
            elif kind in ("display_data", "execute_result", "update_display_data"):
                data = content.get("data")
                self._streams.send_pending()
                count = self._count if kind == "execute_result" else None
                self._outlet.bundle(kind, data if isinstance(data, dict) else {}, execution_count=count)
            elif kind == "error":
                lines = content.get("traceback")
                name, value = str(content.get("ename", "")), str(content.get("evalue", ""))
                trace = (
                    [str(line) for line in lines]
                    if isinstance(lines, list) and lines
                    else [f"{name}: {value}"]
                )
                self._error = (name, value, trace)

    def _answer_input(self, content: Dict[str, Any]) -> None:
        try:
            value = str(builtins.input(str(content.get("prompt", ""))))
        except EOFError:
            value = ""

        self._send("stdin", "input_reply", {"value": value})

    def _interrupt(self, asked: str) -> None:
        """Waits until the kernel has abandoned the cell; the host decides how long that may take."""
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            while True:
                if self._by_message:
                    self._send("control", "interrupt_request", {})
                else:
                    # As clients of Jupyter do: what the kernel has started gets it too.
                    os.killpg(self._process.pid, signal.SIGINT)

                if self._follow(asked, time.monotonic() + _PATIENCE_SECONDS) is not None:
                    return
        finally:
            signal.signal(signal.SIGINT, handler)


class KernelAnswerer:
    """Answers with the kernel.

    Args:
        shell: The running kernel.
    """

    def __init__(self, shell: KernelShell) -> None:
        self._shell = shell

    def complete(self, code: str, cursor: int) -> Matches:
        """Returns the kernel's completions at the cursor."""
        found = self._shell.ask("complete_request", {"code": code, "cursor_pos": cursor})
        matches, start, end = found.get("matches"), found.get("cursor_start"), found.get("cursor_end")

        if not isinstance(matches, list) or not isinstance(start, int) or not isinstance(end, int):
            return [], cursor, cursor

        return [match for match in matches if isinstance(match, str)], start, end

    def inspect(self, code: str, cursor: int, detail: int) -> Dict[str, str]:
        """Returns the kernel's documentation of the name at the cursor."""
        question = {"code": code, "cursor_pos": cursor, "detail_level": detail}
        data = self._shell.ask("inspect_request", question).get("data")
        return {str(mime): str(text) for mime, text in data.items()} if isinstance(data, dict) else {}

    def check(self, code: str) -> Tuple[str, str]:
        """Returns whether the code is complete, and the indent of its next line."""
        found = self._shell.ask("is_complete_request", {"code": code})
        return str(found.get("status", "unknown")), str(found.get("indent", ""))


def _find_spec(name: str) -> Dict[str, Any]:
    """Returns a kernel spec and the folder that contains it.

    Raises:
        NoKernelError: The kernel spec does not exist.
    """
    for folder in _spec_folders():
        path = os.path.join(folder, name, "kernel.json")
        try:
            with open(path, encoding="utf-8") as file:
                spec = json.loads(file.read(_MAX_SPEC_BYTES))
        except (OSError, ValueError, RecursionError):
            continue

        if isinstance(spec, dict) and isinstance(spec.get("argv"), list) and spec["argv"]:
            return {**spec, "resource_dir": os.path.dirname(path)}

    if name in _PROGRAMS and shutil.which(_PROGRAMS[name][0]) is not None:
        return {"argv": list(_PROGRAMS[name]), "resource_dir": "", "env": {"NO_COLOR": "1"}}

    known = sorted({one for folder in _spec_folders() for one in _names_in(folder)})
    raise NoKernelError(f"no kernel spec {name!r} is there; there are: {', '.join(known) or 'none'}")


def _spec_folders() -> Iterator[str]:
    home = os.environ.get("HOME", HOME)
    places = [
        *os.environ.get("JUPYTER_PATH", "").split(os.pathsep),
        f"{home}/.local/share/jupyter",
        "/opt/venv/share/jupyter",
        f"{sys.prefix}/share/jupyter",
        "/usr/local/share/jupyter",
        "/usr/share/jupyter",
    ]
    return (os.path.join(place, "kernels") for place in places if place)


def _names_in(folder: str) -> List[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _free_ports(count: int) -> List[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]

    for one in held:
        one.close()

    return ports


def _filled(word: str, values: Dict[str, str]) -> str:
    for name, text in values.items():
        word = word.replace("{" + name + "}", text)

    return word
