"""What the ingress logs of a request: one line, a fault with its traceback, and never what was sent."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from fumehood.dialects.e2b.answers import fault_answer
from fumehood.log import events
from fumehood.log.formats import JsonFormatter
from fumehood.log.request_ids import RequestIdFilter, note_key
from fumehood.server.drain import Drain
from fumehood.server.ingress import Ingress
from fumehood.server.settings import ServerSettings


def ask(app: Any, kind: str = "http", slow_seconds: float = 600) -> list[Message]:
    """Sends one request through an ingress, and returns what is answered."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{kind}.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": "POST",
        "path": "/marker",
        "headers": [(b"host", b"localhost"), (b"x-request-id", b"mine")],
        "client": ("127.0.0.1", 1),
    }

    if kind == "websocket":
        del scope["method"]

    async def main() -> None:
        settings = ServerSettings(slow_request_seconds=slow_seconds)
        ingress = Ingress(app, settings, Drain(), lambda *_: None, lambda *_: False)
        await ingress(scope, receive, send)

    asyncio.run(main())
    return sent


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Gives the lines that were logged, as JSON."""
    caplog.set_level(logging.DEBUG, "fumehood")
    caplog.handler.addFilter(RequestIdFilter())
    return lambda: [json.loads(JsonFormatter().format(record)) for record in caplog.records]


def test_a_fault_has_the_line_that_its_answer_points_to(lines: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("marker")

    sent = ask(app)
    assert sent[0]["status"] == 500
    body = json.loads(sent[1]["body"])
    assert body["detail"] == "the server failed; its log says more under this request's id"
    # On a busy machine it may have been slow as well.
    failed, served = [line for line in lines() if line["event"] != "request.slow"]
    assert (failed["event"], failed["level"], failed["request_id"]) == (
        "request.failed",
        "error",
        body["request_id"],
    )
    assert "ValueError" in failed["exception"]
    assert (served["event"], served["status"], served["request_id"]) == ("request.anonymous", 500, "mine")
    assert "marker" not in json.dumps([failed["message"], served])
    assert "ValueError: marker" not in failed["exception"]


def test_a_fault_of_a_dialect_has_its_line_too(lines: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            raise KeyError("marker")
        except KeyError as error:
            await fault_answer("mine", error)(scope, receive, send)

    sent = ask(app)
    assert b"its log says more" in sent[1]["body"]
    failed, _ = [line for line in lines() if line["event"] != "request.slow"]
    assert (failed["event"], failed["request_id"]) == ("request.failed", "mine")
    assert "KeyError" in failed["exception"]


def test_a_websocket_is_one_line_and_its_answer_has_the_id(lines: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        note_key("key-1")
        await send({"type": "websocket.accept", "headers": [(b"a", b"b")]})
        await send({"type": "websocket.close"})

    sent = ask(app, "websocket")
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"mine")]
    (line,) = lines()
    assert (line["event"], line["method"], line["status"]) == ("request.served", "WEBSOCKET", 101)
    assert (line["key_id"], line["request_id"]) == ("key-1", "mine")


def test_an_answer_that_goes_on_for_long_is_not_slow(lines: Any) -> None:
    """What counts is when it begins: streams end when they end."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        note_key("key-1")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(1.5)
        await send({"type": "http.response.body", "body": b""})

    ask(app, slow_seconds=1.0)
    assert [line["event"] for line in lines()] == [events.REQUEST_SERVED.name]


def test_an_answer_that_begins_late_is_slow(lines: Any) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    ask(app, slow_seconds=0.01)
    slow, _ = lines()
    assert (slow["event"], slow["threshold_seconds"]) == ("request.slow", 0.01)
    assert slow["duration_seconds"] >= 0.05
