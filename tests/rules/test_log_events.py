"""Each line of the log is an event that is declared: no module logs otherwise, and no call gives other fields."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from fumehood.errors import HostVersionError, TemplateError
from fumehood.log import events
from fumehood.log.events import EVENTS

SOURCE = Path(__file__).parents[2] / "src" / "fumehood"
BY_CONSTANT = {name: value for name, value in vars(events).items() if isinstance(value, events.LogEvent)}
# Of these the log is another one: of changes to a database, and help of settings.
NOT_POINTING = {
    "the database is gone, its log is not",
    "least level of the log: debug, info, warning or error",
    "how lines of the log are written: console or json",
}
# These configure loggers of other libraries, and log nothing.
CONFIGURING = {"mcp/server.py"}
# These take the words of an `OSError` or of the launcher, before any guest; or are raised where nothing is logged.
OF_THE_HOST = {
    "api/templates.py",
    "engine/provisioner.py",
    "engine/audit_records.py",
    "runtimes/landlock/runtime.py",
    "runtimes/launch.py",
    "runtimes/launcher_client.py",
}


@pytest.fixture(scope="module")
def logging_modules(modules):
    """The modules of `fumehood` that may log, by their paths."""
    places = {module: module.path.relative_to(SOURCE) for module in modules if module.top == "fumehood"}
    return {str(place): module for module, place in places.items() if place.parts[0] != "log"}


@pytest.fixture(scope="module")
def calls(logging_modules):
    """The calls `events.NAME.log(...)`, with the module of each and the declared event."""
    found = []

    for name, module in logging_modules.items():
        for node in module.nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id="events"), attr=constant), attr="log"
                    )
                ):
                    found.append((name, node, BY_CONSTANT[constant]))

    assert found
    return found


def test_nothing_else_logs(logging_modules):
    for name, module in logging_modules.items():
        if name in CONFIGURING:
            continue

        used = {
            node.attr
            for node in module.nodes
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "logging"
        }
        assert not {one for one in used if one.startswith("get")}, name


def test_calls_give_the_fields_that_are_declared(calls):
    for name, node, event in calls:
        given = {keyword.arg for keyword in node.keywords if keyword.arg is not None} - {"exc_info"}
        assert given <= set(event.fields), f"{name}:{node.lineno} gives {given - set(event.fields)}"
        assert not node.args, f"{name}:{node.lineno}"


def test_no_message_of_an_error_is_logged(calls):
    """It may hold output, code, and names that a guest or caller chose; `log_reason` has our own words only."""
    for name, node, event in calls:
        for keyword in node.keywords:
            messages = {
                ast.unparse(part)
                for part in ast.walk(keyword.value)
                if (isinstance(part, ast.Attribute) and part.attr in {"message", "value", "stderr", "stdout"})
                or (isinstance(part, ast.Call) and ast.unparse(part) in {"str(error)", "repr(error)"})
            }
            assert not messages, f"{name}:{node.lineno} logs {messages} of {event.name}"


# Errors whose `reason` is logged unless `logged` replaces it.
LOGGED_REASONS = {"SandboxStartError", "TemplateError", "ForkError", "CheckpointError"}


def test_a_reason_in_words_of_others_is_replaced_in_the_log(logging_modules):
    """The errors of making, forking and keeping sandboxes; of `OSError`, the words are those of the host."""
    found = 0

    for name, module in logging_modules.items():
        for node in module.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in LOGGED_REASONS:
                given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                is_foreign = re.search(
                    r"\bstr\(|\brepr\(|\.(?:message|value|reason)\b|\bjoin\(", given["reason"]
                )

                if is_foreign:
                    found += 1
                    assert "logged" in given or name in OF_THE_HOST, (
                        f"{name}:{node.lineno}: {given['reason']}"
                    )

    assert found > 10


def test_names_that_others_chose_are_not_in_the_reason_for_the_log():
    """Of a template, which a caller names, and of another machine, which says its version itself."""
    unknown = TemplateError(template="caller-secret", reason="no template has this name")
    assert "caller-secret" in unknown.message
    assert unknown.log_reason == "template: no template has this name"
    other = HostVersionError(asked="POST /v1/x", host_version="secret-words", server_version="1.0")
    assert "secret-words" in other.message
    assert other.log_reason == "the host daemon is of another version"


def test_each_field_is_given_somewhere(calls):
    given = defaultdict(set)
    is_open = set()

    for _, node, event in calls:
        given[event.name] |= {keyword.arg for keyword in node.keywords}
        is_open |= {event.name for keyword in node.keywords if keyword.arg is None}

    for event in EVENTS.values():
        if event is events.LOG_REPEATS or event.name in is_open:
            continue

        missing = set(event.fields) - given[event.name]
        assert not missing, f"{event.name}: no call gives {missing}"
        assert event.name in given, f"{event.name} is never logged"


def test_the_logger_of_an_event_is_that_of_its_folder(calls):
    """A few are noticed in several: what a server logs in a dialect too, and storage that fails outside of it."""
    for name, node, event in calls:
        folder = name.partition("/")[0]
        shared = {"server": {"daemon", "dialects"}, "storage": {"saved"}}.get(event.package, set())
        assert folder in {event.package, *shared}, f"{name}:{node.lineno} logs {event.name}"
        assert (SOURCE / event.package).exists()


def test_an_error_that_points_to_the_log_has_a_line_there(logging_modules):
    """A `StorageError` hints at the log: whatever function makes one logs what it leaves out."""
    made = 0

    for name, module in logging_modules.items():
        if "StorageError" not in module.text:
            continue

        for function in module.nodes:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]

                if "StorageError" in called:
                    made += 1
                    assert "events.STORAGE_FAILED.log" in called, f"{name}: {function.name}"

    assert made > 5


# Texts that send a reader to a log, and the event that is there. What each is logged with is tested beside it.
POINTING = {
    "the sandboxes are still there unless a call says otherwise; see the host's log": events.HOST_FAULT,
    "try again; the server's log says why": events.STORAGE_FAILED,
    "the server failed; its log says more under this request's id": events.REQUEST_FAILED,
    "the server failed; its log says more": events.REQUEST_FAILED,
    "The request's name in the server's log.": events.REQUEST_SERVED,
}


def test_each_text_that_points_to_a_log_has_an_event(logging_modules):
    """In messages, hints and descriptions; a new one is listed here, with a test that its line is written."""
    found = set()

    for module in logging_modules.values():
        if " log" not in module.text:
            continue

        documentation = {
            node.body[0].value
            for node in module.nodes
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        found |= {
            node.value
            for node in module.nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documentation
            if re.search(r"\b(?:its|'s|the|see the) log\b", node.value)
        }

    assert found == {*POINTING, *NOT_POINTING}


def test_no_event_is_declared_twice():
    assert len(BY_CONSTANT) == len(EVENTS)
