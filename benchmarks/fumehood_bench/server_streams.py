"""Ten thousand small outputs of one execution, as a stream over HTTP: all of them, in order, the first at once.

Each output is its number and the guest's monotonic clock, which is that of this process: a sandbox has no time
namespace. Ours and the library's callback take turns.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from fumehood import Sandbox
from fumehood_bench.figure import Figure, Plan
from fumehood_bench.http_client import Connection
from fumehood_bench.server_process import serving
from fumehood_bench.timing import in_turn, percentile

_TARGET_MILLISECONDS = 5.0
_OUTPUTS = 10_000
_CODE = f"""
import time
for number in range({_OUTPUTS}):
    print(number, time.monotonic())
"""


class _Outputs:
    """What arrived of one execution."""

    def __init__(self) -> None:
        self.first_milliseconds = 0.0
        self._text: list[str] = []

    def add(self, text: str) -> None:
        """A piece arrived now."""
        if not self._text:
            now = time.monotonic()
            self.first_milliseconds = (now - float(text.partition("\n")[0].split()[1])) * 1e3

        self._text.append(text)

    @property
    def faults(self) -> int:
        """How many outputs are missing, doubled or not in their place."""
        numbers = [int(line.split()[0]) for line in "".join(self._text).splitlines()]
        wrong = sum(found != wanted for wanted, found in enumerate(numbers))
        return wrong + abs(_OUTPUTS - len(numbers))


def _over_http(connection: Connection, request: bytes) -> _Outputs:
    outputs = _Outputs()
    rest = b""

    for piece in connection.pieces(request):
        *lines, rest = (rest + piece).split(b"\n")

        for line in map(json.loads, lines):
            if line["type"] == "stdout":
                outputs.add(line["text"])

            assert line["type"] not in ("error", "problem"), line

    return outputs


def _through_library(sandbox: Sandbox) -> _Outputs:
    outputs = _Outputs()
    assert sandbox.run_code(_CODE, on_stdout=outputs.add).error is None
    return outputs


def measure(plan: Plan) -> Iterator[Figure]:
    """How soon the first is there, and whether all are."""
    faults = 0

    with serving() as server, server.connect() as connection, Sandbox() as sandbox:
        place = server.place
        made = connection.ask(place.request("POST", "/v1/sandboxes", {"timeout_seconds": 3600})).json(201)
        path = f"/v1/sandboxes/{made['id']}/executions"
        request = place.request("POST", path, {"code": _CODE}, accept="application/x-ndjson")

        def ours() -> float:
            nonlocal faults
            outputs = _over_http(connection, request)
            faults += outputs.faults
            return outputs.first_milliseconds

        samples = in_turn(
            plan.repetitions(100),
            ours=ours,
            library=lambda: _through_library(sandbox).first_milliseconds,
        )

    count = len(samples["ours"])
    yield Figure(
        name="10,000 prints over HTTP: from the first to the client, p50",
        unit="ms",
        ours=percentile(samples["ours"], 50),
        samples=count,
        target=_TARGET_MILLISECONDS,
        floor=percentile(samples["library"], 50),
        floor_name="on_stdout of the library, no server",
        note=f"p99 {percentile(samples['ours'], 99):.2f} ms",
    )
    yield Figure(
        name=f"{count} times 10,000 prints over HTTP: missing or out of order",
        unit="",
        ours=float(faults),
        samples=count * _OUTPUTS,
        target=0.0,
    )
