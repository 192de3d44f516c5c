"""Makes a scorecard on this machine: every harmless attack, in every kind of process, and without a sandbox.

Runs in the user's process, over the public sandbox. No attempt harms the machine where it succeeds. A row is a PASS
only where the same attempt succeeds unsandboxed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from fumehood.scorecard.card import COLUMNS, CONTROL, Card, Verdict, describe_machine
from fumehood.scorecard.host_checks import (
    HOST_CHECKS,
    OPTIONS,
    PROVES_ITSELF,
    HostCheck,
    NotApplicableError,
    describe,
)
from fumehood.scorecard.places import AttackTarget, SandboxPlace, run_batch
from fumehood.scorecard.probes import PROBES, Probe, first
from fumehood.scorecard.rows import ROWS
from fumehood.scorecard.scene import AttackFixtures, Column

Progress = Callable[[str], None]
# Amounts are counted for the whole sandbox, so one kind of process is enough.
_TIGHT_KIND = "command"
# Kinds of processes that also do the slow work.
_WHOLE_WORK = ("context", "command", "process")
_OURS = "fumehood"
_NOT_INSTALLED = "bubblewrap is not installed"


class Attempts:
    """The results of the attempts at one row, in one column.

    Args:
        row: The id of the row.
    """

    def __init__(self, row: str) -> None:
        self.row = row
        self.got: list[str] = []
        self.tried = 0
        self.reasons: list[str] = []

    def verdict(self, control: Attempts) -> Verdict:
        """Return the verdict: FAIL if an attempt succeeded, PASS if only the control had a success, else N/A."""
        if self.got:
            return Verdict("FAIL", first(self.got))

        if not self.tried or self.reasons:
            return Verdict("N/A", first(self.reasons, 2) or "not tried")

        if control.got or self.row in PROVES_ITSELF:
            return Verdict("PASS")

        return Verdict(
            "N/A", first(control.reasons, 1) or "without a sandbox this does not succeed here either"
        )


def run_scorecard(secret: str, envs: Mapping[str, str], progress: Progress) -> Card:
    """Test every harmless row on this machine.

    Args:
        secret: A text in the environment of this process since its start, and nowhere else.
        envs: That environment.
        progress: Called with the name of each test.

    Raises:
        SandboxStartError: No sandbox can be made here.
    """
    started = time.monotonic()
    progress("starting sandboxes")

    with AttackFixtures(secret, envs) as stage:
        attempts: dict[str, dict[str, Attempts]] = {}
        work: dict[str, dict[str, str]] = {}

        for name, column in stage.columns.items():
            attempts[name] = {row.id: Attempts(row.id) for row in ROWS if row.harmless}
            run_probes(column, attempts[name], progress)
            _run_host_checks(stage, column, attempts[name], progress)
            progress(f"{name}: ordinary work")
            work[name] = _do_work(column.place)

        with_option = {row: Attempts(row) for row in OPTIONS}

        for row, (option, check) in OPTIONS.items():
            progress(f"{_OURS}: {row} with {option}")
            _try(check, stage, stage.columns[_OURS], with_option[row])

        place = stage.columns[_OURS].place
        assert isinstance(place, SandboxPlace)
        machine = describe_machine(place.sandbox.get_info().isolation)

        for tried in (one for rows in attempts.values() for one in rows.values()):
            tried.got = [stage.without_names(got) for got in tried.got]

    control = attempts[CONTROL]
    verdicts = {
        name: {row: tried.verdict(control[row]) for row, tried in attempts[name].items()}
        for name in COLUMNS
        if name in attempts
    }

    for row, (option, _) in OPTIONS.items():
        remark = _remark(option, with_option[row].verdict(control[row]))
        verdicts[_OURS][row] = replace(verdicts[_OURS][row], remark=remark)

    absent = {name: _NOT_INSTALLED for name in COLUMNS if name not in attempts}
    return Card(machine, verdicts, work, absent, time.monotonic() - started)


def run_probes(column: Column, attempts: Mapping[str, Attempts], progress: Progress) -> None:
    """Run every probe in one column, in every kind of process, and keep the successful attempts."""
    for is_tight in (False, True):
        place = column.tight if is_tight else column.place
        kinds = (_TIGHT_KIND,) if is_tight and _TIGHT_KIND in place.kinds else place.kinds
        chosen = {str(number): probe for number, probe in enumerate(PROBES) if probe.tight == is_tight}
        layers = _layers(place)

        for number, probe in list(chosen.items()):
            reason = _why_not_tried(probe, place, layers)

            if reason:
                attempts[probe.row].reasons.append(reason)
                del chosen[number]

        for kind in kinds:
            progress(f"{place.name}: {kind}{' with tight limits' if is_tight else ''}")
            _judge(place, kind, chosen, attempts, column)


def _why_not_tried(probe: Probe, place: AttackTarget, layers: Mapping[str, str]) -> str:
    if not isinstance(place, SandboxPlace):
        return "it declares no set of system calls" if probe.ours and place.name != CONTROL else ""

    if probe.needs and layers.get(probe.needs) != "on":
        return f"the layer {probe.needs!r} is not on, and this would hit the machine"

    return ""


def _layers(place: AttackTarget) -> dict[str, str]:
    if not isinstance(place, SandboxPlace):
        return {}

    return {layer.name: layer.state for layer in place.sandbox.get_info().isolation.layers}


def _judge(
    place: AttackTarget,
    kind: str,
    chosen: Mapping[str, Probe],
    attempts: Mapping[str, Attempts],
    column: Column,
) -> None:
    plan = {number: (probe.name, list(probe.arguments(column.scene))) for number, probe in chosen.items()}
    try:
        answers = run_batch(place, kind, plan)
    except Exception as error:  # noqa: BLE001 - a place where nothing can be run is reported in every row
        answers = {number: {"broken": describe(error)} for number in chosen}

    for number, probe in chosen.items():
        tried = attempts[probe.row]
        answer: Any = answers.get(number, {"broken": "it said nothing"})

        if "found" not in answer:
            tried.reasons.append(f"{kind}: {probe.name} could not run: {answer['broken']}")
            continue

        tried.tried += 1
        tried.got += [
            f"{kind}: {got}" if len(place.kinds) > 1 else got for got in probe.judge(answer["found"])
        ]


def _run_host_checks(
    stage: AttackFixtures, column: Column, attempts: Mapping[str, Attempts], progress: Progress
) -> None:
    for row, checks in HOST_CHECKS.items():
        for check in checks:
            progress(f"{column.place.name}: {row}")
            _try(check, stage, column, attempts[row])


def _try(check: HostCheck, stage: AttackFixtures, column: Column, attempts: Attempts) -> None:
    try:
        attempts.got += check(stage, column)
    except NotApplicableError as reason:
        attempts.reasons.append(str(reason))
    except Exception as error:  # noqa: BLE001 - a row that could not be tested is reported; the others continue
        attempts.reasons.append(f"could not be tried: {describe(error)}")
    else:
        attempts.tried += 1


def _remark(option: str, verdict: Verdict) -> str:
    words = f"{verdict.outcome} with {option}"
    return f"{words}: {verdict.reason}" if verdict.reason else words


def _do_work(place: AttackTarget) -> dict[str, str]:
    done: dict[str, str] = {}

    for kind in place.kinds:
        try:
            found = place.probe(kind, "workloads", kind in _WHOLE_WORK)
        except Exception as error:  # noqa: BLE001 - a place where nothing can be run is reported
            found = {"all": describe(error)}

        for name, answer in found.items():
            if done.get(name, "ok") == "ok":
                done[name] = answer if answer == "ok" or len(place.kinds) == 1 else f"{kind}: {answer}"

    return done
