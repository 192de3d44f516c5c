"""The pure parts: forms cut at any byte, frames, names of fields, routing, pages, signatures."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from e2b.sandbox.signature import get_signature
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers, QueryParams

from fumehood.dialects.e2b import auth as e2b_tokens
from fumehood.dialects.e2b import connect, results, sandboxes
from fumehood.dialects.e2b.auth import SandboxTokens, SignedPath
from fumehood.dialects.e2b.bodies import read_message
from fumehood.dialects.e2b.build_steps import BuildBody, read_build
from fumehood.dialects.e2b.creation import SandboxRequest
from fumehood.dialects.e2b.environment import inside, user_of
from fumehood.dialects.e2b.file_messages import WatcherRequest
from fumehood.dialects.e2b.process_messages import SendInputRequest, SendSignalRequest, StartRequest
from fumehood.dialects.e2b.traffic import PortRequest, target_of
from fumehood.dialects.e2b.transfers import file_name
from fumehood.errors import FumehoodError, InvalidArgumentError, UnauthenticatedError
from fumehood.server.json_bodies import read_fields
from fumehood.server.uploads import form_parts
from fumehood.values.charts import SuperChart, UnknownChart
from fumehood.values.limits import Limits
from fumehood.values.sandbox import Isolation, SandboxInfo

ID = "a" * 32


async def cut(data: bytes, places: list[int]):
    """The data in pieces."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})

    for start, end in zip([0, *ends], ends, strict=False):
        yield data[start:end]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b c", 'q"q', "ü/x"]), st.binary(max_size=200)),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_a_form_is_the_same_wherever_it_is_cut(files, places):
    """Names and content, whatever the network does."""
    parts = []

    for name, content in files:
        quoted = name.replace('"', "%22")
        head = f'--B\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n\r\n'
        parts.append(head.encode() + content + b"\r\n")

    body = b"".join(parts) + b"--B--\r\n"

    async def read():
        found = []

        async for part in form_parts("multipart/form-data; boundary=B", cut(body, places)):
            found.append((file_name(part.filename), b"".join([piece async for piece in part.pieces])))

        return found

    # A boundary inside a file would be the client's fault.
    if all(b"--B" not in content for _, content in files):
        assert asyncio.run(read()) == files


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=4),
    st.lists(st.integers(0, 500), max_size=6),
)
def test_frames_are_the_same_wherever_they_are_cut(messages, places):
    """And what is cut off is not taken for whole."""
    body = b"".join(connect.frame(message) for message in messages)

    async def read(data: bytes):
        return [message async for message in connect.frames(cut(data, places))]

    assert asyncio.run(read(body)) == messages

    with pytest.raises(InvalidArgumentError):
        asyncio.run(read(body + b"\0\0"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data):
    """Never another exception."""

    async def read():
        return [fields async for fields in connect.frames(cut(data, []))]

    try:
        asyncio.run(read())
        read_message(StartRequest, data)
    except FumehoodError:
        pass


def test_fields_are_read_by_either_name_and_by_type():
    """camelCase or snake_case, 64 bits as text, enumerations by name or number."""
    for name in ("watcher_id", "watcherId"):
        assert read_fields(WatcherRequest, {name: "w"}).watcher_id == "w"

    signal = read_fields(SendSignalRequest, {"process": {"pid": "18446744073709551615"}, "signal": 9})
    assert (signal.process.pid, signal.number()) == ((1 << 64) - 1, 9)
    assert read_fields(SendSignalRequest, {"signal": "SIGNAL_SIGTERM"}).number() == 15
    sent = read_fields(SendInputRequest, {"input": {"stdin": None, "pty": "_-8"}})
    assert sent.input.data() == b"\xff\xef"


@pytest.mark.parametrize(
    ("kind", "values", "place"),
    [
        (WatcherRequest, {"watcher_id": 1}, "watcher_id=1 "),
        (StartRequest, {"process": 3}, "process=3 "),
        (StartRequest, {"process": {"args": "ls"}}, "process.args='ls' "),
        (StartRequest, {"process": {"envs": {"A": 1}}}, "process.envs={'A': 1} "),
        (StartRequest, {"pty": {"size": {"cols": 1.5}}}, "pty.size.cols=1.5 "),
        (StartRequest, {"pty": {"size": {"cols": "1_0"}}}, "pty.size.cols='1_0' "),
        (StartRequest, {"stdin": 1}, "stdin=1 "),
        (SendInputRequest, {"input": {"stdin": 7}}, "input.stdin=7 "),
        (BuildBody, {"steps": {}}, "steps={} "),
        (BuildBody, {"steps": [{"args": []}, {"args": [None]}]}, r"steps\[1\].args=\[None\] "),
        (BuildBody, {"steps": [{}] * 501}, "at most 500 objects"),
        (
            SandboxRequest,
            {"network": {"rules": {"a": [{}] * 9}}},
            r"network.rules.a=.*\n\nhint: .*at most 8 objects",
        ),
        (
            SandboxRequest,
            {"network": {"rules": {str(key): [] for key in range(1001)}}},
            "at most 1000 fields",
        ),
        (SandboxRequest, {"timeout": True}, "timeout=True "),
        (SandboxRequest, {"timeout": -1}, "timeout=-1 "),
        (
            SandboxRequest,
            {"network": {"rules": {"a": [{"transform": 1}]}}},
            r"network.rules.a\[0\].transform=1 ",
        ),
    ],
)
def test_a_field_of_the_wrong_form_is_refused_with_its_place(kind, values, place):
    """The place is as the client wrote it."""
    with pytest.raises(InvalidArgumentError, match=place):
        read_fields(kind, values)


def test_a_build_adds_its_volumes_last_and_as_far_as_there_is_room():
    """What the image names itself has the first claim."""
    last = read_build(read_fields(BuildBody, {"fromImage": "debian"})).instructions[-1]
    assert (last["name"], last["flags"]) == ("VOLUME", {"optional": "true"})


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ({"host": "h"}, None),
        ({"host": "boxes.test"}, None),
        ({"host": f"49983-{ID}.other.test"}, None),
        ({"host": f"49983-{ID}.boxes.test:80"}, PortRequest(ID, 49983)),
        ({"host": f"49999-{ID}.BOXES.test"}, PortRequest(ID, 49999)),
        ({"host": "h", "e2b-sandbox-id": ID}, PortRequest(ID, 49983)),
        (
            {"host": f"49983-{ID}.boxes.test", "e2b-sandbox-id": "b", "e2b-sandbox-port": "80"},
            PortRequest("b", 80),
        ),
        ({"host": "h", "e2b-sandbox-id": "B"}, PortRequest("", 49983)),
        ({"host": "h", "e2b-sandbox-id": ID, "e2b-sandbox-port": "99999"}, PortRequest(ID, 0)),
        ({"host": "h", "e2b-sandbox-id": ID, "e2b-sandbox-port": "-1"}, PortRequest(ID, 0)),
    ],
)
def test_a_request_goes_where_it_says(headers, target):
    """By E2B's headers first, then by its host."""
    assert target_of(Headers(headers), "boxes.test") == target


def test_signatures_are_those_of_the_sdk():
    """With and without a user and an end; and none of another sandbox."""
    tokens = SandboxTokens(b"x" * 32)

    for user, seconds in ((None, None), ("root", None), ("user", 100)):
        made = get_signature("a/b ü", "read", user, tokens.access_token(ID), seconds)
        signed = SignedPath("a/b ü", "read", user or "", made["signature"], str(made["expiration"] or ""))
        signed.check_time()
        assert tokens.is_signed(ID, signed)
        assert not tokens.is_signed("b" * 32, signed)

    assert tokens.access_token(ID) != tokens.traffic_token(ID) != SandboxTokens(b"y" * 32).traffic_token(ID)


def test_paths_and_users():
    """The home for nothing and for ~, and Basic without a password."""
    assert [inside(path) for path in ("", "~", "~/x", "x", "/x", "~other")] == [
        "/home/user",
        "/home/user",
        "/home/user/x",
        "x",
        "/x",
        "~other",
    ]
    assert user_of("Basic cm9vdDo=") == "root"
    assert user_of("Bearer x") == ""

    with pytest.raises(UnauthenticatedError):
        user_of("Basic \xff")


def test_texts_lose_their_quotes_and_charts_have_elements():
    """As E2B shows them."""
    assert [results.unquoted(text) for text in ("'a'", '"b"', "'c\"", "'", "''", "d")] == [
        "a",
        "b",
        "'c\"",
        "'",
        "",
        "d",
    ]
    assert results.chart_data(SuperChart(title="t", elements=(UnknownChart(),))) == {
        "type": "superchart",
        "title": "t",
        "elements": [{"type": "unknown", "title": None, "elements": []}],
    }


def test_every_sandbox_is_on_one_page(monkeypatch):
    """Also those that were started in the same moment."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    first = SandboxInfo(
        id="0",
        template="default",
        state="running",
        started_at=moment,
        ends_at=None,
        limits=Limits(),
        isolation=Isolation(level="none"),
    )
    infos = [replace(first, id=str(n), started_at=moment + timedelta(seconds=n // 3)) for n in range(10)]

    for order in ("asc", "desc"):
        found, token = [], ""

        while True:
            query = sandboxes.read_query(QueryParams({"limit": "4", "order": order, "nextToken": token}))
            page, token = sandboxes.page_of(infos, query)
            found += [info.id for info in page]

            if not token:
                break

        assert found == [str(n) for n in (range(10) if order == "asc" else range(9, -1, -1))]


def test_a_frame_is_bounded_before_it_is_held():
    """By what its head says."""

    async def read():
        return [fields async for fields in connect.frames(cut(struct.pack(">BI", 0, 9 << 20), []))]

    with pytest.raises(FumehoodError, match="larger"):
        asyncio.run(read())

    assert json.loads(connect.frame({"a": "ü"})[5:]) == {"a": "ü"}


def test_a_path_is_hashed_once_however_many_sandboxes_live(monkeypatch):
    """Whoever has no signature may ask for any path: it must not cost the server a thousand times what it costs him."""
    hashed = 0

    class Counting:
        def __init__(self, data=b"", inner=None):
            self._inner = inner or hashlib.sha256()
            self.update(data)

        def update(self, data):
            nonlocal hashed
            hashed += len(data)
            self._inner.update(data)

        def copy(self):
            return Counting(inner=self._inner.copy())

        def __getattr__(self, name):
            return getattr(self._inner, name)

    monkeypatch.setattr(e2b_tokens, "hashlib", SimpleNamespace(sha256=Counting))
    tokens = SandboxTokens(b"s" * 32)
    signed = SignedPath("x" * 60_000, "read", "", "v1_x", "")
    assert not any(tokens.is_signed(f"{number:032}", signed) for number in range(100))
    assert hashed < 2 * 60_000
