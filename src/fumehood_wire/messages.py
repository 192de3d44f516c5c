"""Messages: which types exist in each direction, and what each may hold.

The tables contain these rules as data: host to context, context to host, host to init, init to host. `check` compares a
decoded frame with one of them. It runs wherever a frame was just decoded, in the host and in the guest, and must never
repair, guess or ignore: a type, a field or a value that its table does not name is refused. The invariant: what has
passed `check` has the fields of its table and no others, each of the exact type and within its bound. A string may hold
any character, lone surrogates included, unless its rule says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Union, cast

from fumehood_wire.frames import MAX_TYPE_CHARS, Header, ProtocolError, parse_json
from fumehood_wire.rules import (
    Rule,
    any_object,
    entries,
    flag,
    integer,
    items,
    mime_sizes,
    number,
    one_of,
    record,
    text,
)

__all__ = [
    "CHECKPOINT_LOOK_TO_HOST",
    "CHECKPOINT_TO_HOST",
    "CONTEXT_TO_HOST",
    "HOST_TO_CHECKPOINT",
    "HOST_TO_CONTEXT",
    "LANGUAGE_UNAVAILABLE_STATUS",
    "MAX_ARGUMENTS_BYTES",
    "MAX_CHANGED_FILES",
    "MAX_CHUNK_BYTES",
    "MAX_COMM_BUFFERS",
    "MAX_COMM_ID_CHARS",
    "MAX_DIMENSIONS",
    "MAX_DISPLAY_ID_CHARS",
    "MAX_ENAME_CHARS",
    "MAX_EVALUE_CHARS",
    "MAX_ID_CHARS",
    "MAX_INDENT_CHARS",
    "MAX_LEFT_BEHIND",
    "MAX_LEFT_BEHIND_CHARS",
    "MAX_LISTED_FILES",
    "MAX_MATCHES",
    "MAX_MATCH_CHARS",
    "MAX_PARTS",
    "MAX_SHOWN_CHARS",
    "MAX_SHOWN_ITEMS",
    "MAX_TIME_NS",
    "MAX_TOOLS",
    "MAX_TOOL_ARGUMENT_BYTES",
    "MAX_TOOL_CALLS",
    "MAX_TOOL_NAME_CHARS",
    "MAX_TOOL_RESULT_BYTES",
    "MAX_TRACEBACK_BYTES",
    "MAX_TRACEBACK_LINES",
    "MAX_VARIABLES",
    "MAX_VARIABLE_CHARS",
    "Message",
    "Table",
    "Variants",
    "check",
    "parse_traceback",
    "read_text",
    "split_parts",
]

_KIB = 1024
_MIB = 1024 * _KIB

MAX_ID_CHARS = 64
# Display ids, names and texts of errors come from user code: the guest cuts them to these lengths.
MAX_DISPLAY_ID_CHARS = 256
MAX_ENAME_CHARS = 1024
MAX_EVALUE_CHARS = 64 * _KIB
MAX_PARTS = 64
# The payload of one frame of streamed text, or of a file's content.
MAX_CHUNK_BYTES = 1 * _MIB
# No kernel takes more arguments for a program: three quarters of _STK_LIM, fs/exec.c.
MAX_ARGUMENTS_BYTES = 6 * _MIB
# The guest cuts a traceback to these. The host reads it in one callback: ten times as much would hold up all others.
MAX_TRACEBACK_BYTES = 256 * _KIB
MAX_TRACEBACK_LINES = 5_001
# Completions come from names in user code: the guest leaves out what is longer, and what is beyond this number.
MAX_MATCHES = 1_000
MAX_MATCH_CHARS = 1_000
MAX_INDENT_CHARS = 256
MAX_COMM_ID_CHARS = 255
MAX_COMM_BUFFERS = 256
# Parts that a checkpoint cannot keep, in words; the guest lists at most so many, and marks a longer list.
MAX_LEFT_BEHIND = 64
MAX_LEFT_BEHIND_CHARS = 300
MAX_LISTED_FILES = 2_000
MAX_TIME_NS = 2**62
MAX_CHANGED_FILES = 1_000
# What a cell has changed is named up to this number, and each text of it cut to this length.
MAX_VARIABLES = 1_000
# Bounds of the details of one variable: the numbers of items, rows and columns, and the length of a text.
MAX_SHOWN_ITEMS = 50
MAX_SHOWN_CHARS = 4_000
MAX_DIMENSIONS = 64
# The largest number of different events in the telemetry of one execution, and the length of each.
MAX_TELEMETRY = 100
MAX_TELEMETRY_CHARS = 300
MAX_VARIABLE_CHARS = 200
MAX_MARK_CHARS = 16
# Bounds of one execution: the number of its tools and of calls, and the size of a call in each direction.
MAX_TOOLS = 64
MAX_TOOL_NAME_CHARS = 64
MAX_TOOL_CALLS = 10_000
MAX_TOOL_ARGUMENT_BYTES = 1 * _MIB
MAX_TOOL_RESULT_BYTES = 4 * _MIB
# The exit status (EX_UNAVAILABLE of sysexits.h) of a context whose language has no program in its template.
LANGUAGE_UNAVAILABLE_STATUS = 69


class Message(NamedTuple):
    """One type of message.

    Attributes:
        header: The rule for its header.
        max_payload_bytes: The bound of its payload; None leaves that to the decoder.
        parts: The payload is the parts whose sizes stand in the header's field "parts".
        min_payload_bytes: The minimum size of its payload.
    """

    header: Rule
    max_payload_bytes: int | None = 0
    parts: bool = False
    min_payload_bytes: int = 0


class Variants(NamedTuple):
    """A message type with several forms; the value of one of its fields determines the form."""

    field: str
    messages: Mapping[object, Message]


Table = Mapping[str, Union[Message, Variants]]

_ID = text(MAX_ID_CHARS)
_DISPLAY_ID = text(MAX_DISPLAY_ID_CHARS)
_COUNT = integer(0, 2**63 - 1)
# About three hundred years.
_SECONDS = number(0, 1e10)
# Of one pipe, as FIONREAD counts them.
_UNREAD_BYTES = integer(1, 2**31 - 1)
# PID_MAX_LIMIT, include/linux/threads.h.
_PID = integer(1, 4 * _MIB)
# _NSIG, include/uapi/asm-generic/signal.h.
_SIGNAL = integer(1, 64)
# PATH_MAX and MAX_ARG_STRLEN, which count the closing NUL: include/uapi/linux/limits.h and binfmts.h.
_NO_NUL = re.compile(r"[^\0]*")
_ARGUMENT = text(128 * _KIB - 1, _NO_NUL)
_ENVIRONMENT = entries(text(1024, re.compile(r"[^\0=]+")), _ARGUMENT, 4096)
_END = {"exit_code": integer(0, 255), "signal": _SIGNAL}
_ERRNO = integer(0, 4095)
_MIME_SIZES = mime_sizes(MAX_PARTS, 2**63 - 1)
_COMM_ID = text(MAX_COMM_ID_CHARS)
_TOOL_NAME = text(MAX_TOOL_NAME_CHARS, re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))
_TOOL_CALL = integer(1, MAX_TOOL_CALLS)
_TOOL = record(
    {
        "name": _TOOL_NAME,
        "description": text(4 * _KIB),
        "required": items(text(128), 64),
        "optional": items(text(128), 64),
        "awaited": flag(),
    }
)
# The most output that an execution may send.
_BOUNDS = {"stdout_bytes": _COUNT, "stderr_bytes": _COUNT, "result_bytes": _COUNT, "result_count": _COUNT}
# True if an interrupt of the previous request may still be pending; it must not hit this one.
_AFTER_INTERRUPT = {"after_interrupt": flag(only=True)}


def _message(
    required: Mapping[str, Rule],
    optional: Mapping[str, Rule] | None = None,
    *,
    exclusive: Mapping[str, Rule] | None = None,
    max_payload_bytes: int | None = 0,
    min_payload_bytes: int = 0,
) -> Message:
    header = record({"type": text(MAX_TYPE_CHARS), **required}, optional, exclusive=exclusive)
    return Message(header, max_payload_bytes, min_payload_bytes=min_payload_bytes)


def _display(required: Mapping[str, Rule], optional: Mapping[str, Rule] | None = None) -> Message:
    common = {"id": _ID, "at": _SECONDS, "parts": _MIME_SIZES, "metadata": any_object}
    message = _message({**common, **required}, {"truncated": _MIME_SIZES, **(optional or {})})
    return message._replace(max_payload_bytes=None, parts=True)


def _question(required: Mapping[str, Rule] | None = None) -> Message:
    """Returns the message type of a question about code; the code is the payload."""
    return _message({"id": _ID, **(required or {})}, _AFTER_INTERRUPT, max_payload_bytes=MAX_CHUNK_BYTES)


def _comms(common: Mapping[str, Rule], optional: Mapping[str, Rule] | None = None) -> dict[str, Message]:
    """Returns the message types of comm messages by name; `payloads.split_comm` splits their payload."""
    required = {"id": _ID, "comm_id": _COMM_ID, "buffers": items(_COUNT, MAX_COMM_BUFFERS), **common}
    other = _message(required, optional, max_payload_bytes=None)
    opening = _message({**required, "target_name": _COMM_ID}, optional, max_payload_bytes=None)
    return {"comm_open": opening, "comm_msg": other, "comm_close": other}


# Boolean options of an execution, false if missing. Each has the same name in the
# request of the port, in the message, and in the context that acts on it.
EXECUTION_FLAGS = ("silent",)

HOST_TO_CONTEXT: Table = {
    # The payload is the code, followed by "stdin_bytes" bytes of standard input.
    "execute_request": _message(
        {
            "id": _ID,
            **_BOUNDS,
            "allow_stdin": flag(),
            "store_history": flag(),
            "envs": _ENVIRONMENT,
        },
        {
            **_AFTER_INTERRUPT,
            **{name: flag() for name in EXECUTION_FLAGS},
            "stdin_bytes": _COUNT,
            # The tools of the host that the code may call, and the largest number of calls altogether.
            "tools": items(_TOOL, MAX_TOOLS),
            "tool_calls": _TOOL_CALL,
            # Whether the caller wants to know which variables are changed.
            "changes": flag(only=True),
            # Whether the host requests telemetry of the interpreter.
            "telemetry": flag(only=True),
        },
        max_payload_bytes=None,
    ),
    # The payload is the line that was typed; "eof" says that there is none.
    "input_reply": _message({"id": _ID}, {"eof": flag(only=True)}, max_payload_bytes=MAX_CHUNK_BYTES),
    # The payload is JSON: the result of the tool or, unless the reply is "ok", the text of the error.
    "tool_reply": _message(
        {"id": _ID, "call": _TOOL_CALL, "ok": flag()}, max_payload_bytes=MAX_TOOL_RESULT_BYTES
    ),
    "complete_request": _question({"cursor_pos": _COUNT}),
    "inspect_request": _question({"cursor_pos": _COUNT, "detail_level": integer(0, 1)}),
    "is_complete_request": _question(),
    # The payload is the name of one variable, which is to be shown in detail; empty: all are to be listed.
    # With "marks" each of the listed ones has a mark, by which two lists of one context can be compared.
    "variables_request": _message(
        {"id": _ID}, {**_AFTER_INTERRUPT, "marks": flag(only=True)}, max_payload_bytes=MAX_CHUNK_BYTES
    ),
    # The handlers run as an execution does, and end with an execute_reply.
    **_comms(_BOUNDS, _AFTER_INTERRUPT),
    # Requests a checkpoint. One descriptor comes with it: the socket over which the host will talk to the checkpoint.
    "checkpoint_request": _message({"id": _ID}),
    # Lets a context continue that has made a checkpoint, or that was just made from one.
    "proceed": _message({}, {"id": _ID}),
    "shutdown_request": _message({}),
}

# On the socket to a checkpoint: a process that waits, and forks a context with its state on request. With "revive" come
# the descriptors of the new context: channel, standard output, standard error.
HOST_TO_CHECKPOINT: Table = {
    "revive": _message({"number": _COUNT}),
    # One descriptor comes with it: a socket, over which the forked process reports.
    "move": _message({"reseed": flag(), "last": flag()}),
    # One descriptor comes with it: a socket, over which the checkpoint describes its variables. The payload is as in a
    # "variables_request".
    "look": _message({"marks": flag()}, max_payload_bytes=MAX_CHUNK_BYTES),
}

CHECKPOINT_TO_HOST: Table = {
    "kept": _message(
        {"pid": _PID, "left_behind": items(text(MAX_LEFT_BEHIND_CHARS), MAX_LEFT_BEHIND)},
    ),
    "revived": _message({"number": _COUNT, "pid": _PID}),
    "revival_failed": _message({"number": _COUNT, "errno": _ERRNO}),
    "ended": _message({"number": _COUNT}, exclusive=_END),
}

# On the socket of a "look". The payload is as in a "variables_reply".
CHECKPOINT_LOOK_TO_HOST: Table = {
    "variables": _message({"count": _COUNT}, max_payload_bytes=MAX_CHUNK_BYTES),
}

# "id" is the execution that a message belongs to, "at" the guest's monotonic clock in seconds.
CONTEXT_TO_HOST: Table = {
    "status": _message({"state": one_of("ready"), "pid": _PID}),
    # How many bytes pipes 1 and 2 held when the text was written: the host delivers so many before the text.
    "stream": _message(
        {"id": _ID, "name": one_of("stdout", "stderr"), "at": _SECONDS},
        {"unread_stdout": _UNREAD_BYTES, "unread_stderr": _UNREAD_BYTES},
        max_payload_bytes=MAX_CHUNK_BYTES,
        # Empty text is not allowed: it would cost the host as much as a line.
        min_payload_bytes=1,
    ),
    "display_data": _display({}, {"display_id": _DISPLAY_ID}),
    "execute_result": _display({"execution_count": _COUNT}, {"display_id": _DISPLAY_ID}),
    "update_display_data": _display({"display_id": _DISPLAY_ID}),
    "clear_output": _message({"id": _ID, "at": _SECONDS, "wait": flag()}),
    # The payload is the traceback, for `parse_traceback`.
    "error": _message(
        {"id": _ID, "at": _SECONDS, "ename": text(MAX_ENAME_CHARS), "evalue": text(MAX_EVALUE_CHARS)},
        max_payload_bytes=MAX_TRACEBACK_BYTES,
    ),
    # The payload is the prompt.
    "input_request": _message(
        {"id": _ID, "at": _SECONDS, "password": flag()}, max_payload_bytes=MAX_CHUNK_BYTES
    ),
    # The payload is the arguments, for `payloads.parse_arguments`.
    "tool_request": _message(
        {"id": _ID, "at": _SECONDS, "call": _TOOL_CALL, "name": _TOOL_NAME},
        max_payload_bytes=MAX_TOOL_ARGUMENT_BYTES,
    ),
    # The payload is the variables that the cell has changed, for `payloads.parse_changes`; it comes right before the
    # reply.
    "changes": _message({"id": _ID, "at": _SECONDS}, max_payload_bytes=MAX_CHUNK_BYTES),
    # The payload is the interpreter's telemetry, for `payloads.parse_telemetry`; it comes before the reply, too.
    "telemetry": _message({"id": _ID, "at": _SECONDS}, max_payload_bytes=MAX_CHUNK_BYTES),
    "execute_reply": _message(
        {
            "id": _ID,
            "at": _SECONDS,
            "status": one_of("ok", "error"),
            "execution_count": _COUNT,
            "user_cpu_seconds": _SECONDS,
            "system_cpu_seconds": _SECONDS,
            "peak_memory_bytes": _COUNT,
            "dropped": record({"stdout": _COUNT, "stderr": _COUNT, "results": _COUNT}),
        }
    ),
    # The payload is the matches, for `payloads.parse_matches`.
    "complete_reply": _message(
        {"id": _ID, "cursor_start": _COUNT, "cursor_end": _COUNT}, max_payload_bytes=MAX_CHUNK_BYTES
    ),
    "inspect_reply": _message({"id": _ID, "parts": _MIME_SIZES}, max_payload_bytes=MAX_CHUNK_BYTES)._replace(
        parts=True
    ),
    "is_complete_reply": _message(
        {
            "id": _ID,
            "status": one_of("complete", "incomplete", "invalid", "unknown"),
            "indent": text(MAX_INDENT_CHARS),
        }
    ),
    # The payload is the variables, for `payloads.parse_variables`; "count" is how many there are.
    "variables_reply": _message({"id": _ID, "count": _COUNT}, max_payload_bytes=MAX_CHUNK_BYTES),
    **_comms({"at": _SECONDS}),
    # The context waits for "proceed" if there is a checkpoint, and continues if it could not be made.
    "checkpoint_reply": _message({"id": _ID, "errno": _ERRNO}),
}


def check(table: Table, header: Header, payload: bytes) -> None:
    """Check a decoded frame against the table of its direction.

    Raises:
        ProtocolError: The frame breaks a rule; the code is `unknown_type`, `field` or `payload`.
    """
    message = _find_message(table, header)
    fault = message.header(header)

    if fault is not None:
        raise ProtocolError("field", f"{header['type']}: {fault}")

    if message.max_payload_bytes is not None and len(payload) > message.max_payload_bytes:
        raise ProtocolError(
            "payload", f"{header['type']}: payload of {len(payload)} bytes, limit {message.max_payload_bytes}"
        )

    if len(payload) < message.min_payload_bytes:
        raise ProtocolError("payload", f"{header['type']}: payload of {len(payload)} bytes")

    if message.parts and sum(size_bytes for _, size_bytes in header["parts"]) != len(payload):
        raise ProtocolError(
            "payload", f"{header['type']}: parts do not add up to the {len(payload)} bytes sent"
        )


def split_parts(header: Header, payload: bytes) -> list[tuple[str, bytes]]:
    """Return the MIME name and the content of each part of a display message that has passed `check`."""
    parts = []
    start = 0

    for name, size_bytes in header["parts"]:
        parts.append((name, payload[start : start + size_bytes]))
        start += size_bytes

    return parts


def parse_traceback(payload: bytes) -> list[str]:
    """Return the lines in the payload of an `error` message that has passed `check`.

    Raises:
        ProtocolError: The payload is not a JSON list of at most `MAX_TRACEBACK_LINES` strings.
    """
    lines = parse_json(payload)
    fault = items(text(MAX_TRACEBACK_BYTES), MAX_TRACEBACK_LINES)(lines)

    if fault is not None:
        raise ProtocolError("payload", f"traceback {fault}")

    return cast("list[str]", lines)


def read_text(payload: bytes) -> str:
    """Return a payload that has to be text.

    Raises:
        ProtocolError: The payload is not strict UTF-8.
    """
    try:
        return str(payload, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("encoding", f"byte {error.start} of the payload is not UTF-8") from None


def _find_message(table: Table, header: Header) -> Message:
    entry = table.get(header["type"])

    if entry is None:
        raise ProtocolError("unknown_type", f"no message of type {header['type']!a} in this direction")

    if isinstance(entry, Message):
        return entry

    form = header.get(entry.field)
    message = entry.messages.get(form) if type(form) in (str, bool) else None

    if message is None:
        raise ProtocolError("field", f'{header["type"]}: field "{entry.field}" names no known form')

    return message
