"""A small client of Jupyter's kernel API, written against its documents: what the real clients hide, it shows."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
import requests
from websockets.sync.client import ClientConnection, connect

V1 = "v1.kernel.websocket.jupyter.org"
SECONDS = 60
Message = dict[str, Any]


class Channels:
    """A WebSocket on a kernel, in one of the two framings."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.is_v1 = socket.subprotocol == V1
        self.session = uuid.uuid4().hex

    def send(self, msg_type: str, content: Message, *, channel: str = "shell", **parts: Any) -> str:
        """Sends a message and returns its id."""
        msg_id = uuid.uuid4().hex
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "username": "tester",
            "session": self.session,
            "date": "2026-01-01T00:00:00Z",
            "version": "5.3",
        }
        buffers: list[bytes] = parts.pop("buffers", [])
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, **parts}
        self.socket.send(self._written({**message, "channel": channel}, buffers))
        return msg_id

    def execute(self, code: str, **options: Any) -> str:
        """Sends an `execute_request` and returns its id."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        return self.send("execute_request", {**content, **options})

    def receive(self) -> Message:
        """Returns the next message."""
        return self._read(self.socket.recv(timeout=SECONDS))

    def until(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """Returns all messages up to the first that is wanted."""
        messages = [self.receive()]

        while not wanted(messages[-1]):
            messages.append(self.receive())

        return messages

    def answers(self, msg_id: str) -> list[Message]:
        """Returns all messages that belong to a request, up to the `idle` that ends it."""
        messages = self.until(lambda message: _is_idle(message, msg_id))
        return [message for message in messages if parent_of(message) == msg_id]

    def ask(self, msg_type: str, content: Message, channel: str = "shell") -> Message:
        """Sends a request and returns the content of its reply."""
        msg_id = self.send(msg_type, content, channel=channel)
        reply = msg_type.removesuffix("_request") + "_reply"
        found = [message for message in self.answers(msg_id) if type_of(message) == reply]
        return next(message for message in found if message["channel"] == channel)["content"]

    def run(self, code: str, **options: Any) -> list[Message]:
        """Runs code and returns all that belongs to it."""
        return self.answers(self.execute(code, **options))

    def _written(self, message: Message, buffers: list[bytes]) -> str | bytes:
        if self.is_v1:
            names = ("header", "parent_header", "metadata", "content")
            parts = [message["channel"].encode(), *(json.dumps(message[name]).encode() for name in names)]
            return _framed([*parts, *buffers])

        if not buffers:
            return json.dumps(message)

        parts = [json.dumps(message).encode(), *buffers]
        offsets = [4 * (len(parts) + 1)]

        for part in parts[:-1]:
            offsets.append(offsets[-1] + len(part))

        return struct.pack(f"!I{len(parts)}I", len(parts), *offsets) + b"".join(parts)

    def _read(self, frame: str | bytes) -> Message:
        if isinstance(frame, str):
            assert not self.is_v1
            return json.loads(frame)

        if self.is_v1:
            (count,) = struct.unpack("<Q", frame[:8])
            offsets = struct.unpack(f"<{count}Q", frame[8 : 8 * (count + 1)])
            parts = [frame[start:end] for start, end in pairwise(offsets)]
            names = ("header", "parent_header", "metadata", "content")
            message = {name: json.loads(part) for name, part in zip(names, parts[1:5], strict=True)}
            return {**message, "channel": parts[0].decode(), "buffers": parts[5:]}

        (count,) = struct.unpack("!I", frame[:4])
        offsets = (*struct.unpack(f"!{count}I", frame[4 : 4 * (count + 1)]), len(frame))
        parts = [frame[start:end] for start, end in pairwise(offsets)]
        return {**json.loads(parts[0]), "buffers": parts[1:]}


class Gateway:
    """The REST side, for one token."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self.http = requests.Session()
        self.http.headers["Authorization"] = f"token {token}"
        self._sockets = ExitStack()
        self._kernels: list[str] = []

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        """Sends a request."""
        return self.http.request(method, self.url + path, timeout=SECONDS, **options)

    def native(self, method: str, path: str) -> requests.Response:
        """Sends a request to the server's own API, with the same token."""
        return self.call(method, path, headers={"Authorization": f"Bearer {self.token}"})

    def start(self, **body: Any) -> str:
        """Starts a kernel and returns its id."""
        answer = self.call("POST", "/api/kernels", json=body) if body else self.call("POST", "/api/kernels")
        assert answer.status_code == 201, answer.text
        self._kernels.append(answer.json()["id"])
        return self._kernels[-1]

    def connect(self, kernel_id: str, *, v1: bool = False, session: str = "", **options: Any) -> Channels:
        """Opens a WebSocket on a kernel."""
        url = f"{self.url.replace('http', 'ws', 1)}/api/kernels/{kernel_id}/channels"
        opening = connect(
            url + (f"?session_id={session}" if session else ""),
            additional_headers={"Authorization": f"token {self.token}"},
            subprotocols=[V1] if v1 else None,
            max_size=None,
            **options,
        )
        return Channels(self._sockets.enter_context(opening))

    def close(self) -> None:
        """Ends everything."""
        self._sockets.close()

        for kernel_id in self._kernels:
            self.call("DELETE", f"/api/kernels/{kernel_id}")

        self.http.close()


@pytest.fixture
def gateway(server) -> Iterator[Gateway]:
    """The API, with the owner's token; what a test starts is ended after it."""
    made = Gateway(server.url, server.token)
    yield made
    made.close()


@pytest.fixture
def channels(gateway: Gateway) -> Channels:
    """A WebSocket on a new kernel."""
    return gateway.connect(gateway.start())


def sandbox_of(kernel_id: str) -> str:
    return kernel_id.replace("-", "")


def type_of(message: Message) -> str:
    return str(message["header"]["msg_type"])


def parent_of(message: Message) -> str | None:
    return message["parent_header"].get("msg_id")


def _is_idle(message: Message, msg_id: str) -> bool:
    is_status = type_of(message) == "status" and parent_of(message) == msg_id
    return is_status and message["content"]["execution_state"] == "idle"


def _framed(parts: list[bytes]) -> bytes:
    offsets = [8 * (len(parts) + 2)]

    for part in parts:
        offsets.append(offsets[-1] + len(part))

    return struct.pack(f"<Q{len(offsets)}Q", len(offsets), *offsets) + b"".join(parts)
