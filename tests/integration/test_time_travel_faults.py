"""Going back when something is killed in the middle: each part, at each step.

The seams are the host's own: what asks init and what asks a checkpoint is wrapped, and kills at that moment. Whatever
dies, the caller gets an error of the tree or a right state, and nothing is left, inside or on the host.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import until

from fumehood import (
    FumehoodError,
    Limits,
    Network,
    Sandbox,
    SandboxClosedError,
    SandboxStartError,
    failpoints,
)
from fumehood.assemble import local_backend
from fumehood.engine.audit_records import AuditRecords
from fumehood.engine.contexts.checkpoint_channel import CheckpointChannel
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.sandbox import LiveSandbox
from fumehood.engine.time_travel.checkpoints import LiveCheckpoints
from fumehood.engine.time_travel.snapshots import LiveSnapshots
from fumehood.errors import ForkError
from fumehood.portal import call, shared_portal

from . import census

OLD, NEW = "(1, 'one')", "(2, 'two')"
STATE = "(globals().get('x'), open('f').read())"
SET_NEW = "x = 2; _ = open('f', 'w').write('two')"
VICTIMS = ("context", "checkpoint", "revived", "init")


class Killer:
    """Kills one of the parts at one step, once."""

    def __init__(self, step: str, victim: str, *, after: bool) -> None:
        self.step = step
        self.victim = victim
        self.after = after
        self.has_killed = False
        self.lines: list[CheckpointChannel] = []
        self.revived: list[int] = []
        self.context: int | None = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wraps what the host does."""
        fork, ask, revive = LiveCheckpoints._fork, LiveSnapshots._ask, CheckpointChannel.revive
        killer = self

        async def forking(checkpoints: Any, process: Any, line: CheckpointChannel) -> Any:
            killer.lines.append(line)
            killer.context = process.link.pid
            killer.sandbox = checkpoints._sandbox
            return await killer.around("fork", lambda: fork(checkpoints, process, line))

        async def asking(snapshots: Any, verb: str, **arguments: Any) -> Any:
            killer.sandbox = snapshots._ask_init.__self__
            return await killer.around(verb, lambda: ask(snapshots, verb, **arguments))

        async def reviving(line: CheckpointChannel, link: Any) -> Any:
            async def noted() -> Any:
                guest = await revive(line, link)

                if guest is not None:
                    killer.revived.append(guest.pid)

                return guest

            return await killer.around("revive", noted)

        monkeypatch.setattr(LiveCheckpoints, "_fork", forking)
        monkeypatch.setattr(LiveSnapshots, "_ask", asking)
        monkeypatch.setattr(CheckpointChannel, "revive", reviving)

    async def around(self, step: str, work: Callable[[], Any]) -> Any:
        """Does the step, and kills before or after it."""
        if step == self.step and not self.after:
            await self.kill()

        done = await work()

        if step == self.step and self.after:
            await self.kill()

        return done

    async def kill(self) -> None:
        """Kills the victim, if there is one by now."""
        if self.has_killed:
            return

        if self.victim == "init":
            self.has_killed = True
            signal.pidfd_send_signal(self.sandbox.guest._pidfd, signal.SIGKILL)
            return

        pids = {
            "context": [self.context],
            "checkpoint": [line.pid for line in self.lines],
            "revived": self.revived,
        }[self.victim]

        for pid in pids:
            if pid is not None:
                self.has_killed = True
                await self.sandbox.signal_context(pid, signal.SIGKILL)


def checkpoint(sandbox: Sandbox) -> str:
    """Makes one while the new state is there."""
    sandbox.run_code(SET_NEW)
    sandbox.checkpoint("new")
    return NEW


def roll_back(sandbox: Sandbox) -> str:
    """Goes back to the old state."""
    sandbox.checkpoint("old")
    sandbox.run_code(SET_NEW)
    sandbox.rollback("old")
    return OLD


def transaction_that_fails(sandbox: Sandbox) -> str | None:
    """Is undone."""
    execution = sandbox.run_code(f"{SET_NEW}; 1 / 0", transactional=True, changes=True)
    assert execution.transaction is not None
    assert execution.transaction.outcome == "rolled_back"
    return "(None, 'one')" if execution.state_lost else OLD


def transaction_that_stays(sandbox: Sandbox) -> str | None:
    """Stays, unless its context was killed meanwhile."""
    execution = sandbox.run_code(SET_NEW, transactional=True, changes=True)
    assert execution.transaction is not None

    if execution.transaction.outcome == "committed":
        return None if execution.state_lost else NEW

    return "(None, 'one')" if execution.state_lost else OLD


def judge(sandbox: Sandbox) -> str:
    """Leaves the sandbox as it was."""
    sandbox.judge("open('f', 'w').write('judged'); print(input())", [("1", "1"), ("2", "2")], timeout=5.0)
    return OLD


# The steps that each takes.
VERBS = {
    checkpoint: ("fork", "take_snapshot"),
    roll_back: ("revive", "restore_snapshot"),
    transaction_that_fails: (
        "fork",
        "take_snapshot",
        "compare_snapshot",
        "revive",
        "restore_snapshot",
        "drop_snapshot",
    ),
    transaction_that_stays: ("compare_snapshot", "drop_snapshot"),
    judge: ("fork", "take_snapshot", "revive", "restore_snapshot", "drop_snapshot"),
}
# What may be found after an error: the state before or after the verb, never half of each. A context that was killed
# has no variables, with the files of either side.
WHOLE = {OLD, NEW, "(None, 'one')", "(None, 'two')"}


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_nothing_goes_half_way(
    monkeypatch: pytest.MonkeyPatch, verb: Callable[[Sandbox], Any], victim: str
) -> None:
    """Before and after each step of the verb."""
    call(local_backend().wait_warm)
    loop = shared_portal().loop
    before = census.open_resources(loop)

    for step, after in itertools.product(VERBS[verb], (False, True)):
        killer = Killer(step, victim, after=after)

        with monkeypatch.context() as patch, Sandbox(limits=Limits(grace_seconds=0.5)) as sandbox:
            sandbox.run_code("x = 1; _ = open('f', 'w').write('one')")
            processes = sandbox.get_metrics().processes
            killer.install(patch)
            _carry_out(verb, sandbox, killer)
            patch.undo()
            _leaves_nothing(sandbox, processes)

    call(local_backend().wait_warm)
    assert census.excess(lambda: census.open_resources(loop), before) == {}


def _carry_out(verb: Callable[[Sandbox], Any], sandbox: Sandbox, killer: Killer) -> None:
    where = f"{killer.victim} killed at {killer.step}"
    try:
        expected = verb(sandbox)
    except SandboxClosedError:
        assert killer.victim == "init", where
        return
    except FumehoodError:
        if not killer.has_killed:
            raise

        expected = None

    if killer.victim == "init" and killer.has_killed:
        return

    look = sandbox.run_code(STATE)
    # What was killed while it was idle is noticed by whoever comes next.
    found = sandbox.run_code(STATE).text if look.state_lost else look.text

    if expected is not None and not killer.has_killed:
        assert found == expected, where
    elif expected is not None and killer.victim != "context":
        assert found in (expected, "(None, 'two')" if expected == NEW else "(None, 'one')"), where
    else:
        assert found in WHOLE, where


def _leaves_nothing(sandbox: Sandbox, processes: int) -> None:
    try:
        for info in sandbox.list_checkpoints():
            sandbox.drop_checkpoint(info)

        # Each snapshot holds the files under leases; init has number 1.
        leases = sandbox.run_code("[line for line in open('/proc/locks') if 'READ 1 ' in line]").text
        assert leases == "[]"
        # What was killed a moment ago may be on its way.
        until(lambda: sandbox.get_metrics().processes <= processes)
    except SandboxClosedError:
        return


_WRITTEN = "written-by-the-guest"


def test_a_fork_whose_context_ends_before_it_is_ready_is_none(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh one in its place would be without the state; the control is the same fork, left alone.

    What the context has written is in the error and in no line of the log.
    """

    async def end_it(fork: LiveSandbox) -> None:
        coming = fork.contexts.first.coming
        fork.guest.first_context.kill()
        await asyncio.wait([coming])

    with Sandbox() as parent:
        parent.run_code("x = 1")
        monkeypatch.setattr(ContextConnection, "early_output", lambda _self: _WRITTEN)

        with (
            failpoints.arm("fork.files", end_it),
            pytest.raises(ForkError, match=f"not .* ready: {_WRITTEN}"),
        ):
            parent.fork()

        assert "go on: the context (python) did not become ready" in caplog.text
        assert _WRITTEN not in caplog.text
        child = parent.fork()

        with child:
            assert child.run_code("x").text == "1"


def test_a_fork_that_ends_before_all_are_handed_out_is_reported() -> None:
    """Else it would be listed for ever: its end is over before anybody keeps a list."""
    supervisor = local_backend()._supervisor
    ended: list[LiveSandbox] = []

    async def end_first(fork: LiveSandbox) -> None:
        # The other one waits here until nothing of the first is left.
        if not ended:
            ended.append(fork)
            fork.end("died")

        await asyncio.shield(ended[0].guest.ended)

    with Sandbox() as parent:
        before = supervisor.capacity().sandboxes

        with failpoints.arm("fork.ready", end_first), pytest.raises(ForkError, match="has ended"):
            parent.forks(2)

        until(lambda: supervisor.capacity().sandboxes == before)
        child = parent.fork()
        child.kill()


def test_a_fork_whose_record_cannot_be_begun_takes_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of its audit record cannot be made, say."""
    supervisor = local_backend()._supervisor
    begin = AuditRecords.begin
    begun: list[str] = []

    def refuse_second(
        records: AuditRecords, sandbox: LiveSandbox, spec: Any, parent_id: str | None = None
    ) -> None:
        begun.append(sandbox.id)

        if len(begun) == 2:
            raise SandboxStartError(step="open its audit file", reason="no space left")

        begin(records, sandbox, spec, parent_id)

    with Sandbox() as parent:
        before = supervisor.capacity().sandboxes

        with monkeypatch.context() as patch:
            patch.setattr(AuditRecords, "begin", refuse_second)

            with pytest.raises(ForkError, match="no space left"):
                parent.forks(3)

        assert len(begun) == 2
        until(lambda: supervisor.capacity().sandboxes == before)
        assert {info.id for info in Sandbox.list()} & set(begun) == set()


def test_the_record_of_a_fork_names_the_network_that_it_has() -> None:
    """That of its parent may have been changed since its parent came to be."""
    with Sandbox() as parent:
        parent.set_network(Network(allow=["example.com"]))
        child = parent.fork()

        with child:
            described = child.audit_log().entries[0].fields["network"]
            assert described["level"] == child.get_info().network.level != "none"
