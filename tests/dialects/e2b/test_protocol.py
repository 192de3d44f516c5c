"""Connect as the SDKs would never speak it: wrong types, broken frames, sizes; none is a fault of ours."""

from __future__ import annotations

import base64
import json
import struct

import pytest


def frame(data: object, flags: int = 0) -> bytes:
    payload = data if isinstance(data, bytes) else json.dumps(data).encode()
    return struct.pack(">BI", flags, len(payload)) + payload


def frames(body: bytes) -> list[tuple[int, object]]:
    found = []

    while body:
        flags, length = struct.unpack_from(">BI", body)
        found.append((flags, json.loads(body[5 : 5 + length])))
        body = body[5 + length :]

    return found


@pytest.fixture
def call(shared, http, headers_of):
    """Calls a method; without content type by its kind."""

    def send(name: str, body: object, **others: str):
        is_stream = isinstance(body, bytes)
        kind = "application/connect+json" if is_stream else "application/json"
        headers = headers_of(shared, **{"Content-Type": kind, **others})
        content = body if is_stream else json.dumps(body).encode()
        return http.post(f"/{name}", content=content, headers=headers)

    return send


def test_a_command_in_frames(call):
    """Start, its output, its end, and the end of the stream; names may be snake_case."""
    body = frame({"process": {"cmd": "/bin/sh", "args": ["-c", "printf ab"]}, "stdin": False})
    (_, start), (_, data), (_, end), last = frames(call("process.Process/Start", body).content)

    assert list(start["event"]) == ["start"]
    assert start["event"]["start"]["pid"] > 1
    assert data == {"event": {"data": {"stdout": base64.b64encode(b"ab").decode()}}}
    assert end == {"event": {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}}
    assert last == (2, {})
    made = call("filesystem.Filesystem/CreateWatcher", {"path": "."}).json()["watcherId"]
    assert call("filesystem.Filesystem/RemoveWatcher", {"watcher_id": made}).json() == {}


def test_a_tag_stands_for_a_pid(call, eventually):
    """In the list, and as a selector."""
    body = frame({"process": {"cmd": "/bin/sleep", "args": ["0.5"]}, "tag": "mine", "stdin": False})
    assert frames(call("process.Process/Start", body, **{"Connect-Timeout-Ms": "100"}).content)[-1][1] == {
        "error": {"code": "deadline_exceeded", "message": "the time of 0.1 s that the call was given is over"}
    }
    waiting = frame({"process": {"cmd": "/bin/cat"}, "tag": "mine"})
    answer = call("process.Process/Start", waiting, **{"Connect-Timeout-Ms": "500"})
    assert "deadline_exceeded" in answer.text
    refused = call("process.Process/SendSignal", {"process": {"tag": "nobody's"}, "signal": 9})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_argument")


def test_keepalives_come_while_nothing_happens(call):
    """At the interval that was asked for."""
    body = frame({"process": {"cmd": "/bin/sleep", "args": ["1.5"]}})
    events = frames(call("process.Process/Start", body, **{"Keepalive-Ping-Interval": "1"}).content)
    assert [next(iter(item["event"])) for _, item in events[:-1]] == ["start", "keepalive", "end"]


def test_a_watch_ends_with_its_time(call):
    """And says so."""
    body = frame({"path": "."})
    events = frames(call("filesystem.Filesystem/WatchDir", body, **{"Connect-Timeout-Ms": "200"}).content)
    assert events[0] == (0, {"start": {}})
    assert events[-1][1]["error"]["code"] == "deadline_exceeded"


@pytest.mark.parametrize(
    ("name", "body", "status", "code"),
    [
        ("process.Process/Nothing", {}, 501, "unimplemented"),
        ("process.Process/Start", {}, 501, "unimplemented"),
        (
            "process.Process/SendSignal",
            {"process": {"pid": 99999}, "signal": "SIGNAL_SIGKILL"},
            404,
            "not_found",
        ),
        (
            "process.Process/SendSignal",
            {"process": {"pid": 2}, "signal": "SIGNAL_SIGSTOP"},
            400,
            "invalid_argument",
        ),
        ("process.Process/SendSignal", {"process": {"pid": 1}, "signal": 9}, 404, "not_found"),
        ("process.Process/SendInput", {"process": {"pid": 1}, "input": {"stdin": "%"}}, 404, "not_found"),
        ("process.Process/SendInput", {"process": {"pid": "x"}}, 400, "invalid_argument"),
        ("process.Process/SendInput", {"process": 3}, 400, "invalid_argument"),
        ("process.Process/Update", {"process": {"pid": 2}}, 400, "invalid_argument"),
        ("filesystem.Filesystem/Stat", {"path": "/nowhere"}, 404, "not_found"),
        ("filesystem.Filesystem/Stat", {"path": 7}, 400, "invalid_argument"),
        ("filesystem.Filesystem/Stat", {"path": "a\0b"}, 400, "invalid_argument"),
        ("filesystem.Filesystem/MakeDir", {"path": "/tmp"}, 409, "already_exists"),
        ("filesystem.Filesystem/MakeDir", {"path": "/usr/made"}, 403, "permission_denied"),
        ("filesystem.Filesystem/ListDir", {"path": "/tmp", "depth": 10_000}, 400, "invalid_argument"),
        ("filesystem.Filesystem/GetWatcherEvents", {"watcherId": "nobody's"}, 404, "not_found"),
    ],
)
def test_calls_without_sense_have_codes(call, name, body, status, code):
    """Those of Connect, with the status that goes with each."""
    answer = call(name, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("process.Process/Start", b"", "invalid_argument"),
        ("process.Process/Start", b"\0\0", "invalid_argument"),
        ("process.Process/Start", frame(b"{"), "invalid_argument"),
        ("process.Process/Start", frame({}, flags=1), "invalid_argument"),
        ("process.Process/Start", frame({}), "invalid_argument"),
        ("process.Process/Start", frame({"process": {"cmd": "/no/such/program"}}), "invalid_argument"),
        (
            "process.Process/Start",
            frame({"process": {"cmd": "true", "envs": {"A=B": ""}}}),
            "invalid_argument",
        ),
        (
            "process.Process/Start",
            frame({"process": {"cmd": "sh"}, "pty": {"size": {"cols": 0}}}),
            "invalid_argument",
        ),
        ("process.Process/Start", struct.pack(">BI", 0, 1 << 31), "resource_exhausted"),
        ("process.Process/Connect", frame({"process": {"pid": 99999}}), "not_found"),
        ("process.Process/StreamInput", frame({"data": {"input": {"stdin": ""}}}), "invalid_argument"),
        ("filesystem.Filesystem/WatchDir", frame({"path": "/nowhere"}), "not_found"),
    ],
)
def test_streams_without_sense_end_with_a_code(call, name, body, code):
    """In their last frame."""
    answer = call(name, body)
    ((flags, last),) = frames(answer.content)
    assert (answer.status_code, flags, last["error"]["code"]) == (200, 2, code)


def test_other_codecs_verbs_and_headers_are_refused(call, shared, http, headers_of):
    """415, 405 and 400."""
    assert call("process.Process/List", {}, **{"Content-Type": "application/proto"}).status_code == 415
    assert (
        call("process.Process/List", {}, **{"Content-Type": "application/connect+proto"}).status_code == 415
    )
    assert http.get("/process.Process/List", headers=headers_of(shared)).status_code == 405
    assert call("process.Process/List", {}, **{"Connect-Timeout-Ms": "soon"}).status_code == 400
    assert call("process.Process/List", [1]).status_code == 400
    assert call("process.Process/List", {}, Authorization="Basic !").status_code == 401

    for name, value in (
        ("E2b-Sandbox-Id", "../../x"),
        ("E2b-Sandbox-Id", ""),
        ("E2b-Sandbox-Port", "0"),
        ("E2b-Sandbox-Port", "70000"),
        ("E2b-Sandbox-Port", "http"),
    ):
        answer = http.get("/health", headers={**headers_of(shared), name: value})
        assert (answer.status_code, answer.json()["code"]) == (400, 400)


def test_watchers_have_a_bound(sandbox, http, headers_of):
    """One sandbox does not fill the server."""
    headers = headers_of(sandbox, **{"Content-Type": "application/json"})
    statuses = [
        http.post("/filesystem.Filesystem/CreateWatcher", json={"path": "/tmp"}, headers=headers).status_code
        for _ in range(17)
    ]
    # The kernel may allow fewer.
    assert (statuses[0], statuses[-1]) == (200, 400)
