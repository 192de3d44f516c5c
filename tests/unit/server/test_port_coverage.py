"""What the verbs of the port cost: every one is classified, and none is served that is not."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fumehood.errors import ForbiddenError, QuotaError
from fumehood.port.backend import Backend
from fumehood.server.allowance import Allowance
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings
from fumehood.server.tenancy import WORK_OF, Owners, TenantBackend, Work, _forwarding, verbs_of_port
from fumehood.values.judging import JudgeRequest
from fumehood.values.looking import Family, ReadFamily, Relative
from fumehood.values.requests import ExecuteRequest, SandboxSpec
from fumehood.values.stateless import StatelessRequest

RUNNING = [verb for verb, work in WORK_OF.items() if work in (Work.RUNS, Work.BEGINS)]


class Used:
    """A ledger of a key whose day is used up."""

    def begin_execution(self, *_: object) -> None:
        raise QuotaError(quota="executions per day", used=1, maximum=1, retry_after_seconds=1)


def guard() -> TenantBackend:
    """The guard of a key whose day is used up, before a backend that must not be reached."""
    cpu = SimpleNamespace(note_work=lambda *_: None, charge_latest=_nothing)
    spending = SimpleNamespace(ledger=Used(), executions={}, cpu=cpu)
    inner = cast("Backend", SimpleNamespace(info=_nothing))
    owners = Owners(inner)
    owners._known["s"] = "key"
    principal = Principal(key_id="key")
    return TenantBackend(
        inner, owners, principal, Allowance(principal, cast("Any", spending), inner, ServerSettings())
    )


async def _nothing(*_: object) -> None:
    return None


def test_a_family_shows_a_key_its_own_alone() -> None:
    """The server's owner sees all of it."""
    begun = datetime.now(UTC)
    items = tuple(
        Relative(id=name, parent_id=None, state="running", started_at=begun, owner=owner)
        for name, owner in (("s", "key"), ("t", "other"), ("u", "key"), ("v", ""))
    )

    async def look(*_: object) -> Family:
        return Family(items=items)

    async def seen(key_id: str) -> list[str]:
        tenant = guard()
        tenant._inner = cast("Backend", SimpleNamespace(look=look))
        tenant._principal = Principal(key_id=key_id)
        return [one.id for one in (await tenant.look("s", ReadFamily())).items]

    assert asyncio.run(seen("key")) == ["s", "u"]
    assert asyncio.run(seen("owner")) == ["s", "t", "u", "v"]


def test_every_verb_of_the_port_is_classified() -> None:
    """A verb that the port gains has no entry until somebody has said what it costs."""
    assert verbs_of_port() == frozenset(WORK_OF)
    assert Backend.__abstractmethods__ - {"aclose"} <= frozenset(WORK_OF)


def test_a_verb_without_an_entry_is_refused() -> None:
    """The way to the real backend is closed to it."""

    async def go() -> None:
        async with guard()._way("something_new", "s"):
            pytest.fail("it was let through")

    with pytest.raises(ForbiddenError):
        asyncio.run(go())


def test_a_new_verb_of_the_port_is_refused_until_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that is made for a port with one more verb lets nothing of it through."""

    async def something_new(self: Backend, sandbox_id: str) -> None:
        """Do something new."""

    something_new.__isabstractmethod__ = True  # type: ignore[attr-defined]
    monkeypatch.setattr(Backend, "something_new", something_new, raising=False)
    monkeypatch.setattr(Backend, "__abstractmethods__", Backend.__abstractmethods__ | {"something_new"})
    guarded: Any = _forwarding(type("Guarded", (TenantBackend,), {}))
    known = guard()
    fresh = guarded(known._inner, known._owners, known._principal, known._allowance)

    with pytest.raises(ForbiddenError, match="something_new"):
        asyncio.run(fresh.something_new("s"))


def test_a_verb_that_is_forwarded_names_one_sandbox() -> None:
    """A second one would not be checked: such a verb is defined in the guard itself."""
    for verb in Backend.__abstractmethods__:
        method = getattr(TenantBackend, verb)

        if method.__module__ == TenantBackend.__module__ or verb == "aclose":
            continue

        first, *others = list(inspect.signature(method).parameters)[1:]
        assert first == "sandbox_id", verb
        assert not [name for name in others if name.endswith("_id") and name != "context_id"], verb


@pytest.mark.parametrize("verb", RUNNING)
def test_what_runs_code_is_refused_when_the_day_is_used_up(verb: str) -> None:
    """By each verb of the guard itself: it passes the count before it reaches the backend."""
    spec = SandboxSpec()
    code = ExecuteRequest(code="1")
    request: Any = {
        "judge": JudgeRequest(code="1", stdins=("",)),
        "load": SimpleNamespace(spec=spec),
        "run_once": StatelessRequest(spec=spec, code=code),
        "stream_once": StatelessRequest(spec=spec, code=code),
    }.get(verb, code)

    async def ask() -> None:
        method = getattr(guard(), verb)
        given: list[Any] = {
            "load": [request, "file"],
            "run_once": [request],
            "stream_once": [request],
            "save": ["s"],
        }.get(verb, ["s", request])
        answer = method(*given)

        if inspect.isasyncgen(answer):
            await anext(answer)
        else:
            await answer

    with pytest.raises(QuotaError):
        asyncio.run(ask())
