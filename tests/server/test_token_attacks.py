"""What the server tells of its tokens without being asked: by its time (W02), and by what it says of itself (W10)."""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2

from fumehood.errors import UnauthenticatedError
from fumehood.server.assembly import open_services
from fumehood.server.settings import ServerSettings

from .walking import status_of_upgrade

# -- W02: the comparison of tokens tells nothing


def test_w02_the_first_byte_of_a_token_tells_nothing(tmp_path: Any) -> None:
    """2,000 samples each of a token that begins right and one that begins wrong, in turns, for both kinds of tokens.

    What is compared is how well one sample foretells which of the two it was: half of the pairs either way round is
    chance. A comparison that ended at the first byte would be told apart here as well, by nothing but its time; the
    control shows that this measure sees a difference where there is one.
    """

    async def measure() -> tuple[float, float, float]:
        settings = ServerSettings(
            state_folder=str(tmp_path / "state"), pool_size=0, token="t" * 40, wrong_tokens_per_minute=0
        )

        async with open_services(settings) as services:
            key = (await services.keys.create("measured")).token
            authenticate = services.authenticator.authenticate

            async def of(token: str) -> Callable[[], Awaitable[object]]:
                async def ask() -> object:
                    with suppress(UnauthenticatedError):
                        return await authenticate(token)

                    return None

                await ask()
                return ask

            owners = await separability(await of("t" + "x" * 39), await of("y" + "x" * 39))
            head, secret = key[:16], key[16:]
            first = "A" if secret[0] != "A" else "B"
            right, wrong = head + secret[0] + "-" * (len(secret) - 1), head + first + "-" * (len(secret) - 1)
            keys = await separability(await of(right), await of(wrong))
            work = b"x" * 4096

            async def slower() -> object:
                return hashlib.sha256(work).digest()

            async def quicker() -> object:
                return hashlib.sha256(work[:64]).digest()

            return owners, keys, await separability(slower, quicker)

    owners, keys, control = asyncio.run(measure())
    assert abs(control - 0.5) > 0.3
    assert abs(owners - 0.5) < 0.2
    assert abs(keys - 0.5) < 0.2


async def separability(one: Callable[[], Awaitable[object]], other: Callable[[], Awaitable[object]]) -> float:
    """How probable it is that a call of the first takes longer than one of the second."""
    times: tuple[list[int], list[int]] = ([], [])

    for _ in range(2000):
        for ask, taken in zip((one, other), times, strict=True):
            begun = time.perf_counter_ns()
            await ask()
            taken.append(time.perf_counter_ns() - begun)

    second = sorted(times[1])
    longer = sum(bisect.bisect_left(second, taken) + bisect.bisect_right(second, taken) for taken in times[0])
    return longer / 2 / 2000**2


# -- tokens and signatures in what the server says of itself


def test_w10_no_token_is_ever_logged(start_server: Callable[..., Any]) -> None:
    """Not at debug, and not in an address, a header that odd clients use, or a WebSocket."""
    server = start_server(pool_size=0, log_level="debug", domain="boxes.test")

    with httpx2.Client(base_url=server.url, timeout=30) as client:
        made = client.post("/v1/keys", json={"name": "one"}, headers=server.headers).json()
        token = made["token"]
        own = {"Authorization": f"Bearer {token}"}
        sandbox_id = client.post("/v1/sandboxes", json={}, headers=own).json()["id"]
        place = f"/v1/sandboxes/{sandbox_id}"
        file = client.post(f"{place}/files/sign", json={"path": "a", "method": "PUT"}, headers=own).json()[
            "url"
        ]
        port = client.post(f"{place}/ports/80/sign", json={"expires_in_seconds": 60}, headers=own).json()[
            "url"
        ]
        assert client.put(file, content=b"x").status_code == 200
        assert client.get(port).status_code == 502
        e2b = client.post("/sandboxes", json={"templateID": "base"}, headers={"X-API-Key": token}).json()
        named = {"E2b-Sandbox-Id": e2b["sandboxID"], "X-Access-Token": e2b["envdAccessToken"]}
        assert client.get("/health", headers=named).status_code == 204
        asked = [
            client.get(f"/api/kernels?token={token}"),
            client.get(f"/v1/keys?token={token}"),
            client.get(f"/nothing?access_token={token}"),
            client.post(f"/run_code?token={token}", json={"code": "1"}),
            client.post(f"/run_code?token={token}", content=b"["),
            client.get("/v1/info", headers={**own, "Referer": f"{server.url}/?token={token}"}),
            client.post("/login", content=f"password={token}&_xsrf=1".encode()),
            client.get(f"/p/{token}/{sandbox_id}/80/"),
        ]
        assert all(answer.status_code < 500 for answer in asked)

        for path in (
            f"/api/kernels/x/channels?token={token}",
            f"{place}/pty?token={token}",
            f"{place}/ports/80/",
        ):
            assert status_of_upgrade(client, path, own) != 101

        secrets = [token, server.token, e2b["envdAccessToken"]]
        secrets += re.findall(r"signature=([0-9a-f]{64})", file) + re.findall(r"-([0-9a-f]{64})/", port)
        assert len(secrets) == 5
        # Neither in what it counts.
        counted = client.get("/metrics", headers=server.headers).text
        assert not [secret for secret in [*secrets, sandbox_id, str(server.state)] if secret in counted]

    server.stop()
    said = "".join(server.said)
    # Control: it has said a lot.
    assert "route=/v1/info" in said
    assert [secret for secret in secrets if secret in said] == []
