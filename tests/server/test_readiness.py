"""When a server and a host daemon say that they are ready, and why they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from tests.waiting import until

from .ends import client_of, new_sandbox

Start = Callable[..., Any]


@pytest.mark.parametrize("by_host", [False, True], ids=["server", "host"])
def test_the_first_sandbox_after_readyz_was_ready(
    start_server: Start, start_host: Start, by_host: bool
) -> None:
    """It is taken from the pool, also where the sandboxes are those of a host daemon."""
    places = {"host_socket": start_host(pool_size=2).socket} if by_host else {"pool_size": 2}
    server = start_server(dialects="", **places)

    with client_of(server) as api:
        before = api.get("/v1/capacity").json()
        assert (before["is_warm"], before["pool_ready"]) == (True, 2)
        assert "fumehood_pool_ready 2.0" in api.get("/metrics").text
        new_sandbox(api)
        after = api.get("/v1/capacity").json()

    assert (after["pool_hits"], after["pool_misses"]) == (1, 0)


def test_a_pool_that_cannot_be_filled_says_why(start_server: Start) -> None:
    """Without a token: the status, and the reason of the last attempt; nothing is ready meanwhile."""
    # No machine has so much.
    server = start_server(dialects="", pool_size=1, memory_reserve_bytes=1 << 40, ready=False)

    with httpx2.Client(base_url=server.url, timeout=60) as api:
        told = until(lambda: (answer := api.get("/readyz").json()).get("reason") and answer, "a reason")

    assert told["status"] == "starting"
    assert "memory" in told["reason"]
