"""The host's side of a context, as small as it can be: for tests only."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fumehood_wire import messages, payloads
from fumehood_wire.frames import Decoder, encode
from fumehood_wire.states import Conversation, Kind

SOURCE = Path(__file__).parents[3] / "src"
LIMITS = {"stdout_bytes": 1 << 20, "stderr_bytes": 1 << 20, "result_bytes": 10 << 20, "result_count": 100}
DEADLINE_SECONDS = 60.0
REPEAT_SECONDS = 0.5


class Zygote:
    """A process that has prepared a shell and forks contexts."""

    def __init__(
        self, *preload: str, env: dict[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        single = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("zygote_stand_in.py")), ",".join(preload)],
            stdin=theirs,
            env={**os.environ, **single, "PYTHONPATH": str(SOURCE), **(env or {})},
        )
        theirs.close()
        self.state = self._receive()

    def start(
        self, language: str = "python", cwd: str = "/tmp", envs: dict[str, str] | None = None
    ) -> Context:
        """Forks a context and waits until it is ready."""
        near, far = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        request = {"context_id": "c1", "language": language, "cwd": cwd, "envs": envs or {}}
        socket.send_fds(self._control, [json.dumps(request).encode()], [far.fileno(), out_write, err_write])
        far.close()
        os.close(out_write)
        os.close(err_write)
        return Context(self, self._receive()["pid"], near, out_read, err_read)

    def wait(self, pid: int) -> int:
        """Returns the exit status of a context that has ended."""
        self._control.send(json.dumps({"wait": pid}).encode())
        return int(self._receive()["status"])

    def close(self) -> None:
        self._control.close()
        self.process.wait(DEADLINE_SECONDS)

    def _receive(self) -> dict[str, Any]:
        data = self._control.recv(1 << 18)
        assert data, "the zygote has died"
        return json.loads(data)


def process_status(pid: int) -> dict[str, str]:
    """The fields of a process's status file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def wait_until_asleep(pid: int) -> None:
    """Waits until a process has taken its signals and sleeps."""
    deadline = time.monotonic() + DEADLINE_SECONDS

    while time.monotonic() < deadline:
        status = process_status(pid)

        if status["State"].startswith("S") and int(status["ShdPnd"], 16) == 0:
            return

        os.sched_yield()

    raise AssertionError("the process does not come to rest")


class Outcome:
    """Everything that one execution brought forth."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, Any], bytes]] = []
        self.reply: dict[str, Any] = {}

    def _text(self, name: str) -> str:
        return "".join(payload.decode() for header, payload in self.of("stream") if header["name"] == name)

    def of(self, kind: str) -> list[tuple[dict[str, Any], bytes]]:
        return [message for message in self.messages if message[0]["type"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [header["type"] for header, _ in self.messages]

    @property
    def stdout(self) -> str:
        return self._text("stdout")

    @property
    def stderr(self) -> str:
        return self._text("stderr")

    @property
    def results(self) -> list[dict[str, bytes]]:
        kinds = ("display_data", "execute_result", "update_display_data")
        return [
            dict(messages.split_parts(*message)) for message in self.messages if message[0]["type"] in kinds
        ]

    @property
    def comms(self) -> list[tuple[dict[str, Any], dict[str, Any], list[bytes]]]:
        """Header, data and buffers of each comm message."""
        found = []

        for header, payload in self.messages:
            if "comm_id" in header:
                content, buffers = payloads.split_comm(header, payload)
                found.append((header, payloads.parse_comm(content)[0], buffers))

        return found

    @property
    def text(self) -> str | None:
        found = [dict(messages.split_parts(*message)) for message in self.of("execute_result")]
        return found[-1]["text/plain"].decode() if found else None

    @property
    def error(self) -> tuple[str, str] | None:
        found = self.of("error")
        assert len(found) <= 1
        return (found[0][0]["ename"], found[0][0]["evalue"]) if found else None

    @property
    def traceback(self) -> str:
        (_, payload), *_ = self.of("error")
        return "\n".join(messages.parse_traceback(payload))


class Context:
    """A context as the host sees it."""

    def __init__(self, zygote: Zygote, pid: int, sock: socket.socket, out_fd: int, err_fd: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self._sock = sock
        self._decoder = Decoder()
        self._conversation = Conversation("test")
        self._inbox: list[tuple[dict[str, Any], bytes]] = []
        self.fds = {out_fd: b"", err_fd: b""}
        self._out_fd, self._err_fd = out_fd, err_fd
        self._is_interrupting = False
        self.background: list[tuple[dict[str, Any], bytes]] = []
        header, _ = self.next_message()
        assert header == {"type": "status", "state": "ready", "pid": pid}

    @property
    def fd_out(self) -> str:
        """What came on fd 1 since the last look."""
        return self._take(self._out_fd)

    @property
    def fd_err(self) -> str:
        """What came on fd 2 since the last look."""
        return self._take(self._err_fd)

    def _take(self, fd: int) -> str:
        while select.select([fd], [], [], 0)[0]:
            data = os.read(fd, 1 << 16)

            if not data:
                break

            self.fds[fd] += data

        text, self.fds[fd] = self.fds[fd].decode(), b""
        return text

    def send(self, code: str, *, envs: dict[str, str] | None = None, **options: Any) -> None:
        """Sends a request and does not wait."""
        header = {
            "type": "execute_request",
            "id": self._conversation.next_id,
            **LIMITS,
            "allow_stdin": False,
            "silent": False,
            "store_history": True,
            "envs": envs or {},
            **options,
        }
        messages.check(messages.HOST_TO_CONTEXT, header, code.encode())
        self._conversation.sent(header)
        self._sock.sendall(encode(header, code.encode()))

    def send_question(self, kind: str, code: str, **fields: Any) -> None:
        """Asks about code and does not wait."""
        header = {"type": f"{kind}_request", "id": self._conversation.next_id, **fields}
        messages.check(messages.HOST_TO_CONTEXT, header, code.encode())
        self._conversation.sent(header)
        self._sock.sendall(encode(header, code.encode()))

    def ask(self, kind: str, code: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
        """Asks about code and returns the reply."""
        self.send_question(kind, code, **fields)
        header, payload = self.next_message()
        self._is_interrupting = False
        assert header["type"] == f"{kind}_reply"
        return header, payload

    def complete(self, code: str) -> tuple[list[str], str]:
        """What could stand at the end of the code, and what it would replace."""
        header, payload = self.ask("complete", code, cursor_pos=len(code))
        return payloads.parse_matches(payload), code[header["cursor_start"] : header["cursor_end"]]

    def comm(self, kind: str, comm_id: str, data: dict[str, Any], *buffers: bytes, **fields: Any) -> Outcome:
        """Gives the context a comm message and collects what its handlers bring forth."""
        self.send_comm(kind, comm_id, data, *buffers, **fields)
        return self.finish()

    def send_comm(
        self, kind: str, comm_id: str, data: dict[str, Any], *buffers: bytes, **fields: Any
    ) -> None:
        """Gives the context a comm message and does not wait."""
        header = {
            "type": kind,
            "id": self._conversation.next_id,
            **LIMITS,
            "comm_id": comm_id,
            "buffers": [len(one) for one in buffers],
            **fields,
        }
        payload = b"".join((json.dumps({"data": data, "metadata": {}}).encode(), *buffers))
        messages.check(messages.HOST_TO_CONTEXT, header, payload)
        self._conversation.sent(header)
        self._sock.sendall(encode(header, payload))

    def answer(self, text: str) -> None:
        """Answers a question."""
        header = {"type": "input_reply", "id": self._conversation.current_id}
        self._conversation.sent(header)
        self._sock.sendall(encode(header, text.encode()))

    def answer_tool(self, call: int, value: Any, *, ok: bool = True) -> None:
        """Answers a call of a tool."""
        header = {"type": "tool_reply", "id": self._conversation.current_id, "call": call, "ok": ok}
        payload = json.dumps(value).encode()
        messages.check(messages.HOST_TO_CONTEXT, header, payload)
        self._conversation.sent(header)
        self._sock.sendall(encode(header, payload))

    def interrupt(self) -> None:
        """What init does: SIGINT to the group; and once more when the cell goes on, as a host does.

        A signal that comes between the interpreter's last look at its flags and a system call that waits
        does not end that wait: CPython sees it when the call returns.
        """
        self._is_interrupting = True
        os.killpg(self.pid, signal.SIGINT)

    def run(
        self, code: str, *, on_message: Callable[[dict[str, Any], bytes], None] | None = None, **options: Any
    ) -> Outcome:
        """Runs a cell to its reply."""
        self.send(code, **options)
        return self.finish(on_message=on_message)

    def finish(self, *, on_message: Callable[[dict[str, Any], bytes], None] | None = None) -> Outcome:
        """Collects what comes until the reply."""
        outcome = Outcome()

        while True:
            header, payload = self.next_message()

            if header["type"] == "execute_reply":
                self._is_interrupting = False
                outcome.reply = header
                return outcome

            outcome.messages.append((header, payload))

            if on_message is not None:
                on_message(header, payload)

    def next_message(self) -> tuple[dict[str, Any], bytes]:
        """The next message of the current execution, or of an earlier one if none runs, checked."""
        deadline = time.monotonic() + DEADLINE_SECONDS

        while True:
            while not self._inbox:
                self._receive(deadline)

            header, payload = self._inbox.pop(0)
            messages.check(messages.CONTEXT_TO_HOST, header, payload)

            if self._conversation.received(header) is Kind.BACKGROUND:
                self.background.append((header, payload))

                if self._conversation.current_id is not None:
                    continue

            return header, payload

    def _receive(self, deadline: float) -> None:
        sources = [self._sock, *self.fds]
        readable: list[Any] = []

        if self._is_interrupting:
            readable, _, _ = select.select(sources, [], [], REPEAT_SECONDS)

            if not readable:
                self.interrupt()
                assert time.monotonic() < deadline, "the context does not stop"
                return
        else:
            readable, _, _ = select.select(sources, [], [], max(0.0, deadline - time.monotonic()))

        assert readable, "the context says nothing"

        for fd in self.fds:
            if fd in readable:
                data = os.read(fd, 1 << 16)
                self.fds[fd] += data

        if self._sock in readable:
            data = self._sock.recv(1 << 18)

            if not data:
                raise EOFError("the context has closed the channel")

            self._inbox.extend(self._decoder.feed(data))

    def wait(self) -> int:
        """The exit status, after the end."""
        return self._zygote.wait(self.pid)

    def read_until(self, mark: str) -> None:
        """Waits until fd 1 has brought a text."""
        while mark not in self.fds[self._out_fd].decode():
            self._receive(time.monotonic() + DEADLINE_SECONDS)

    def read_to_the_end(self) -> str:
        """What a context has printed that ends by itself in the middle of a cell."""
        printed = []

        with suppress(EOFError, ConnectionResetError):
            while True:
                header, payload = self.next_message()
                printed.append(payload.decode() if header["type"] == "stream" else "")

        self.close()
        return "".join(printed)

    def close(self) -> int:
        """Ends the context, unless it has ended, and returns its exit status."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

        status = self.wait()
        self._sock.close()

        for fd in self.fds:
            os.close(fd)

        return status
