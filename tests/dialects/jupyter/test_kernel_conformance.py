"""The tests that Jupyter's developers have for kernels, unmodified, for each kernel of the gateway."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from typing import Any

import jupyter_kernel_test
import pytest
from jupyter_client.client import KernelClient
from jupyter_client.jsonutil import json_default
from tests import kernel_samples
from websockets.exceptions import ConnectionClosed

from .conftest import SECONDS, Channels, Gateway

_gateways: list[Gateway] = []


@pytest.fixture(scope="module", autouse=True)
def the_gateway(server) -> Iterator[None]:
    """The API, for the classes of this module."""
    made = Gateway(server.url, server.token)
    _gateways.append(made)
    yield
    _gateways.remove(made)
    made.close()


class Channel:
    """One channel of a kernel, as Jupyter's clients have it."""

    def __init__(self, name: str, channels: Channels) -> None:
        self._name = name
        self._channels = channels
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message."""
        self._channels.socket.send(json.dumps({**message, "channel": self._name}, default=json_default))

    def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """Returns the next message."""
        return self.messages.get(timeout=SECONDS if timeout is None else timeout)


class WebSocketClient(KernelClient):
    """Jupyter's own client, with the channels of one WebSocket."""

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self._socket = channels.socket
        self.named = {name: Channel(name, channels) for name in ("shell", "iopub", "stdin", "control")}
        self._reader = threading.Thread(target=self._read, args=(channels,))
        self._reader.start()

    shell_channel = property(lambda self: self.named["shell"])
    iopub_channel = property(lambda self: self.named["iopub"])

    def get_shell_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """Returns the next reply."""
        return self.shell_channel.get_msg(timeout=timeout)

    def get_iopub_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """Returns the next message to all."""
        return self.iopub_channel.get_msg(timeout=timeout)

    def close(self) -> None:
        """Closes the WebSocket."""
        self._socket.close()
        self._reader.join()

    def _read(self, channels: Channels) -> None:
        try:
            while True:
                message = json.loads(channels.socket.recv())
                self.named[message["channel"]].messages.put(message)
        except ConnectionClosed:
            return


class ThroughTheGateway(jupyter_kernel_test.KernelTests):
    """Starts a kernel by HTTP and talks to it by WebSocket."""

    __test__ = False

    @classmethod
    def setUpClass(cls) -> None:
        cls.kernel = _gateways[0].start(name=cls.kernel_name)
        cls.kc = WebSocketClient(_gateways[0].connect(cls.kernel))
        cls.kc.kernel_info()
        cls.kc.get_shell_msg()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.kc.close()
        _gateways[0].call("DELETE", f"/api/kernels/{cls.kernel}")


class TestPython(kernel_samples.Python, ThroughTheGateway):
    __test__ = True
    kernel_name = "python3"


class TestBash(kernel_samples.Bash, ThroughTheGateway):
    __test__ = True
    kernel_name = "bash"


class TestJavaScript(kernel_samples.JavaScript, ThroughTheGateway):
    __test__ = True
    kernel_name = "javascript"


class TestTypeScript(kernel_samples.TypeScript, ThroughTheGateway):
    __test__ = True
    kernel_name = "typescript"


@kernel_samples.needs_r
class TestR(kernel_samples.R, ThroughTheGateway):
    __test__ = True
    kernel_name = "r"


@kernel_samples.needs_java
class TestJava(kernel_samples.Java, ThroughTheGateway):
    __test__ = True
    kernel_name = "java"
