"""Callers of a cluster that ask again and again, and count what they are told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.waiting import until

from .machines import Server

_PAUSE_SECONDS = 0.05


def new_sandbox(api: httpx2.Client, **given: Any) -> str:
    """Make a sandbox and return its id."""
    answer = api.post("/v1/sandboxes", json=given)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run(api: httpx2.Client, sandbox_id: str, code: str) -> dict[str, Any]:
    """Run code to its end and return the execution."""
    answer = api.post(f"/v1/sandboxes/{sandbox_id}/executions", json={"code": code})
    assert answer.status_code == 200, answer.text
    execution: dict[str, Any] = answer.json()
    assert execution["error"] is None, execution["error"]
    return execution


@dataclass
class Told:
    """What the caller of one sandbox was told.

    Attributes:
        calls: How many calls it made.
        errors: How often each error came, by its code and whether the outcome was unknown.
        first_error_at: When the first came, in seconds since the load began.
        last_error_at: When the last came.
        slowest_seconds: How long the slowest call took.
        well_since: How many calls have gone well since the last error.
    """

    calls: int = 0
    errors: Counter[tuple[str, bool]] = field(default_factory=Counter)
    first_error_at: float | None = None
    last_error_at: float | None = None
    slowest_seconds: float = 0.0
    well_since: int = 0

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{code}{' (unknown)' if unknown else ''} {count}"
            for (code, unknown), count in self.errors.items()
        )
        return f"{self.calls} calls, errors: {kinds or 'none'}, slowest {self.slowest_seconds:.1f} s"


class Load:
    """One caller for each sandbox, in a thread.

    Args:
        server: Whom they ask.
        sandboxes: Their ids.
    """

    def __init__(self, server: Server, sandboxes: list[str]) -> None:
        self.told = {name: Told() for name in sandboxes}
        self.began = time.monotonic()
        self._server = server
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(name,), daemon=True) for name in sandboxes]

        for thread in self._threads:
            thread.start()

    def run_for(self, seconds: float) -> None:
        """Waits until each caller has asked for so long, and once at least."""
        until(
            lambda: time.monotonic() - self.began >= seconds and all(one.calls for one in self.told.values())
        )

    def until_well_again(self, name: str, seconds: float, *, errors: int = 1) -> None:
        """Waits until a caller has had an error, and after that five good answers."""
        told = self.told[name]
        until(
            lambda: sum(told.errors.values()) >= errors and told.well_since >= 5,
            "it is well again",
            seconds=seconds,
        )

    def until_error(self, name: str, code: str, seconds: float) -> None:
        """Waits until a caller has been told this error."""
        told = self.told[name]
        until(
            lambda: any(kind == code for kind, _ in list(told.errors)), f"it is told {code}", seconds=seconds
        )

    def end(self) -> dict[str, Told]:
        """Ends the callers, and returns what they were told."""
        self._ended.set()

        for thread in self._threads:
            thread.join(120)

        return self.told

    def _ask(self, name: str) -> None:
        told = self.told[name]

        with httpx2.Client(base_url=self._server.url, headers=self._server.headers, timeout=120) as api:
            while not self._ended.is_set():
                began = time.monotonic()
                error = self._once(api, name)
                now = time.monotonic()
                told.slowest_seconds = max(told.slowest_seconds, now - began)

                if error is None:
                    told.well_since += 1
                else:
                    told.well_since = 0
                    told.errors[error] += 1
                    told.first_error_at = told.first_error_at or now - self.began
                    told.last_error_at = now - self.began

                told.calls += 1
                self._ended.wait(_PAUSE_SECONDS)

    def _once(self, api: httpx2.Client, name: str) -> tuple[str, bool] | None:
        try:
            answer = api.post(
                f"/v1/sandboxes/{name}/executions", json={"code": "n = globals().get('n', 0) + 1"}
            )
        except httpx2.HTTPError as error:
            return type(error).__name__, True

        if answer.status_code == 200:
            return None

        body = answer.json()
        return str(body["code"]), bool(body["outcome_unknown"])
