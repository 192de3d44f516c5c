"""Real messages of every type and form: the corpus of the wire's tests, one test call each.

A test that asks for `sample` runs once for each; one that asks for `samples` gets them all.
"""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

import pytest

from fumehood_wire import init_messages, messages

EXECUTION = "f81d4fae7dec11d0-1"
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
FILE = {
    "name": "täble\udcff.csv",
    "path": "/home/user/täble\udcff.csv",
    "type": "file",
    "size_bytes": 10**18,
    "mode": 0o644,
    "permissions": "-rw-r--r--",
    "owner": "user",
    "group": "user",
    "modified_at": -1.5,
    "symlink_target": "../elsewhere",
    "resolved_target": "/elsewhere",
    "metadata": {"author": "user"},
}


class Sample(NamedTuple):
    """One message as it travels."""

    name: str
    table: messages.Table
    header: dict[str, Any]
    payload: bytes = b""

    def copy(self) -> Sample:
        """Return the same message with a header that may be changed."""
        return self._replace(header=copy.deepcopy(self.header))


def _display(kind: str, **fields: object) -> dict[str, Any]:
    parts = [["text/plain", 2], ["image/png", len(PNG)], ["application/vnd.plotly.v1+json", 2]]
    return {
        "type": kind,
        "id": EXECUTION,
        "at": 12.5,
        "parts": parts,
        "metadata": {"image/png": {"w": 1}},
        **fields,
    }


BOUNDS = {"stdout_bytes": 1 << 20, "stderr_bytes": 1 << 20, "result_bytes": 10 << 20, "result_count": 100}
COMM_CONTENT = b'{"data":{"method":"update","state":{"value":3}},"metadata":{}}'


def _comms(table: messages.Table, side: str, **fields: object) -> list[Sample]:
    header = {"id": EXECUTION, "comm_id": "c0ffee", "buffers": [2, 0, 3], **fields}
    opening = {"type": "comm_open", "target_name": "jupyter.widget", **header}
    return [
        Sample(f"comm_open-{side}", table, opening, COMM_CONTENT + b"\0\1xyz"),
        Sample(f"comm_msg-{side}", table, {"type": "comm_msg", **header}, COMM_CONTENT + b"\0\1xyz"),
        Sample(f"comm_close-{side}", table, {"type": "comm_close", **header}, COMM_CONTENT + b"\0\1xyz"),
    ]


def _from_host() -> list[Sample]:
    request = {
        "type": "execute_request",
        "id": EXECUTION,
        **BOUNDS,
        "allow_stdin": True,
        "silent": False,
        "store_history": True,
        "envs": {"LANG": "C.UTF-8", "EMPTY": ""},
    }
    tool = {
        "name": "search",
        "description": "Looks for words.",
        "required": ["query"],
        "optional": ["limit"],
        "awaited": True,
    }
    table = messages.HOST_TO_CONTEXT
    return [
        Sample("execute_request", table, request, "print('é')".encode()),
        Sample(
            "execute_request-tools",
            table,
            {**request, "tools": [tool], "tool_calls": 100},
            b"search(query='x')",
        ),
        Sample("tool_reply", table, {"type": "tool_reply", "id": EXECUTION, "call": 1, "ok": True}, b"[1,2]"),
        Sample("input_reply", table, {"type": "input_reply", "id": EXECUTION}, b"42"),
        Sample("input_reply-eof", table, {"type": "input_reply", "id": EXECUTION, "eof": True}),
        Sample("shutdown_request", table, {"type": "shutdown_request"}),
        Sample(
            "complete_request", table, {"type": "complete_request", "id": EXECUTION, "cursor_pos": 2}, b"pri"
        ),
        Sample(
            "inspect_request",
            table,
            {"type": "inspect_request", "id": EXECUTION, "cursor_pos": 2, "detail_level": 1},
            b"print",
        ),
        Sample("is_complete_request", table, {"type": "is_complete_request", "id": EXECUTION}, b"if x:"),
        Sample(
            "variables_request",
            table,
            {"type": "variables_request", "id": EXECUTION, "marks": True},
            b"frame",
        ),
        *_comms(table, "host", **BOUNDS),
        Sample("checkpoint_request", table, {"type": "checkpoint_request", "id": EXECUTION}),
        Sample("proceed", table, {"type": "proceed", "id": EXECUTION}),
    ]


def _from_context() -> list[Sample]:
    stream = {"type": "stream", "id": EXECUTION, "name": "stdout", "at": 1234.56789}
    bundle = b"42" + PNG + b"{}"
    error = {
        "type": "error",
        "id": EXECUTION,
        "at": 1.0,
        "ename": "ValueError",
        "evalue": 'bad \udc80 {[,"\\',
    }
    reply = {
        "type": "execute_reply",
        "id": EXECUTION,
        "at": 99.0,
        "status": "ok",
        "execution_count": 3,
        "user_cpu_seconds": 0.25,
        "system_cpu_seconds": 0,
        "peak_memory_bytes": 80 << 20,
        "dropped": {"stdout": 0, "stderr": 0, "results": 0},
    }
    truncated = [["text/html", 1 << 30]]
    table = messages.CONTEXT_TO_HOST
    return [
        Sample("status", table, {"type": "status", "state": "ready", "pid": 7}),
        Sample("stream", table, stream, b"hello\n"),
        Sample(
            "stream-unread",
            table,
            {**stream, "name": "stderr", "unread_stdout": 1, "unread_stderr": 65_536},
            "ÿ€😀".encode(),
        ),
        Sample("display_data", table, _display("display_data"), bundle),
        Sample(
            "display_data-cut", table, _display("display_data", truncated=truncated, display_id="d"), bundle
        ),
        Sample(
            "execute_result", table, _display("execute_result", execution_count=3, display_id="d"), bundle
        ),
        Sample("update_display_data", table, _display("update_display_data", display_id="d"), bundle),
        Sample("clear_output", table, {"type": "clear_output", "id": EXECUTION, "at": 2.0, "wait": False}),
        Sample(
            "error",
            table,
            error,
            json.dumps(["Traceback (most recent call last)", "ValueError: bad"]).encode(),
        ),
        Sample(
            "input_request",
            table,
            {"type": "input_request", "id": EXECUTION, "at": 3, "password": True},
            b"? ",
        ),
        Sample(
            "tool_request",
            table,
            {"type": "tool_request", "id": EXECUTION, "at": 3, "call": 7, "name": "search"},
            b'{"query":"x","limit":3}',
        ),
        Sample("execute_reply", table, reply),
        Sample(
            "complete_reply",
            table,
            {"type": "complete_reply", "id": EXECUTION, "cursor_start": 0, "cursor_end": 3},
            b'["print","priority"]',
        ),
        Sample(
            "inspect_reply",
            table,
            {"type": "inspect_reply", "id": EXECUTION, "parts": [["text/plain", 4]]},
            b"Help",
        ),
        Sample(
            "is_complete_reply",
            table,
            {"type": "is_complete_reply", "id": EXECUTION, "status": "incomplete", "indent": "    "},
        ),
        Sample(
            "variables_reply",
            table,
            {"type": "variables_reply", "id": EXECUTION, "count": 1},
            b'[{"name":"x","type":"int","summary":"1","size_bytes":28}]',
        ),
        *_comms(table, "guest", at=4.5),
        Sample(
            "changes",
            table,
            {"type": "changes", "id": EXECUTION, "at": 4.5},
            b'[{"name":"x","kind":"added","type":"int","summary":"1","size_bytes":28}]',
        ),
        Sample(
            "telemetry",
            table,
            {"type": "telemetry", "id": EXECUTION, "at": 4.5},
            b'[{"event":"open","detail":"/etc/x","count":2}]',
        ),
        Sample("checkpoint_reply", table, {"type": "checkpoint_reply", "id": EXECUTION, "errno": 0}),
    ]


def _checkpoints() -> list[Sample]:
    table = messages.CHECKPOINT_TO_HOST
    return [
        Sample("revive", messages.HOST_TO_CHECKPOINT, {"type": "revive", "number": 1}),
        Sample("move", messages.HOST_TO_CHECKPOINT, {"type": "move", "reseed": True, "last": False}),
        Sample("look", messages.HOST_TO_CHECKPOINT, {"type": "look", "marks": True}, b"frame"),
        Sample(
            "variables",
            messages.CHECKPOINT_LOOK_TO_HOST,
            {"type": "variables", "count": 1},
            b'[{"name":"x","type":"int","summary":"1","size_bytes":28,"mark":"00a1b2c3d4e5f607"}]',
        ),
        Sample(
            "kept", table, {"type": "kept", "pid": 9, "left_behind": ["thread 'x'", "descriptor 7: a pipe"]}
        ),
        Sample("revived", table, {"type": "revived", "number": 1, "pid": 12}),
        Sample("revival_failed", table, {"type": "revival_failed", "number": 1, "errno": 12}),
        Sample("ended", table, {"type": "ended", "number": 1, "signal": 9}),
    ]


REQUESTS: dict[str, dict[str, Any]] = {
    "signal_context": {"pid": 7, "signal": 2},
    "kill_context": {"pid": 7, "spare": [9]},
    "stop_all": {},
    "continue_all": {},
    "open": {"path": "notes.txt", "mode": "r"},
    "read": {"handle": 1, "offset": 0, "length": 1 << 20},
    "write": {"handle": 1},
    "close": {"handle": 1, "keep": True},
    "stat": {"path": "/tmp"},
    "list": {"path": "/tmp", "depth": 1, "offset": 2000},
    "make_dir": {"path": "/tmp/a"},
    "remove": {"path": "/tmp/a"},
    "rename": {"source": "/tmp/a", "destination": "/tmp/b"},
    "start_process": {"cwd": "/", "envs": {}, "pty": {"cols": 80, "rows": 24}},
    "signal_process": {"pid": 9, "signal": 15},
    "resize": {"pid": 9, "cols": 100, "rows": 30},
    "connect": {"port": 8080},
    "carry_egress": {"connection_id": 3},
    "drop_egress": {"connection_id": 3},
    "listen": {"port": 8080},
    "carry_arrival": {"port": 8080, "connection_id": 3},
    "drop_arrival": {"port": 8080, "connection_id": 3},
    "watch": {"path": "/tmp", "recursive": False},
    "settle_watch": {"watch_id": 1},
    "unwatch": {"watch_id": 1},
    "metrics": {},
    "take_snapshot": {"held": [7, 9]},
    "restore_snapshot": {"snapshot": 1, "held": [7]},
    "compare_snapshot": {"snapshot": 1, "later": 2},
    "list_snapshot": {"snapshot": 1, "offset": 2_000},
    "read_snapshot": {"snapshot": 1, "path": "/tmp/a", "offset": 0, "length": 100},
    "drop_snapshot": {"snapshot": 1},
    "show_memory": {"memory_bytes": 1 << 30},
    "expect_forks": {},
    "send_snapshot": {"snapshot": 1},
    "receive_files": {},
    "end_processes": {},
    "reduce_to_init": {},
}

VALUES: dict[str, Any] = {
    "signal_context": None,
    "kill_context": None,
    "stop_all": {"stopped": True},
    "continue_all": None,
    "open": {"handle": 1, "size": 0},
    "read": None,
    "write": None,
    "close": FILE,
    "stat": FILE,
    "list": {"entries": [FILE, FILE], "next": None},
    "make_dir": FILE,
    "remove": None,
    "rename": FILE,
    "start_process": {"pid": 12},
    "signal_process": {"found": True},
    "resize": None,
    "connect": None,
    "carry_egress": None,
    "drop_egress": None,
    "listen": None,
    "carry_arrival": None,
    "drop_arrival": None,
    "watch": {"watch_id": 1},
    "settle_watch": None,
    "unwatch": None,
    "metrics": {
        "memory_bytes": 1,
        "cpu_seconds": 0.01,
        "processes": 2,
        "disk_used_bytes": 0,
        "disk_total_bytes": 1 << 29,
        "inodes_used": 5,
    },
    "take_snapshot": {"snapshot": 1, "files": 3, "size_bytes": 10**9, "left_behind": ["/tmp/s, a socket"]},
    "restore_snapshot": {"restored": 2, "removed": 1},
    "compare_snapshot": {
        "created": [{"path": "/tmp/a", "size_bytes": 3}],
        "modified": [],
        "deleted": [{"path": "/tmp/b", "size_bytes": 0}],
        "more": 0,
    },
    "list_snapshot": {
        "entries": [
            {
                "path": "/tmp/a",
                "mode": 0o100644,
                "modified_ns": -5,
                "size_bytes": 3,
                "inode": 7,
                "links": 1,
                "target": "",
            }
        ],
        "next": None,
    },
    "read_snapshot": None,
    "drop_snapshot": None,
    "show_memory": None,
    "expect_forks": None,
    "send_snapshot": None,
    "receive_files": {"files": 3},
    "end_processes": None,
    "reduce_to_init": None,
}


def _to_init() -> list[Sample]:
    return [
        Sample(verb, init_messages.HOST_TO_INIT, {"type": "request", "id": 5, "verb": verb, **fields})
        for verb, fields in REQUESTS.items()
    ]


def _from_init() -> list[Sample]:
    hello = {
        "type": "hello",
        "pid": 1,
        "landlock_abi": 7,
        "namespaces": {"net": 4026531840},
        "no_new_privileges": True,
        "seccomp_mode": 2,
        "capabilities": 0,
        "groups": 0,
    }
    failed = {"type": "failed", "step": "seccomp", "errno": 22, "detail": "prctl", "hint": ""}
    refusal = {"type": "reply", "id": 5, "ok": False, "code": "os", "message": "No such file", "errno": 2}
    changes = [{"kind": "create", "name": "a", "path": "/tmp/a"}]
    table = init_messages.INIT_TO_HOST
    return [
        Sample("hello", init_messages.INIT_GREETING, hello),
        Sample("failed", init_messages.INIT_GREETING, failed),
        *(
            Sample(f"reply-{verb}", table, {"type": "reply", "id": 5, "ok": True, "value": value}, b"data")
            for verb, value in VALUES.items()
        ),
        Sample("refusal", table, refusal),
        Sample("process_exit", table, {"type": "event", "event": "process_exit", "pid": 7, "exit_code": 0}),
        Sample("memory_kill", table, {"type": "event", "event": "memory_kill", "pid": 7}),
        Sample("egress", table, {"type": "event", "event": "egress", "connection_id": 3}),
        Sample("arrival", table, {"type": "event", "event": "arrival", "port": 8080, "connection_id": 3}),
        Sample("watch_event", table, {"type": "event", "event": "watch", "watch_id": 1, "changes": changes}),
    ]


SAMPLES = [*_from_host(), *_from_context(), *_checkpoints(), *_to_init(), *_from_init()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `sample` once for each."""
    if "sample" in metafunc.fixturenames:
        metafunc.parametrize(
            "sample", [sample.copy() for sample in SAMPLES], ids=[sample.name for sample in SAMPLES]
        )


@pytest.fixture
def samples() -> list[Sample]:
    """All messages of the corpus."""
    return [sample.copy() for sample in SAMPLES]


@pytest.fixture
def values() -> dict[str, Any]:
    """What init answers, by verb."""
    return copy.deepcopy(VALUES)
