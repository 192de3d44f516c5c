"""What Ray adds to a call, and how many empty runs a server routes: real Ray, adapter and server code, and no sandbox.

    .venv-cluster/bin/python -m benchmarks.cluster_routing

A stand-in for the host daemon answers at once on a unix socket, so that nothing but the way there and back is measured.
Calls take turns: through Ray and its adapter, and straight to the socket. Ray starts here, for this process alone.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fumehood.client.backend import HttpBackend, connect_to_host
from fumehood.client.connection import ServerAddress
from fumehood.cluster.adapter import HostAdapter
from fumehood.cluster.grouping import Grouping
from fumehood.cluster.machine import Machine
from fumehood.cluster.ray_settings import environment, loopback_environment
from fumehood.cluster.transport import AdapterCarrier
from fumehood.values.execution import Execution
from fumehood.values.plain_data import as_data
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.sandbox import Isolation
from fumehood.values.stateless import StatelessReply, StatelessRequest

_CALLS = 1000
_RUNS = 40_000
_AT_ONCE = 512
_REPLY = as_data(
    StatelessReply(execution=Execution(id="e", context_id="c"), isolation=Isolation(level="namespaces"))
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_RUN = StatelessRequest(spec=SandboxSpec(), code=ExecuteRequest(code="pass"))


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers requests of one connection as the host daemon does, with empty replies."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            return writer.close()

        length = next(
            int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        )
        body = json.loads(await reader.readexactly(length))
        lines = [json.dumps({"index": place, "reply": _REPLY}) for place in range(len(body.get("runs", ())))]
        answer = "\n".join([*lines, ""]).encode() if lines else json.dumps(_REPLY).encode()
        writer.write(_HEAD % len(answer) + answer)
        await writer.drain()


def _stand_in(socket_path: str) -> None:
    """Serves until its process is ended."""

    async def serve() -> None:
        server = await asyncio.start_unix_server(_answer, socket_path)
        await server.serve_forever()

    asyncio.run(serve())


async def _milliseconds(call: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await call()
    return (time.perf_counter() - begun) * 1e3


async def _added(through: HttpBackend, straight: HttpBackend) -> None:
    ours: list[float] = []
    direct: list[float] = []

    for _ in range(_CALLS):
        ours.append(await _milliseconds(lambda: through.run_once(_RUN)))
        direct.append(await _milliseconds(lambda: straight.run_once(_RUN)))

    for name, times in (("through Ray", ours), ("straight", direct)):
        print(f"{name:12} p50 {median(times):.2f} ms, p99 {quantiles(times, n=100)[98]:.2f} ms")

    print(f"added by Ray p50 {median(ours) - median(direct):.2f} ms")


async def _routed(grouping: Grouping) -> None:
    left = iter(range(_RUNS))

    async def caller() -> None:
        for _ in left:
            await grouping.run(_RUN)

    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(_AT_ONCE)))
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(
        f"empty runs   {_RUNS / seconds:,.0f}/s by one server process, {_RUNS / grouping.calls:.0f} in a call; "
        f"{cpu / _RUNS * 1e6:.0f} us of its CPU each"
    )


async def _measure(adapter: Any, socket_path: str) -> None:
    loop = asyncio.get_running_loop()
    machine = Machine("bench", loop)
    machine.adapter = adapter
    machine.note_answer()
    while not Path(socket_path).exists():
        await asyncio.sleep(0.05)

    through = HttpBackend(ServerAddress(url="http://host", is_host=True), loop, AdapterCarrier(machine))
    straight = connect_to_host(socket_path)

    await _added(through, straight)
    await _routed(Grouping(through, loop))
    await through.aclose()
    await straight.aclose()


def main() -> None:
    """Starts Ray, measures, and prints."""
    os.environ.update({**environment(""), **loopback_environment()})
    # Ray starts for this process alone, and makes no token.
    del os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"]
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "host.sock")
            daemon = multiprocessing.get_context("spawn").Process(target=_stand_in, args=(path,), daemon=True)
            daemon.start()
            adapter = ray.remote(HostAdapter).options(num_cpus=0, max_concurrency=1000).remote(path)
            asyncio.run(_measure(adapter, path))
            daemon.terminate()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
