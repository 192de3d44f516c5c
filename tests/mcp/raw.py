"""A client without an SDK: it says exactly what a test wants said, over the pipes of a server that it has started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

from .conftest import ARGV, QUICK

WAIT_SECONDS = 60


class RawServer:
    """`fumehood mcp` in a process of its own.

    Args:
        envs: Added to the environment.
    """

    def __init__(self, **envs: str) -> None:
        given = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
        self.process = subprocess.Popen(
            [sys.executable, *ARGV],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**given, **QUICK, **envs},
        )
        # Whatever hangs is ended, and read as the end of the output.
        self._watch = threading.Timer(WAIT_SECONDS, self.process.kill)
        self._watch.start()
        self._last_id = 0
        self.notes: list[dict[str, Any]] = []

    def say(self, line: bytes) -> None:
        """Write a line as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: dict[str, Any], *, is_note: bool = False) -> int:
        """Send a request, or a notification; give the number of the request."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}

        if not is_note:
            self._last_id += 1
            message["id"] = self._last_id

        self.say(json.dumps(message).encode())
        return self._last_id

    def heard(self) -> dict[str, Any]:
        """Wait for the next message: every line of the output must be one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said()
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the answer to a request; keep what comes before it."""
        while (message := self.heard()).get("id") != number:
            self.notes.append(message)

        return message

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        return self.answer(self.send(method, params))

    def begin(self, version: str = "2025-06-18") -> dict[str, Any]:
        """Shake hands as clients of old versions do."""
        who = {"name": "raw", "version": "1"}
        given = {"protocolVersion": version, "capabilities": {}, "clientInfo": who}
        result: dict[str, Any] = self.ask("initialize", given)["result"]
        self.send("notifications/initialized", {}, is_note=True)
        return result

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and give its result."""
        result: dict[str, Any] = self.ask("tools/call", {"name": tool, "arguments": arguments})["result"]
        return result

    def wait(self) -> int:
        """Wait for its end and give the exit code."""
        code = self.process.wait(WAIT_SECONDS)
        self._watch.cancel()
        return code

    def said(self) -> str:
        """What it wrote to standard error; read at its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        """End it, however it is."""
        self._watch.cancel()
        self.process.kill()
        self.process.wait()

        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
