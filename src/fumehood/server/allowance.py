"""The quotas of one caller, the count of what all callers have used, and the CPU time of whole sandboxes.

Counting is in memory and reaches the database in batches; a request that is refused here was not begun. An execution
reports its CPU time and is charged at once. Other work in a sandbox is charged as the sandbox's total less the CPU time
that was charged before: shortly after a verb that makes the guest work, before the sandbox is killed, and for every
sandbox in turn.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import cast

from cachetools import LRUCache

from fumehood.cancellation import finish, stop
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    NetworkForbiddenError,
    QuotaError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.log import events
from fumehood.log.request_ids import noted_key
from fumehood.port.backend import Backend
from fumehood.server.metrics import ServerMetrics
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings
from fumehood.storage.policy import KeyPolicy
from fumehood.storage.usage import UsageLedger
from fumehood.values.execution import Execution
from fumehood.values.judging import DEFAULT_CASE_SECONDS, JudgeRequest
from fumehood.values.limits import Limits
from fumehood.values.network import NETWORK_LEVELS, Network, NetworkLevel, lists_only
from fumehood.values.requests import ExecuteRequest, ForkRequest, ProcessSpec, SandboxSpec
from fumehood.values.sandbox import ISOLATION_LEVELS, IsolationLevel, SandboxInfo, reaches

_REMEMBERED = 20_000
_SOON_SECONDS = 2.0
_ROUND_SECONDS = 30.0
_ANSWER_SECONDS = 5.0
_AT_END_SECONDS = 2.0


@dataclass(slots=True)
class _Account:
    """The owner of a sandbox, its CPU time charged so far, and whether it has worked since then."""

    key_id: str
    charged_seconds: float = 0.0
    has_worked: bool = False


class CpuMeter:
    """Charges the CPU time of the sandboxes that this server has made.

    Args:
        backend: The real backend, which knows the totals.
        ledger: The usage of keys.
        metrics: The metrics of the server.
    """

    def __init__(self, backend: Backend, ledger: UsageLedger, metrics: ServerMetrics) -> None:
        self._backend = backend
        self._ledger = ledger
        self._metrics = metrics
        self._accounts: LRUCache[str, _Account] = LRUCache(_REMEMBERED)

    def open(self, sandbox_id: str, key_id: str) -> None:
        """Begins to charge a new sandbox to a key."""
        self._accounts[sandbox_id] = _Account(key_id)

    def note_work(self, sandbox_id: str) -> None:
        """Notes that a sandbox works, so that its total is read again soon."""
        if (account := self._accounts.get(sandbox_id)) is not None:
            account.has_worked = True

    def charge(self, key_id: str, seconds: float, sandbox_id: str | None = None) -> None:
        """Charges the CPU time of an execution; `sandbox_id` names its sandbox if that continues to live."""
        seconds = max(0.0, seconds)
        self._metrics.cpu_seconds.inc(seconds)
        self._ledger.add(key_id, cpu_seconds=seconds)

        if sandbox_id is not None and (account := self._accounts.get(sandbox_id)) is not None:
            account.charged_seconds += seconds

    async def charge_latest(self, sandbox_id: str, answer_seconds: float = _ANSWER_SECONDS) -> None:
        """Charges the CPU time of a sandbox that was not charged yet.

        A sandbox that does not answer within `answer_seconds` is charged later, if it still lives then.
        """
        if sandbox_id not in self._accounts:
            return

        try:
            async with asyncio.timeout(answer_seconds):
                total = (await self._backend.metrics(sandbox_id)).cpu_seconds
        except (SandboxNotFoundError, SandboxClosedError):
            self._accounts.pop(sandbox_id, None)
            return
        except (FumehoodError, TimeoutError):
            return

        account = self._accounts.get(sandbox_id)

        if account is not None and total > account.charged_seconds:
            self.charge(account.key_id, total - account.charged_seconds, sandbox_id)

    async def close(self, sandbox_id: str) -> None:
        """Charges the CPU time of a sandbox before it is killed."""
        await self.charge_latest(sandbox_id, _AT_END_SECONDS)
        self._accounts.pop(sandbox_id, None)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Reads the totals of sandboxes in turn while the block runs, and once more at its end."""
        task = asyncio.create_task(self._rounds())
        try:
            yield
        finally:
            await stop(task)

    async def _rounds(self) -> None:
        loop = asyncio.get_running_loop()
        next_round = loop.time() + _ROUND_SECONDS

        while True:
            await asyncio.sleep(_SOON_SECONDS)
            is_whole = loop.time() >= next_round
            due = [name for name, account in self._accounts.items() if is_whole or account.has_worked]

            if is_whole:
                next_round = loop.time() + _ROUND_SECONDS

            for sandbox_id in due:
                if (account := self._accounts.get(sandbox_id)) is None:
                    continue

                account.has_worked = False
                await self.charge_latest(sandbox_id)


_RETRY_SECONDS = 1.0


class Spending:
    """The current use of all keys: running executions, sandboxes that are being made, and the usage ledger."""

    def __init__(self, ledger: UsageLedger, metrics: ServerMetrics, cpu: CpuMeter) -> None:
        self.ledger = ledger
        self.metrics = metrics
        self.executions: dict[str, int] = {}
        # Number of sandboxes, by key; two numbers for each key that has ever made one.
        self.creations_begun: Counter[str] = Counter()
        self.creations_ended: Counter[str] = Counter()
        self.cpu = cpu


@dataclass(frozen=True, slots=True)
class Allowance:
    """The quotas of one caller.

    Args:
        principal: The caller.
        spending: The current use of all keys.
        backend: The real backend, which knows how many sandboxes the caller has.
        settings: Lifetimes of sandboxes.
        is_counted: Whether the user of this allowance itself counts its executions, as one.
    """

    principal: Principal
    spending: Spending
    backend: Backend
    settings: ServerSettings
    is_counted: bool = False

    def bounded(self, spec: SandboxSpec) -> SandboxSpec:
        """Returns the spec with a lifetime and limits within the bounds of the key.

        Raises:
            LimitForbiddenError: The request exceeds a bound of the key.
            InvalidArgumentError: The request names a weaker isolation than the server allows.
        """
        self.check_network(spec.network)
        return replace(
            spec,
            limits=self.principal.policy.limits_within(spec.limits, spec.chosen_limits),
            timeout_seconds=self.bounded_seconds(spec.timeout_seconds),
            isolation=self.bounded_isolation(spec.isolation),
        )

    def bounded_execution(self, request: ExecuteRequest, limits: Limits | None = None) -> ExecuteRequest:
        """Returns the request with a time limit within the bounds of the key.

        Args:
            request: The code to run.
            limits: The limits of the sandbox; the policy may have become stricter since it was made.

        Raises:
            LimitForbiddenError: The request exceeds a bound of the key.
        """
        policy = self.principal.policy
        seconds = policy.seconds_within(request.wall_seconds, None)

        if seconds is None and limits is not None:
            bounded = policy.seconds_within(limits.wall_seconds, limits.wall_seconds)
            seconds = bounded if bounded != limits.wall_seconds else None

        return request if seconds == request.wall_seconds else replace(request, wall_seconds=seconds)

    def bounded_judge(self, request: JudgeRequest) -> JudgeRequest:
        """Returns the request with a time limit for each case within the bounds of the key.

        Raises:
            LimitForbiddenError: The request exceeds a bound of the key.
        """
        seconds = self.principal.policy.seconds_within(request.wall_seconds, DEFAULT_CASE_SECONDS)
        assert seconds is not None
        return request if seconds == request.wall_seconds else replace(request, wall_seconds=seconds)

    def bounded_command(self, spec: ProcessSpec) -> ProcessSpec:
        """Returns the command with a time limit within the bounds of the key.

        Clients of dialects send default times with every command, so a longer one is cut and not refused.
        """
        maximum = self.principal.policy.max_limits.get("wall_seconds")

        if maximum is None or (spec.timeout_seconds is not None and spec.timeout_seconds <= maximum):
            return spec

        return replace(spec, timeout_seconds=maximum)

    def bounded_isolation(self, isolation: IsolationLevel | None) -> IsolationLevel:
        """Returns the isolation floor of a sandbox: a request may raise the operator's level, never lower it.

        Raises:
            InvalidArgumentError: The request names a weaker level than the server allows.
        """
        least = cast("IsolationLevel", self.settings.isolation)

        if isolation is None:
            return least

        if not reaches(isolation, least):
            allowed = ", ".join(level for level in ISOLATION_LEVELS if reaches(level, least))
            raise InvalidArgumentError(
                field="isolation", value=isolation, allowed=f"{allowed}: this server makes nothing weaker"
            )

        return isolation

    def check_network(self, network: Network) -> None:
        """Raises NetworkForbiddenError when a sandbox of this caller may not be given such a network."""
        allowed = most_network(self.settings, self.principal.policy)

        if NETWORK_LEVELS.index(network.level) > NETWORK_LEVELS.index(allowed):
            raise NetworkForbiddenError(asked=network.level, allowed=allowed)

        rule = lists_only(network, self.settings.private_networks)

        if rule is not None:
            raise NetworkForbiddenError(asked=rule, allowed="addresses that are public")

    def bounded_seconds(self, timeout_seconds: float | None) -> float | None:
        """Returns the requested lifetime, cut to the server's maximum; None means no limit."""
        wanted = timeout_seconds or self.settings.sandbox_seconds or math.inf
        seconds = min(wanted, self.settings.max_sandbox_seconds or math.inf)
        return None if seconds == math.inf else seconds

    def bounded_fork(self, request: ForkRequest) -> ForkRequest:
        """Returns the fork request with a lifetime; inherited limits are within the bounds already."""
        if request.timeout_seconds == "inherit":
            return request

        return replace(request, timeout_seconds=self.bounded_seconds(request.timeout_seconds))

    def check_like(self, info: SandboxInfo) -> None:
        """Raises LimitForbiddenError or NetworkForbiddenError if the caller may not have one more such sandbox."""
        self.principal.policy.check_limits(info.limits)
        self.check_network(info.network)

    @asynccontextmanager
    async def new_sandboxes(self, count: int = 1) -> AsyncGenerator[None, None]:
        """Reserves places for this many more sandboxes while the block makes them: for all of them, or for none.

        Raises:
            QuotaError: The caller would have more sandboxes than allowed.
        """
        key_id, maximum = self.principal.key_id, self.principal.policy.max_sandboxes
        begun, ended = self.spending.creations_begun, self.spending.creations_ended

        if maximum is not None:
            # `list` may take a while: a sandbox that ends meanwhile is still among those that were counted.
            ended_before = ended[key_id]
            living = len(await self.backend.list(key_id)) + begun[key_id] - ended_before

            if living + count > maximum:
                raise used_up("sandboxes", living, maximum, _RETRY_SECONDS)

        begun[key_id] += count
        try:
            yield
        finally:
            ended[key_id] += count

        self.spending.metrics.sandboxes_started.inc(count)
        self.spending.ledger.add(key_id, sandboxes=count)

    async def settle(self, *made: SandboxInfo) -> None:
        """Ends new sandboxes again if the caller has more than allowed, because several servers made some at once.

        Servers with the same machines count before they make one, and may all find the last place free. So each counts
        once more afterwards: the last one to count sees all.

        Raises:
            QuotaError: The caller has more sandboxes than allowed; the new ones are ended.
        """
        key_id, maximum = self.principal.key_id, self.principal.policy.max_sandboxes

        if maximum is None or not (self.settings.cluster or self.settings.host_socket):
            return

        try:
            living = len(await self.backend.list(key_id))

            if living > maximum:
                raise used_up("sandboxes", living - len(made), maximum, _RETRY_SECONDS)
        except BaseException:
            await finish(self._end(made))
            raise

    async def _end(self, made: Sequence[SandboxInfo]) -> None:
        for info in made:
            with suppress(FumehoodError):
                await self.backend.kill(info.id, wait=False)

    def begin(self, count: int = 1) -> None:
        """Counts `count` executions that begin now against the daily quota.

        Raises:
            QuotaError: The caller has used up its daily quota, or these executions would exceed it.
        """
        if self.is_counted:
            return

        try:
            self.spending.ledger.begin_execution(self.principal.key_id, self.principal.policy, count)
        except QuotaError as error:
            raise used_up(error.quota, error.used, error.maximum, error.retry_after_seconds) from None

    @contextmanager
    def execution(self, count: int = 1) -> Iterator[None]:
        """Counts this many executions, and holds one of the caller's places for executions during the block.

        Raises:
            QuotaError: The caller runs the maximum number of executions, or has used up its daily quota.
        """
        if self.is_counted:
            yield
            return

        key_id, policy = self.principal.key_id, self.principal.policy
        running = self.spending.executions
        now = running.get(key_id, 0)

        if policy.max_concurrent_executions is not None and now >= policy.max_concurrent_executions:
            raise used_up("executions at once", now, policy.max_concurrent_executions, _RETRY_SECONDS)

        self.begin(count)
        running[key_id] = now + 1
        try:
            yield
        finally:
            _lower(running, key_id)

    def count(self, execution: Execution, sandbox_id: str | None = None) -> None:
        """Counts the usage of an execution; `sandbox_id` names its sandbox if that continues to live."""
        usage = execution.usage
        outcome = execution.error.kind if execution.error else "ok"
        self.spending.metrics.executions.labels(outcome).inc()
        cpu_seconds = usage.user_cpu_seconds + usage.system_cpu_seconds
        self.spending.cpu.charge(self.principal.key_id, cpu_seconds, sandbox_id)
        self.spending.ledger.add(
            self.principal.key_id,
            errors=int(execution.error is not None),
            wall_seconds=usage.wall_seconds,
            bytes_in=usage.bytes_in,
            bytes_out=usage.bytes_out,
        )


def used_up(quota: str, used: float, maximum: float, retry_after_seconds: float | None = None) -> QuotaError:
    """Logs which quota the caller of the request has used up, and returns the error."""
    events.QUOTA_REFUSED.log(key_id=noted_key(), quota=quota, used=used, maximum=maximum)
    return QuotaError(quota=quota, used=used, maximum=maximum, retry_after_seconds=retry_after_seconds)


def most_network(settings: ServerSettings, policy: KeyPolicy) -> NetworkLevel:
    """Returns the most network that a key's sandboxes may have: the stricter one of the server's and the policy's."""
    levels = [settings.max_network, policy.max_network or NETWORK_LEVELS[-1]]
    return cast("NetworkLevel", min(levels, key=NETWORK_LEVELS.index))


def _lower(counts: dict[str, int], key_id: str) -> None:
    counts[key_id] -= 1

    if not counts[key_id]:
        del counts[key_id]
