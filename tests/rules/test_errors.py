"""Rules of the error tree: a stable code each, a way out each, and able to cross a process border."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from fumehood import errors
from fumehood.cli.hints import hint_of
from fumehood.errors import FumehoodError
from fumehood.llm import model_errors

VALUES = {
    "image": "python:3.12",
    "language": "javascript",
    "key_id": "abc",
    "name": "files/ab/cd",
    "known": "0001",
    "found": "0009",
    "host_version": "0.1.0",
    "server_version": "0.2.0",
    "location": "sqlite:///x",
    "field": "limits.memory_bytes",
    "value": 0,
    "asked": "internet",
    "allowed": "a whole number",
    "extra": "",
    "problem": "",
    "step": "clone",
    "reason": "killed",
    "hint": "do this",
    "layer": "seccomp",
    "how_to_get_it": "allow it",
    "template": "mine",
    "resource": "sandboxes",
    "used": 5,
    "limit": "memory_bytes",
    "maximum": 5,
    "sandbox_id": "abc",
    "batch_id": "batch_0",
    "cursor": 1,
    "first": 2,
    "last": 3,
    "rule": "frame_size",
    "detail": "too big",
    "owner_pid": 1,
    "context_id": "c1",
    "execution_id": "e1",
    "command": "false",
    "exit_code": 3,
    "is_truncated": True,
    "stdout": "out",
    "stderr": "err",
    "timeout_seconds": 1.5,
    "errno_value": 2,
    "pid": 7,
    "path": "/tmp/x",
    "operation": "read",
    "outcome_unknown": False,
    "port": 8000,
    "quota": "executions",
    "wanted": 7.0,
    "retry_after_seconds": 1.0,
    "waited_seconds": 3.0,
    "what": "body",
    "key": "k",
    "host": "localhost",
    "checkpoint_id": "cp1",
    "part": "files/1",
    "generation": 2,
    "level": "landlock-only",
    "provider": "openai",
    "model": "m",
    "status": 400,
    "left_out": ("/mnt/data/x: it is too large",),
    "count": 2,
}
# A call, a keyword argument, a class of ours, or a header.
_CALL = re.compile(r"\w\(|`\w+=|\w=True|\bSandbox\.|api_key=|Authorization|format=|`max_bytes`|`timeout`")
# Of models and their providers: `fumehood chat` has options of these names.
NOT_AT_A_TERMINAL = {kind.__name__ for kind in vars(model_errors).values() if isinstance(kind, type)} - {
    "object"
}
ABSTRACT = {"FumehoodError", "SandboxError", "CommandError", "ServiceError", "ModelError"}

CLASSES = [
    value
    for value in {**vars(errors), **vars(model_errors)}.values()
    if isinstance(value, type) and issubclass(value, FumehoodError)
]
LEAVES = [kind for kind in CLASSES if kind.__name__ not in ABSTRACT]


def make(kind: type[FumehoodError]) -> FumehoodError:
    names = inspect.signature(kind.__init__).parameters.keys() - {"self", "logged"}
    return kind(**{name: VALUES[name] for name in names})


def test_codes_are_stable_names_of_one_class_each():
    """A program can tell errors apart by code."""
    codes = [vars(kind)["code"] for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code.islower() for code in codes)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_each_writes_its_message_and_a_way_out(kind):
    """What failed, with the value, and what to do about it."""
    error = make(kind)

    assert error.message
    assert error.message[-1] not in ".!"
    assert str(error).startswith(error.message)
    assert error.hint or kind is errors.FileError
    assert error.args == (error.message,)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_the_command_line_names_no_call_of_python_or_http(kind):
    """Its hints are commands and options: `fumehood/cli/hints.py` has one for each error whose own names a call."""
    if kind.__name__ in NOT_AT_A_TERMINAL:
        return

    assert _CALL.search(hint_of(make(kind))) is None


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_each_crosses_a_process_border(kind):
    """A worker process can send it back with everything in it."""
    error = make(kind)
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert getattr(copy, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_no_guest_text_reaches_a_terminal_through_a_message(kind):
    """Values with control characters are spelled out."""
    hostile = {name: "evil\x1b]0;x\x07\nnext" for name, value in VALUES.items() if isinstance(value, str)}
    names = inspect.signature(kind.__init__).parameters.keys() - {"self", "logged"}
    given = {name: {**VALUES, **hostile}[name] for name in names}
    given.update({name: "killed" for name in names & {"reason"} if kind is errors.SandboxClosedError})

    message = kind(**given).message
    assert "\x1b" not in message
    assert "\x07" not in message


@pytest.mark.parametrize(
    "kind", [kind for kind in LEAVES if "errno_value" in inspect.signature(kind.__init__).parameters]
)
def test_errors_of_the_system_keep_their_number(kind):
    """Code that looks at `errno` finds it, here and in another process."""
    error = make(kind)
    assert error.errno == VALUES["errno_value"]
    assert pickle.loads(pickle.dumps(error)).errno == error.errno


def test_x15_an_error_says_whether_to_ask_again_is_safe():
    """What was refused is; what may have happened is not, nor what tells how something that has run has ended."""
    assert errors.SandboxClosedError(sandbox_id="abc", reason="died").retry_safe
    assert not errors.SandboxClosedError(sandbox_id="abc", reason="died", outcome_unknown=True).retry_safe
    assert not errors.ProtocolViolationError(sandbox_id="abc", rule="order").retry_safe
    assert errors.OverloadedError(reason="full", retry_after_seconds=1).retry_safe
    assert not errors.CommandExitError(command="false", exit_code=1).retry_safe
    assert not errors.CommandTimeoutError(command="sleep", timeout_seconds=1).retry_safe
