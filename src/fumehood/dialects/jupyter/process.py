"""A kernel that is a process of its own: started by a client from a kernel spec, reached over ZeroMQ.

Runs on the user's machine. Queue, answers and state are those of a kernel of the server; here are the sockets, the
signatures, and the end of the process with its client. The code runs in the sandbox alone, never in this process.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.asyncio

from fumehood.dialects.jupyter.audience import Audience, Client
from fumehood.dialects.jupyter.kernel import Kernel, context_for
from fumehood.dialects.jupyter.kernel_state import KernelRequest
from fumehood.dialects.jupyter.messages import CLIENT_CHANNELS, JupyterMessage, decode_parts, encode_parts
from fumehood.dialects.jupyter.spec import KernelSpec
from fumehood.errors import InvalidArgumentError
from fumehood.log import events
from fumehood.port.backend import Backend

# https://jupyter-client.readthedocs.io/en/stable/messaging.html#the-wire-protocol
_DELIMITER = b"<IDS|MSG>"
_JSON_PARTS = 4
_KINDS = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "stdin": zmq.ROUTER, "iopub": zmq.PUB, "hb": zmq.REP}
_LINGER_MILLISECONDS = 1000
_LOOK_SECONDS = 1.0
_MAX_WAITING_MESSAGES = 20_000
_MAX_PART_BYTES = 16 << 20
# Set by Jupyter's clients: the process that has started the kernel.
_PARENT_VARIABLE = "JPY_PARENT_PID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The addresses for the clients of a kernel, from its connection file.

    Attributes:
        transport: tcp or ipc.
        ip: An address, or the path with which the names of the sockets begin.
        ports: The port of each channel.
        key: Signs the messages; empty: they are not signed.
        hash_name: The hash of the signatures.
    """

    transport: str
    ip: str
    ports: Mapping[str, int]
    key: bytes
    hash_name: str

    def address(self, channel: str) -> str:
        """Returns the address of a channel's socket."""
        separator = ":" if self.transport == "tcp" else "-"
        return f"{self.transport}://{self.ip}{separator}{self.ports[channel]}"

    def sign(self, parts: list[bytes]) -> bytes:
        """Returns the signature of the four parts of a message."""
        if not self.key:
            return b""

        return hmac.new(self.key, b"".join(parts), self.hash_name).hexdigest().encode()


def read_connection(path: str) -> Connection:
    """Reads a connection file.

    Raises:
        InvalidArgumentError: The file is not a connection file.
        OSError: The file cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        try:
            content = json.load(file)
            scheme, _, hash_name = str(content.get("signature_scheme", "hmac-sha256")).partition("-")
            connection = Connection(
                transport=str(content.get("transport", "tcp")),
                ip=str(content["ip"]),
                ports={channel: int(content[f"{channel}_port"]) for channel in _KINDS},
                key=str(content.get("key", "")).encode(),
                hash_name=hash_name,
            )
            connection.sign([])
        except (AttributeError, KeyError, TypeError, ValueError):
            scheme = ""

    if scheme != "hmac":
        raise InvalidArgumentError(
            field="--connection-file", value=path, allowed="a connection file, as Jupyter's clients write it"
        )

    return connection


class Sockets(Audience):
    """The sockets of a kernel, over which its messages are sent.

    Args:
        connection: The addresses on which they listen.

    Raises:
        OSError: An address is in use.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._context = zmq.asyncio.Context()
        self._sockets: dict[str, zmq.asyncio.Socket] = {}

        for channel, kind in _KINDS.items():
            socket = self._context.socket(kind)
            socket.setsockopt(zmq.LINGER, _LINGER_MILLISECONDS)
            # How many messages wait for a client that does not read; further ones are dropped for it.
            socket.setsockopt(zmq.SNDHWM, _MAX_WAITING_MESSAGES)
            # The largest part of a message whose signature is not checked yet; a connection that sends more is closed.
            socket.setsockopt(zmq.MAXMSGSIZE, _MAX_PART_BYTES)

            if kind == zmq.ROUTER:
                # A client that reconnects under its name takes the place of its earlier connection.
                socket.setsockopt(zmq.ROUTER_HANDOVER, 1)

            socket.bind(connection.address(channel))
            self._sockets[channel] = socket

    def __len__(self) -> int:
        """Returns 1: the clients are not known, but one has started the kernel."""
        return 1

    def broadcast(self, message: JupyterMessage) -> None:
        """Sends a message to all clients."""
        self._send("iopub", message.msg_type.encode(), message)

    async def broadcast_large(self, message: JupyterMessage) -> None:
        """Sends a message to all clients, as any other: this process has no other work."""
        self.broadcast(message)

    def reply(self, session: str, message: JupyterMessage) -> None:
        """Sends a message to the client of that name."""
        self._send(message.channel, bytes.fromhex(session), message)

    def close(self) -> None:
        """Does nothing: queued messages are sent first, and `end` closes the sockets."""

    def end(self) -> None:
        """Closes the sockets when all queued messages were sent, or after a second."""
        self._context.destroy(_LINGER_MILLISECONDS)

    async def receive(self, channel: str, kernel: Kernel, backend: Backend) -> None:
        """Passes the messages of a channel on to the kernel; does not return."""
        while True:
            frames = await self._sockets[channel].recv_multipart()
            try:
                name, message = self._read(channel, frames)
            except InvalidArgumentError as error:
                events.KERNEL_MESSAGE_REFUSED.log(kernel_id=kernel.id, reason=error.log_reason)
                continue

            kernel.accept(message, sum(map(len, frames)), Client(name.hex(), backend))

    async def beat(self) -> None:
        """Answers the heartbeats of clients; does not return."""
        socket = self._sockets["hb"]

        while True:
            await socket.send_multipart(await socket.recv_multipart())

    def _read(self, channel: str, frames: list[bytes]) -> tuple[bytes, JupyterMessage]:
        """Returns the identity of the client (its ZeroMQ routing id), and its message.

        Raises:
            InvalidArgumentError: The signature of the message is wrong.
        """
        at = frames.index(_DELIMITER) if _DELIMITER in frames else 0
        signature, *parts = frames[at + 1 :] or [b""]

        if at == 0 or not hmac.compare_digest(signature, self._connection.sign(parts[:_JSON_PARTS])):
            raise InvalidArgumentError(
                field="message", value=channel, allowed="messages signed by the key of the connection file"
            )

        return frames[0], decode_parts(channel, parts)

    def _send(self, channel: str, name: bytes, message: JupyterMessage) -> None:
        parts = encode_parts(message)
        frames = [name, _DELIMITER, self._connection.sign(parts), *parts, *message.buffers]
        # Sent at once or queued; the order stays.
        self._sockets[channel].send_multipart(frames)


class ProcessKernel(Kernel):
    """A kernel that ends with its process, also at a restart, for which the client starts another process.

    Args:
        sandbox_id: Its sandbox.
        spec: Its kernel spec.
        context_id: The context in which its code runs.
        sockets: Its sockets.
    """

    def __init__(self, sandbox_id: str, spec: KernelSpec, context_id: str, sockets: Sockets) -> None:
        super().__init__(sandbox_id, sandbox_id, spec, context_id, sockets)
        self.ended = asyncio.Event()

    async def restart(self, backend: Backend) -> None:
        """Ends the sandbox; `die` follows when the reply was sent."""
        await backend.kill(self.sandbox_id, wait=False)

    def publish_state(self, state: str, parent: KernelRequest | None = None) -> None:
        """Broadcasts the state of the kernel, but for its death: the program that started this process sees its end.

        It may start the process again, as for a restart, and JupyterLab would have given up the connection.
        """
        if state != "dead":
            super().publish_state(state, parent)

    def die(self) -> None:
        """Ends the kernel, and with it the process."""
        super().die()
        self.ended.set()

    async def _answer_at_once(self, request: KernelRequest) -> None:
        await super()._answer_at_once(request)

        if request.msg_type == "shutdown_request":
            self.die()


def parent_of_kernel(environ: Mapping[str, str]) -> int:
    """Returns the id of the process that has started this one; 0 if it has ended already.

    To be called before anything that takes time: the end of that process cannot be noticed otherwise.
    """
    given = environ.get(_PARENT_VARIABLE, "")

    if given.isascii() and given.isdigit():
        try:
            os.kill(int(given), 0)
        except (ProcessLookupError, OverflowError):
            return 0
        except PermissionError:
            # The process runs as another user.
            return os.getppid()

    return os.getppid()


async def serve(
    sockets: Sockets, backend: Backend, sandbox_id: str, spec: KernelSpec, *, parent: int
) -> None:
    """Serves a kernel until a client ends it, its sandbox has ended, or the program that started it has.

    Args:
        sockets: Its sockets.
        backend: The backend of its sandbox.
        sandbox_id: Its sandbox.
        spec: Its kernel spec.
        parent: The process that has started this one, as `parent_of_kernel` has returned it.
    """
    context_id = await context_for(backend, sandbox_id, spec.language)
    kernel = ProcessKernel(sandbox_id, spec, context_id, sockets)
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[Any]] = set()

    def interrupt() -> None:
        # Some clients interrupt by a signal although the spec asks for messages.
        tasks.add(loop.create_task(backend.interrupt(sandbox_id, context_id)))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, kernel.die)
    kernel.publish_state("starting")
    tasks |= {loop.create_task(sockets.receive(name, kernel, backend)) for name in CLIENT_CHANNELS}
    tasks |= {loop.create_task(sockets.beat()), loop.create_task(_end_with_parent(kernel, parent))}
    try:
        await kernel.ended.wait()
    finally:
        for task in tasks:
            task.cancel()

        await asyncio.gather(*tasks, return_exceptions=True)
        sockets.end()


async def _end_with_parent(kernel: ProcessKernel, parent: int) -> None:
    """Ends the kernel when the program that started it has ended."""
    while os.getppid() == parent:
        await asyncio.sleep(_LOOK_SECONDS)

    kernel.die()
