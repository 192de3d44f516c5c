"""Messages to and from init: which verbs and events exist, and what each may hold.

`fumehood_wire.messages` checks frames against these tables: nothing is repaired, guessed or ignored.
`check_value` checks the value of a reply by the verb that it answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fumehood_wire.frames import MAX_TYPE_CHARS, ProtocolError
from fumehood_wire.messages import (
    _COUNT,
    _END,
    _ENVIRONMENT,
    _ERRNO,
    _KIB,
    _NO_NUL,
    _PID,
    _SECONDS,
    _SIGNAL,
    MAX_ARGUMENTS_BYTES,
    MAX_CHANGED_FILES,
    MAX_CHUNK_BYTES,
    MAX_LEFT_BEHIND,
    MAX_LEFT_BEHIND_CHARS,
    MAX_LISTED_FILES,
    MAX_TIME_NS,
    Message,
    Table,
    Variants,
    _message,
)
from fumehood_wire.rules import (
    Rule,
    anything,
    entries,
    flag,
    integer,
    items,
    nothing,
    nullable,
    number,
    one_of,
    record,
    text,
)

__all__ = [
    "CONNECTED",
    "HOST_TO_INIT",
    "INIT_GREETING",
    "INIT_TO_HOST",
    "MAX_ARRIVALS",
    "MAX_PROXY_CONNECTIONS",
    "MAX_SERVED_PORTS",
    "MAX_STREAMS",
    "check_value",
]

# Sent by init on the socket of a stream to a port once the connection is made; without a connection init closes the
# socket.
CONNECTED = b"+"
# Host and init enforce these bounds separately: one of them may have released a stream that the other still counts.
MAX_STREAMS = 128
MAX_PROXY_CONNECTIONS = 64
# Ports of a sandbox on which the host listens, and the connections of each: open, or waiting for a stream.
MAX_SERVED_PORTS = 4
MAX_ARRIVALS = 16

_PATH = text(4 * _KIB - 1, _NO_NUL)
# Guests can build deeper paths than the kernel accepts in one piece.
_GUEST_PATH = text(64 * _KIB, _NO_NUL)
# The metadata of one file; names are those of extended attributes without their prefix.
_METADATA = entries(text(255, _NO_NUL), text(8 * _KIB, _NO_NUL), 64)
_TERMINAL_SIZE = {"cols": integer(1, 65_535), "rows": integer(1, 65_535)}
_WORD = text(64, re.compile(r"[a-z][a-z0-9_]*"))
_SENTENCE = text(4 * _KIB)
_PORT = integer(1, 65_535)
_MAX_NAMESPACES = 16


def _request(
    required: Mapping[str, Rule] | None = None,
    optional: Mapping[str, Rule] | None = None,
    *,
    max_payload_bytes: int = 0,
) -> Message:
    common = {"id": _COUNT, "verb": text(MAX_TYPE_CHARS)}
    return _message({**common, **(required or {})}, optional, max_payload_bytes=max_payload_bytes)


def _event(required: Mapping[str, Rule], *, exclusive: Mapping[str, Rule] | None = None) -> Message:
    return _message({"event": text(MAX_TYPE_CHARS), **required}, exclusive=exclusive)


HOST_TO_INIT: Table = {
    "request": Variants(
        "verb",
        {
            "show_memory": _request({"memory_bytes": _COUNT}),
            "signal_context": _request({"pid": _PID, "signal": _SIGNAL}),
            # Kills a context with all that it has started, except checkpoints and contexts made from them.
            "kill_context": _request({"pid": _PID}, {"spare": items(_PID, 4096)}),
            "stop_all": _request(),
            "continue_all": _request(),
            "open": _request({"path": _PATH, "mode": one_of("r", "w")}, {"metadata": _METADATA}),
            "read": _request({"handle": _COUNT, "offset": _COUNT, "length": integer(0, MAX_CHUNK_BYTES)}),
            "write": _request({"handle": _COUNT}, max_payload_bytes=MAX_CHUNK_BYTES),
            "close": _request({"handle": _COUNT, "keep": flag()}),
            "stat": _request({"path": _PATH}),
            "list": _request({"path": _PATH, "depth": _COUNT}, {"offset": _COUNT}),
            "make_dir": _request({"path": _PATH}),
            "remove": _request({"path": _PATH}),
            "rename": _request({"source": _PATH, "destination": _PATH}),
            # The payload is the program and its arguments, with a NUL between: they may be more than a header holds.
            "start_process": _request(
                {"cwd": _PATH, "envs": _ENVIRONMENT},
                {"pty": record(_TERMINAL_SIZE)},
                max_payload_bytes=MAX_ARGUMENTS_BYTES,
            ),
            "signal_process": _request({"pid": _PID, "signal": _SIGNAL}),
            "resize": _request({"pid": _PID, **_TERMINAL_SIZE}),
            "connect": _request({"port": _PORT}),
            "carry_egress": _request({"connection_id": _COUNT}),
            "drop_egress": _request({"connection_id": _COUNT}),
            "listen": _request({"port": _PORT}),
            "carry_arrival": _request({"port": _PORT, "connection_id": _COUNT}),
            "drop_arrival": _request({"port": _PORT, "connection_id": _COUNT}),
            "watch": _request({"path": _PATH, "recursive": flag()}, {"entries": flag()}),
            "settle_watch": _request({"watch_id": _COUNT}),
            "unwatch": _request({"watch_id": _COUNT}),
            "metrics": _request(),
            # "held" are processes that wait for the host meanwhile; whatever else runs is stopped for that time.
            "take_snapshot": _request({"held": items(_PID, 4096)}),
            "restore_snapshot": _request({"snapshot": _COUNT, "held": items(_PID, 4096)}),
            # With another, later snapshot, or else with now.
            "compare_snapshot": _request({"snapshot": _COUNT}, {"later": _COUNT}),
            "list_snapshot": _request({"snapshot": _COUNT, "offset": _COUNT}),
            # A path that the list has named, which may be longer than the kernel accepts in one piece.
            "read_snapshot": _request(
                {
                    "snapshot": _COUNT,
                    "path": _GUEST_PATH,
                    "offset": _COUNT,
                    "length": integer(0, MAX_CHUNK_BYTES),
                }
            ),
            "drop_snapshot": _request({"snapshot": _COUNT}),
            "expect_forks": _request(),
            # A socket comes with these: it connects the init of a sandbox with the init of a fork of it.
            "send_snapshot": _request({"snapshot": _COUNT}),
            "receive_files": _request(),
            # Kills every process but init, which must stay: forked sandboxes are nested in its namespaces.
            "end_processes": _request(),
            "reduce_to_init": _request(),
        },
    ),
}

_FILE = record(
    {
        "name": _GUEST_PATH,
        "path": _GUEST_PATH,
        "type": one_of("file", "dir", "symlink", "other"),
        "size_bytes": _COUNT,
        "mode": integer(0, 0o7777),
        "permissions": text(16),
        "owner": text(256),
        "group": text(256),
        # Any time of 64 bits: guests may set it.
        "modified_at": number(-1e19, 1e19),
    },
    {"symlink_target": _GUEST_PATH, "resolved_target": _GUEST_PATH, "metadata": _METADATA},
)

_CHANGE = record(
    {
        "kind": one_of("create", "write", "remove", "rename", "chmod", "overflow"),
        "name": _GUEST_PATH,
        "path": _GUEST_PATH,
    },
    {"entry": _FILE},
)

# The first message of init is one of these two, and no later one is: the restrictions that are in force on it, or the
# step of the launch that failed.
INIT_GREETING: Table = {
    "hello": _message(
        {
            "pid": _PID,
            "landlock_abi": _COUNT,
            "no_new_privileges": flag(),
            "seccomp_mode": integer(0, 2),
            "capabilities": _COUNT,
            "groups": _COUNT,
            # The inode numbers of namespaces, by name.
            "namespaces": entries(_WORD, _COUNT, _MAX_NAMESPACES),
        },
        # Which places are shown through the host's own inodes, and why; empty where there are none.
        {"shared_places": _SENTENCE, "own_devices": flag()},
    ),
    "failed": _message({"step": text(64), "errno": _ERRNO, "detail": _SENTENCE, "hint": _SENTENCE}),
}

INIT_TO_HOST: Table = {
    "reply": Variants(
        "ok",
        {
            # Which value is right depends on the request: `check_value` knows.
            True: _message(
                {"id": _COUNT, "ok": flag(only=True), "value": anything}, max_payload_bytes=MAX_CHUNK_BYTES
            ),
            False: _message(
                {"id": _COUNT, "ok": flag(only=False), "code": _WORD, "message": _SENTENCE}, {"errno": _ERRNO}
            ),
        },
    ),
    "event": Variants(
        "event",
        {
            "process_exit": _event({"pid": _PID}, exclusive=_END),
            "memory_kill": _event({"pid": _PID}),
            "egress": _event({"connection_id": _COUNT}),
            "arrival": _event({"port": _PORT, "connection_id": _COUNT}),
            "watch": _event({"watch_id": _COUNT, "changes": items(_CHANGE, 4096)}),
        },
    ),
}

_CHANGED_FILES = items(record({"path": _GUEST_PATH, "size_bytes": _COUNT}), MAX_CHANGED_FILES)

_TAKEN_FILE = record(
    {
        "path": _GUEST_PATH,
        # With the bits that say what it is.
        "mode": integer(0, 0o177777),
        # Guests may set one beyond; init keeps to this.
        "modified_ns": integer(-MAX_TIME_NS, MAX_TIME_NS),
        "size_bytes": _COUNT,
        "inode": _COUNT,
        "links": _COUNT,
        "target": _GUEST_PATH,
    }
)

# The reply of init to each verb.
_VALUES: Mapping[str, Rule] = {
    "signal_context": nothing,
    "kill_context": nothing,
    "stop_all": record({"stopped": flag()}),
    "continue_all": nothing,
    "open": record({"handle": _COUNT, "size": _COUNT}),
    "read": nothing,
    "write": nothing,
    "close": nullable(_FILE),
    "stat": _FILE,
    "list": record({"entries": items(_FILE, 10_000), "next": nullable(_COUNT)}),
    "make_dir": _FILE,
    "remove": nothing,
    "rename": _FILE,
    "start_process": record({"pid": _PID}),
    "signal_process": record({"found": flag()}),
    "resize": nothing,
    "connect": nothing,
    "carry_egress": nothing,
    "drop_egress": nothing,
    "listen": nothing,
    "carry_arrival": nothing,
    "drop_arrival": nothing,
    "watch": record({"watch_id": _COUNT}),
    "settle_watch": nothing,
    "unwatch": nothing,
    "metrics": record(
        {
            "memory_bytes": _COUNT,
            "cpu_seconds": _SECONDS,
            "processes": _COUNT,
            "disk_used_bytes": _COUNT,
            "disk_total_bytes": _COUNT,
            "inodes_used": _COUNT,
        }
    ),
    "take_snapshot": record(
        {
            "snapshot": _COUNT,
            "files": _COUNT,
            "size_bytes": _COUNT,
            "left_behind": items(text(MAX_LEFT_BEHIND_CHARS), MAX_LEFT_BEHIND),
        }
    ),
    "restore_snapshot": record({"restored": _COUNT, "removed": _COUNT}),
    # "more" are changes that are in none of the lists, because they are full.
    "compare_snapshot": record(
        {"created": _CHANGED_FILES, "modified": _CHANGED_FILES, "deleted": _CHANGED_FILES, "more": _COUNT}
    ),
    "list_snapshot": record({"entries": items(_TAKEN_FILE, MAX_LISTED_FILES), "next": nullable(_COUNT)}),
    "read_snapshot": nothing,
    "drop_snapshot": nothing,
    "show_memory": nothing,
    "expect_forks": nothing,
    "send_snapshot": nothing,
    "receive_files": record({"files": _COUNT}),
    "end_processes": nothing,
    "reduce_to_init": nothing,
}


def check_value(verb: str, value: object) -> None:
    """Check the "value" of a reply by the verb of the request that it answers.

    Raises:
        ProtocolError: The value is not valid for the verb; the code is `field`.
    """
    fault = _VALUES[verb](value)

    if fault is not None:
        raise ProtocolError("field", f"value of {verb}: {fault}")
