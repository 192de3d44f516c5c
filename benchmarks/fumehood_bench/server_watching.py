"""What a page that watches costs a server: its CPU time for the same tiny cells, watched and not.

Two pairs of sandboxes of one server take turns; one of each pair is followed over a WebSocket as the console does.
Only the CPU time of the server's own process counts. Other work on the machine still moves it, since it takes the
caches: the figure is the median of what short rounds that follow each other differ by.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection, Place
from fumehood_bench.server_process import ServerProcess, serving

_CELLS = 50
_ROUNDS = 40
_PAIRS = 2
_TARGET_PERCENT = 5.0
_RECEIVED_BYTES = 1 << 16
_CODES = {"a tiny cell": "6*7", "a cell that prints": "print(6*7)"}


@contextmanager
def _followed(place: Place, sandbox_id: str) -> Iterator[None]:
    """Follows a sandbox, and reads what comes without looking at it."""
    with socket.create_connection((place.host, place.port)) as connection:
        connection.sendall(
            f"GET /v1/watch HTTP/1.1\r\nhost: {place.host}:{place.port}\r\nauthorization: Bearer {place.token}\r\n"
            "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
            "sec-websocket-protocol: fumehood.watch\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        assert connection.recv(_RECEIVED_BYTES).startswith(b"HTTP/1.1 101")
        asked = json.dumps({"op": "follow", "id": 1, "what": "sandbox", "sandbox_id": sandbox_id}).encode()
        # Masked with zeros, as a client has to.
        connection.sendall(bytes([0x81, 0x80 | len(asked)]) + bytes(4) + asked)
        assert b'"here"' in connection.recv(_RECEIVED_BYTES)

        def read() -> None:
            while connection.recv(_RECEIVED_BYTES):
                continue

        reading = threading.Thread(target=read)
        reading.start()
        try:
            yield
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reading.join()


def _cpu_milliseconds(server: ServerProcess, connection: Connection, request: bytes) -> float:
    # The CPU clock of another process: clock_getcpuclockid(3).
    clock = (~server.pid << 3) | 2
    begun = time.clock_gettime(clock)

    for _ in range(_CELLS):
        assert connection.ask(request).status == 200

    return (time.clock_gettime(clock) - begun) / _CELLS * 1e3


def measure(plan: Plan) -> Iterator[Figure]:
    """How much more CPU time the server takes for a cell that is watched."""
    with serving() as server, server.connect() as connection, ExitStack() as following:
        place = server.place
        quiet, watched = (
            [
                connection.ask(place.request("POST", "/v1/sandboxes", {"timeout_seconds": 3600})).json(201)[
                    "id"
                ]
                for _ in range(_PAIRS)
            ]
            for _ in range(2)
        )

        for box in watched:
            following.enter_context(_followed(place, box))

        for name, code in _CODES.items():

            def took(box: str, code: str = code) -> float:
                request = place.request("POST", f"/v1/sandboxes/{box}/executions", {"code": code})
                return _cpu_milliseconds(server, connection, request)

            for box in quiet + watched:
                took(box)

            # In both orders: what one leaves in the caches is the other's.
            pairs = [
                (took(watched[pair]), took(quiet[pair]))
                if number % 2
                else (took(quiet[pair]), took(watched[pair]))[::-1]
                for number in range(plan.repetitions(_ROUNDS))
                for pair in range(_PAIRS)
            ]
            yield _figure(name, pairs)


def _figure(name: str, pairs: list[tuple[float, float]]) -> Figure:
    """Of the milliseconds of a watched and a quiet cell, in rounds that followed each other."""
    watched, quiet = (median(each) for each in zip(*pairs, strict=True))
    return Figure(
        name=f"{name}, watched by a page: CPU of the server more than unwatched",
        unit="%",
        ours=(median(one / other for one, other in pairs) - 1) * 100,
        samples=len(pairs) * _CELLS,
        target=_TARGET_PERCENT,
        note=f"{watched:.3f} ms for {quiet:.3f} ms a cell",
    )
