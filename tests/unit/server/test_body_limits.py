"""Bodies of callers that are not known: bounded in size, in number and in rate, by address."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope

from fumehood.server import body_limits
from fumehood.server.admission import admit_caller
from fumehood.server.body_limits import (
    BodyTooLargeError,
    Incoming,
    IngressRefusalError,
    UnknownBodies,
    is_departure,
)

PIECE = 300_000


def scope_of(address: str = "192.0.2.1", length: int = 10 * PIECE) -> Scope:
    headers = [(b"content-length", str(length).encode())]
    return {"type": "http", "client": (address, 1), "headers": headers}


async def pieces() -> Message:
    return {"type": "http.request", "body": b"x" * PIECE, "more_body": True}


def test_a_body_is_small_until_its_caller_is_known() -> None:
    """The same bytes pass when the caller is known, also by what a task of the request finds out."""

    async def read(is_known: bool) -> int:
        with Incoming(scope_of(), pieces, 10 * PIECE, UnknownBodies()) as body:
            await body()

            if is_known:
                await asyncio.create_task(asyncio.to_thread(admit_caller))

            for _ in range(9):
                await body()

            return 10

    with pytest.raises(BodyTooLargeError):
        asyncio.run(read(False))

    assert asyncio.run(read(True)) == 10


def test_addresses_of_one_ipv6_network_are_counted_together() -> None:
    """A customer has 2 to the power of 64 of them."""
    bodies = UnknownBodies()

    async def begin(address: str) -> None:
        with Incoming(scope_of(address), pieces, PIECE, bodies) as body:
            await body()
            await asyncio.Event().wait()

    async def at_once() -> None:
        addresses = [f"2001:db8::{number:x}" for number in range(body_limits.MAX_UNKNOWN_BODIES_OF_ADDRESS)]
        begun = [asyncio.create_task(begin(address)) for address in addresses]
        await asyncio.sleep(0)

        with pytest.raises(IngressRefusalError, match="from this address"):
            await asyncio.wait_for(begin("2001:db8::ffff"), 5)

        with Incoming(scope_of("2001:db8:0:1::1"), pieces, PIECE, bodies) as body:
            await body()

        for task in begun:
            task.cancel()

    asyncio.run(at_once())


def test_an_address_has_few_at_once() -> None:
    """One address cannot take the places of another, and gives its own back."""
    bodies = UnknownBodies()

    for _ in range(body_limits.MAX_UNKNOWN_BODIES_OF_ADDRESS):
        bodies.begin("192.0.2.1")

    with pytest.raises(IngressRefusalError) as refused:
        bodies.begin("192.0.2.1")

    assert (refused.value.status_code, refused.value.headers) == (
        429,
        {"Connection": "close", "Retry-After": "1"},
    )
    bodies.begin("192.0.2.2")
    bodies.end("192.0.2.1")
    bodies.begin("192.0.2.1")


def test_an_address_begins_few_in_a_second() -> None:
    """However soon each of them ends."""
    bodies = UnknownBodies()
    refused = 0

    for _ in range(10 * body_limits.UNKNOWN_BODIES_BURST):
        try:
            bodies.begin("192.0.2.1")
        except IngressRefusalError:
            refused += 1
        else:
            bodies.end("192.0.2.1")

    assert refused > 8 * body_limits.UNKNOWN_BODIES_BURST


def test_a_body_of_a_stranger_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused when it does not come, and its place is free again."""
    monkeypatch.setattr(body_limits, "UNKNOWN_BODY_SECONDS", 0.05)
    bodies = UnknownBodies()

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def read() -> None:
        with Incoming(scope_of(), never, PIECE, bodies) as body:
            await body()

    with pytest.raises(IngressRefusalError) as refused:
        asyncio.run(read())

    assert refused.value.status_code == 408
    assert not bodies._at_once


def test_what_has_no_body_is_not_counted() -> None:
    """Who waits for the client's end, or asks with GET, holds no place."""
    bodies = UnknownBodies()

    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def read() -> None:
        with Incoming(scope_of(length=0), gone, PIECE, bodies) as body:
            await body()
            assert not bodies._at_once

    asyncio.run(read())


def test_a_departure_is_nothing_else() -> None:
    """A group of errors is one only when all of it is."""
    assert is_departure(ClientDisconnect())
    assert is_departure(BaseExceptionGroup("", [ClientDisconnect(), ClientDisconnect()]))
    assert not is_departure(ExceptionGroup("", [ClientDisconnect(), ValueError()]))
    assert not is_departure(ValueError())
