"""The description of the native API is true: schemathesis sends what it allows and what it forbids, and finds nothing.

It reads the answers too: statuses, types, headers and bodies must be described, and nothing may be a server's fault.
By chance here, with as many cases as there is time for; `make fuzz` also tries every value at a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import httpx2
import pytest

_EVERY = bool(os.environ.get("EVERY_CASE"))
_PHASES = "coverage,fuzzing" if _EVERY else "fuzzing"
# Each operation is tried at least once and at most so often; in between the time decides, by how long one case takes
# with the start of the program: two seconds on a machine that does nothing else.
_MOST_CASES = 3 if _EVERY else 2
_BUDGET_SECONDS = 100 if _EVERY else 5
_MOST_SECONDS = 1200 if _EVERY else 400
# Only the test itself is stopped by its time-out: between tests that would end the whole run.
_STOPPED = pytest.mark.timeout(_MOST_SECONDS + 20, func_only=True)
_CONFIG = """
[parameters]
"path.sandbox_id" = "{sandbox_id}"
"path.context_id" = "default"

[generation]
deterministic = true

# Valid by its form, and yet refused with a reason: an opaque cursor that is none of ours, names that the file system
# finds too long, `stdin` together with `allow_input`, parts of a form that are no files, rules that are none.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "401", "403", "404", "409", "410", "429"]

[[operations]]
include-path-regex = "^/v1/sandboxes$|/network$|/files|/tools$|/commands$"

[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "401", "403", "404", "409", "410", "422", "429"]

# A language that the template of the sandbox lacks.
[[operations]]
include-path-regex = "/executions$|/contexts$"

[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "304", "400", "401", "403", "404", "409", "410", "422", "429"]
"""


@pytest.fixture(scope="module")
def described(server):
    answer = httpx2.get(f"{server.url}/openapi.json", headers=server.headers, timeout=60)
    assert answer.status_code == 200
    return answer.json()


def operations(described):
    for path, verbs in described["paths"].items():
        if path.startswith("/v1/sandboxes") and "{port}" not in path:
            for verb, operation in verbs.items():
                yield f"{verb} {path}", operation


def test_every_operation_is_described(described):
    """In words, with a model of each answer, and with what it refuses."""
    for name, operation in operations(described):
        assert operation["summary"], name
        assert operation["description"], name
        assert {"401", "403", "422"} <= set(operation["responses"]), name
        assert operation["security"], name

        for status, answer in operation["responses"].items():
            assert answer["description"], (name, status)

            if status >= "400":
                assert list(answer["content"]) == ["application/problem+json"], (name, status)


def test_every_reference_leads_somewhere(described):
    """No model is named that the description does not hold."""
    text = json.dumps(described)
    named = {part.partition('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(described["components"]["schemas"])
    assert {"ExecutionLine", "CommandLine", "WatchLine", "Problem"} <= named


@pytest.fixture(scope="module")
def cases(server, tmp_path_factory):
    """How many cases of each operation there is time for."""
    begun = time.monotonic()
    examine(server, tmp_path_factory.mktemp("pace"), "unknown", 1, "--include-path-regex", "/timeout$")
    return max(1, min(_MOST_CASES, int(_BUDGET_SECONDS / (time.monotonic() - begun))))


def examine(server, tmp_path, sandbox_id, cases, *choice):
    """Lets schemathesis examine some operations, and gives what it reports."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(_CONFIG.format(sandbox_id=sandbox_id))
    argv = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run"]
    argv += [f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {server.token}"]
    argv += ["--phases", _PHASES, "--max-examples", str(cases), "--request-timeout", "60"]
    argv += ["--no-color", *choice]
    return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=_MOST_SECONDS)


def report(text):
    """What it has found, long values cut short."""
    found = text.partition("= FAILURES =")[2] or text.partition("= ERRORS =")[2]
    return "\n".join(line[:300] for line in found.splitlines())


@_STOPPED
def test_schemathesis_finds_nothing_in_a_living_sandbox(server, api, place, cases, tmp_path):
    """All that works in a sandbox; what ends or stops it, and streams without an end, are examined apart."""
    apart = "/network|/checkpoints|/judge|/ports|/tunnels|/timeout$|/pause$|/restart$|/watch$|{sandbox_id}$"
    apart += "|/forks$|/adopt$|/save$|/load$|/events$|/audit$"
    sandbox_id = place.rpartition("/")[2]
    chosen = ("--include-path-regex", "^/v1/sandboxes", "--exclude-path-regex", apart)
    done = examine(server, tmp_path, sandbox_id, cases, *chosen)
    assert done.returncode == 0, report(done.stdout)
    assert api.get(place).status_code == 200


@_STOPPED
@pytest.mark.parametrize("part", ["/network|/audit$", "/checkpoints|/judge"])
def test_schemathesis_finds_nothing_in_a_part(server, api, place, cases, tmp_path, part):
    """Rules, and the record, which grows with what is asked; points to go back to; programs to judge."""
    done = examine(server, tmp_path, place.rpartition("/")[2], cases, "--include-path-regex", part)
    assert done.returncode == 0, report(done.stdout)
    assert api.get(place).status_code == 200


@_STOPPED
def test_schemathesis_finds_nothing_where_no_sandbox_is(server, cases, tmp_path):
    """What ends or stops a sandbox, and streams without an end."""
    chosen = "/timeout$|/pause$|/restart$|/watch$|/forks$|/adopt$|/save$|/events$|"
    chosen += "^/v1/sandboxes/{sandbox_id}$"
    # That of all sandboxes has no end whatever is asked.
    but = ("--exclude-path-regex", "^/v1/events$")
    done = examine(server, tmp_path, "unknown", cases, "--include-path-regex", chosen, *but)
    assert done.returncode == 0, report(done.stdout)
