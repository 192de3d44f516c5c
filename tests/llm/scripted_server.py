"""A model that follows a script, behind a real socket: Chat Completions and Responses of OpenAI, Messages of Anthropic.

The unmodified SDKs talk to it over HTTP with server-sent events. Each reply of a script may look at the request that it
answers; what it finds wrong is raised when the server is closed, and so is a reply that nobody has asked for.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Dialect = Literal["openai-chat", "openai", "anthropic"]
DIALECTS: tuple[Dialect, ...] = ("openai-chat", "openai", "anthropic")

_PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai": "/v1/responses",
    "anthropic": "/v1/messages",
}


@dataclass(frozen=True)
class Call:
    """A call of the tool: code, or arguments as they are, which need not be JSON."""

    code: str = ""
    arguments: str | None = None
    tool: str = "run_code"

    @property
    def text(self) -> str:
        return json.dumps({"code": self.code}) if self.arguments is None else self.arguments


@dataclass(frozen=True)
class Request:
    """What came in, in words that are the same for each dialect.

    `outputs` are the texts of the tool's answers so far, `pictures` how many images came, `said` the texts of all
    messages in order as (role, text).
    """

    dialect: Dialect
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def system(self) -> str:
        if self.dialect == "openai-chat":
            return "".join(m["content"] for m in self.body["messages"] if m["role"] == "system")

        return self.body.get("instructions" if self.dialect == "openai" else "system", "")

    @property
    def tools(self) -> list[str]:
        tools = self.body.get("tools", [])
        return [tool["function"]["name"] if self.dialect == "openai-chat" else tool["name"] for tool in tools]

    @property
    def items(self) -> list[dict[str, Any]]:
        return self.body["input" if self.dialect == "openai" else "messages"]

    @property
    def outputs(self) -> list[str]:
        return [_text(output) for output in self._outputs()]

    @property
    def pictures(self) -> int:
        return sum(
            1 for part in _walk(self.items) if part.get("type") in ("image_url", "input_image", "image")
        )

    @property
    def said(self) -> list[tuple[str, str]]:
        return [
            (item["role"], _text(item["content"]))
            for item in self.items
            if item.get("role") in ("user", "assistant") and _text(item["content"])
        ]

    @property
    def last_user(self) -> str:
        return next(text for role, text in reversed(self.said) if role == "user")

    def assert_calls_are_answered(self) -> None:
        """Each call of the model has exactly one output, and no output is without a call."""
        calls = [call for call, _ in self._calls()]
        answered = [identity for identity, _ in self._answers()]
        assert sorted(calls) == sorted(answered), (calls, answered)

    def _outputs(self) -> list[Any]:
        return [content for _, content in self._answers()]

    def _calls(self) -> list[tuple[str, str]]:
        if self.dialect == "openai-chat":
            return [
                (call["id"], call["function"]["arguments"])
                for message in self.items
                for call in message.get("tool_calls") or ()
            ]

        if self.dialect == "openai":
            return [(i["call_id"], i["arguments"]) for i in self.items if i.get("type") == "function_call"]

        return [
            (part["id"], json.dumps(part["input"]))
            for part in _walk(self.items)
            if part.get("type") == "tool_use"
        ]

    def _answers(self) -> list[tuple[str, Any]]:
        if self.dialect == "openai-chat":
            return [(m["tool_call_id"], m["content"]) for m in self.items if m["role"] == "tool"]

        if self.dialect == "openai":
            return [
                (i["call_id"], i["output"]) for i in self.items if i.get("type") == "function_call_output"
            ]

        return [
            (part["tool_use_id"], part["content"])
            for part in _walk(self.items)
            if part.get("type") == "tool_result"
        ]


@dataclass
class Reply:
    """One answer of the script.

    Attributes:
        text: What the model says.
        calls: What it calls.
        check: Looks at the request; raises what is wrong.
        end: How the message ends.
        tokens: Read and written.
        cut: quiet: the stream ends before the message does; hard: the connection breaks in the middle.
        hold: After its pieces it waits until the client leaves.
        status: Another status than 200 is an error with `error` as its kind and `text` as its message.
        loose: Calls come as some servers of Chat Completions send them: each whole, all with the same number.
        headers: Added to the answer.
        error: The kind of an error; with status 200 one in the middle of the stream.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    check: Callable[[Request], object] | None = None
    end: Literal["end", "length", "refused"] = "end"
    tokens: tuple[int, int] = (10, 5)
    cut: Literal["", "quiet", "hard"] = ""
    hold: bool = False
    status: int = 200
    loose: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class ScriptedServer:
    """Serves one dialect on a free port of loopback until the block ends.

    Attributes:
        requests: What came in so far.
        holding: Set when a reply waits for the client to leave.
        left: Set when it has.
    """

    def __init__(self, dialect: Dialect, *replies: Reply, model: str = "scripted") -> None:
        self.dialect = dialect
        self.model = model
        self.requests: list[Request] = []
        self.holding = threading.Event()
        self.left = threading.Event()
        self._replies = list(replies)
        self._failures: list[BaseException] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def base_url(self) -> str:
        """The address as the SDK of the dialect wants it."""
        root = f"http://127.0.0.1:{self._server.server_address[1]}"
        return root if self.dialect == "anthropic" else f"{root}/v1"

    @property
    def arguments(self) -> dict[str, str]:
        """What an agent is given to reach it."""
        return {"model": f"{self.dialect}:{self.model}", "base_url": self.base_url, "api_key": "scripted-key"}

    def add(self, *replies: Reply) -> None:
        """Let the script go on."""
        self._replies += replies

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

        if self._failures:
            raise self._failures[0]

        if kind is None:
            assert not self._replies, f"nobody has asked for {self._replies}"

    def reply_to(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> Reply:
        """Take a request and give the next reply."""
        request = Request(self.dialect, body, headers)
        self.requests.append(request)

        try:
            assert path == _PATHS[self.dialect], path
            assert "scripted-key" in (headers.get("authorization") or headers.get("x-api-key") or "")
            assert body["model"] == self.model, body["model"]
            assert body["stream"] is True
            assert self._replies, "the script is over"
            request.assert_calls_are_answered()
            reply = self._replies.pop(0)

            if reply.check is not None:
                reply.check(request)
        except BaseException as failure:
            self._failures.append(failure)
            return Reply(status=400, text=f"the script objects: {failure!r}", error="invalid_request_error")

        return reply


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = server.reply_to(self.path, {k.lower(): v for k, v in self.headers.items()}, body)

            if reply.status != 200:
                return self._refuse(reply)

            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")

            for name, value in reply.headers.items():
                self.send_header(name, value)

            self.end_headers()

            try:
                self._stream(reply)
            except (BrokenPipeError, ConnectionResetError):
                server.left.set()
                self.close_connection = True

        def _stream(self, reply: Reply) -> None:
            *pieces, last = _WIRES[server.dialect](reply)

            for piece in pieces:
                self._chunk(piece)

            if reply.hold:
                self.wfile.flush()
                server.holding.set()
                # Nothing more comes from the client but its end.
                assert self.connection.recv(1) == b""
                server.left.set()
                self.close_connection = True
                return

            if reply.cut == "hard":
                # A chunk that is announced and never comes.
                self.wfile.write(b"400\r\ndata: {")
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return

            if not reply.cut:
                self._chunk(last)

            self.wfile.write(b"0\r\n\r\n")

        def _chunk(self, text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def _refuse(self, reply: Reply) -> None:
            error = {"type": reply.error, "message": reply.text}

            if server.dialect != "anthropic":
                error |= {"code": reply.error, "param": ""}

            data = json.dumps({"type": "error", "error": error}).encode()
            self.send_response(reply.status)

            for name, value in {"content-type": "application/json", "content-length": len(data)}.items():
                self.send_header(name, str(value))

            for name, value in reply.headers.items():
                self.send_header(name, value)

            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _pieces(text: str, size: int = 7) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _data(value: object, event: str = "") -> str:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value)}\n\n"


def _chat(reply: Reply) -> Iterator[str]:
    def chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **more: Any) -> str:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        return _data({**head, "choices": choices, **more})

    yield chunk({"role": "assistant", "content": ""})

    for piece in _pieces(reply.text):
        yield chunk({"refusal" if reply.end == "refused" else "content": piece})

    for number, call in enumerate(reply.calls):
        index = 0 if reply.loose else number
        head = {"index": index, "id": f"call_{_number()}", "type": "function"}

        if reply.loose:
            yield chunk({"tool_calls": [{**head, "function": {"name": call.tool, "arguments": call.text}}]})
            continue

        yield chunk({"tool_calls": [{**head, "function": {"name": call.tool, "arguments": ""}}]})

        for piece in _pieces(call.text):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})

    if reply.error:
        yield _data({"error": {"message": "in the middle", "type": reply.error, "code": reply.error}})

    finish = "tool_calls" if reply.calls else "stop"
    read, written = reply.tokens
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    end = chunk({}, "length" if reply.end == "length" else finish)
    yield (
        end + chunk(None, usage={**usage, "prompt_tokens_details": {"cached_tokens": 4}}) + "data: [DONE]\n\n"
    )


def _responses(reply: Reply) -> Iterator[str]:
    sequence = iter(range(10_000))

    def event(kind: str, **fields: Any) -> str:
        return _data({"type": kind, "sequence_number": next(sequence), **fields}, kind)

    items: list[dict[str, Any]] = []
    yield event("response.created", response=_response(items, "in_progress"))

    if reply.text:
        kind = "refusal" if reply.end == "refused" else "output_text"
        part = (
            {"type": "refusal", "refusal": ""}
            if kind == "refusal"
            else {"type": kind, "text": "", "annotations": []}
        )
        head = {
            "id": f"msg_{_number()}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        place = {"item_id": head["id"], "output_index": 0, "content_index": 0}
        yield event("response.output_item.added", output_index=0, item=head)
        yield event("response.content_part.added", part=part, **place)

        for piece in _pieces(reply.text):
            more = {} if kind == "refusal" else {"logprobs": []}
            yield event(f"response.{kind}.delta", delta=piece, **more, **place)

        whole = {**part, "refusal" if kind == "refusal" else "text": reply.text}
        items.append({**head, "status": "completed", "content": [whole]})
        yield event("response.output_item.done", output_index=0, item=items[-1])

    for call in reply.calls:
        index = len(items)
        number = _number()
        head = {
            "id": f"fc_{number}",
            "type": "function_call",
            "call_id": f"call_{number}",
            "name": call.tool,
            "arguments": "",
            "status": "in_progress",
        }
        yield event("response.output_item.added", output_index=index, item=head)

        for piece in _pieces(call.text):
            yield event(
                "response.function_call_arguments.delta", delta=piece, item_id=head["id"], output_index=index
            )

        items.append({**head, "arguments": call.text, "status": "completed"})
        yield event("response.output_item.done", output_index=index, item=items[-1])

    if reply.error:
        yield event("error", code=reply.error, message="in the middle", param=None)

    read, written = reply.tokens
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + written,
    }

    if reply.end == "length":
        details = {"reason": "max_output_tokens"}
        yield event(
            "response.incomplete",
            response=_response(items, "incomplete") | {"usage": usage, "incomplete_details": details},
        )
    else:
        yield event("response.completed", response=_response(items, "completed") | {"usage": usage})


def _response(items: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "scripted",
        "status": status,
        "output": list(items),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _anthropic(reply: Reply) -> Iterator[str]:
    read, written = reply.tokens
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        # What came from the cache is counted apart here.
        "usage": {"input_tokens": read - 4, "output_tokens": 1, "cache_read_input_tokens": 4},
    }
    yield _data({"type": "message_start", "message": message}, "message_start")
    yield _data({"type": "ping"}, "ping")
    index = 0

    if reply.text:
        yield from _block(index, {"type": "text", "text": ""}, "text_delta", "text", _pieces(reply.text))
        index += 1

    for call in reply.calls:
        head = {"type": "tool_use", "id": f"toolu_{_number()}", "name": call.tool, "input": {}}
        yield from _block(index, head, "input_json_delta", "partial_json", ["", *_pieces(call.text)])
        index += 1

    if reply.error:
        error = {"type": reply.error, "message": "in the middle"}
        yield _data({"type": "error", "error": error}, "error")

    reasons = {"length": "max_tokens", "refused": "refusal", "end": "tool_use" if reply.calls else "end_turn"}
    delta = {"stop_reason": reasons[reply.end], "stop_sequence": None}
    yield (
        _data({"type": "message_delta", "delta": delta, "usage": {"output_tokens": written}}, "message_delta")
        + _data({"type": "message_stop"}, "message_stop")
    )


def _block(index: int, head: dict[str, Any], kind: str, name: str, pieces: list[str]) -> Iterator[str]:
    yield _data({"type": "content_block_start", "index": index, "content_block": head}, "content_block_start")

    for piece in pieces:
        delta = {"type": kind, name: piece}
        yield _data({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")

    yield _data({"type": "content_block_stop", "index": index}, "content_block_stop")


_WIRES = {"openai-chat": _chat, "openai": _responses, "anthropic": _anthropic}

_last_number = 0


def _number() -> int:
    global _last_number
    _last_number += 1
    return _last_number


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content

    return "".join(
        part.get("text", "") for part in content if part.get("type") in ("text", "input_text", "output_text")
    )


def _walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value

    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(inner)
