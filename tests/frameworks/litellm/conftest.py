"""A server of ours with a domain, as LiteLLM needs it: names of sandboxes lead to it, over TLS.

Where a deployment has a wildcard entry in its DNS and a certificate, this has a proxy that leads every name of the
domain to the server, and a certificate of its own; LiteLLM hears of both by the usual variables.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

DOMAIN = "boxes.test"


class Server:
    """A real `fumehood serve`."""

    def __init__(self, folder: Path) -> None:
        self.token = "a-token-of-this-test"
        envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
        envs |= {"FUMEHOOD_TOKEN": self.token, "FUMEHOOD_STATE_FOLDER": str(folder)}
        argv = [
            sys.executable,
            "-m",
            "fumehood",
            "serve",
            "--port",
            "0",
            "--domain",
            DOMAIN,
            "--pool-size",
            "1",
        ]
        self.process = subprocess.Popen(argv, env=envs, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said = ""

        for line in self.process.stderr:
            said += line

            if found := re.search(r"listens on (http://\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(f"the server did not start:\n{said}")

        # What it says later must be read, or it would wait for us.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


class Gate:
    """An HTTP proxy that ends the TLS of every name of the domain and leads it to the server."""

    def __init__(self, server: Server, folder: Path) -> None:
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert(f"*.{DOMAIN}").configure_cert(self._tls)
        host, _, port = server.url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self.names: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self.port: int = listening.result(10).sockets[0].getsockname()[1]

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}

        for task in others:
            task.cancel()

        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        name = asked.split()[1]
        assert asked.startswith("CONNECT ")
        assert name.endswith(f".{DOMAIN}:443")
        self.names.append(name.partition(":")[0])
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.drain()
        await writer.start_tls(self._tls)
        onward = await asyncio.open_connection(*self._address)
        await asyncio.gather(self._copy(reader, onward[1]), self._copy(onward[0], writer))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()

        target.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


@pytest.fixture(scope="session", autouse=True)
def gate(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    running = Gate(server, tmp_path_factory.mktemp("gate"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{running.port}")
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("SSL_CERT_FILE", str(running.authority))
        patch.setenv("DISABLE_AIOHTTP_TRANSPORT", "true")
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield running

    running.stop()
