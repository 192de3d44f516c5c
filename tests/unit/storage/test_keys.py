"""Keys: what verifies, what does not, and how soon a revocation counts."""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from fumehood.bounds import GIB
from fumehood.errors import InvalidArgumentError, KeyNotFoundError, LimitForbiddenError, StorageError
from fumehood.storage.keys import Keys
from fumehood.storage.policy import KeyPolicy, as_json, changed, from_json
from fumehood.storage.tables import KEYS
from fumehood.values.limits import Limits

from .scenes import opened

POLICY_OF_OWNER = KeyPolicy()
POLICY = KeyPolicy(
    max_sandboxes=3,
    max_concurrent_executions=2,
    executions_per_day=100,
    cpu_seconds_per_day=12.5,
    max_limits={"memory_bytes": GIB, "wall_seconds": 1.5},
    expires_at=1_900_000_000.0,
)


async def test_a_key_verifies_by_its_token(database_url, clock):
    async with opened(database_url) as database:
        keys = Keys(database, clock=clock)
        new = await keys.create("Grüße 🧪", scopes=["execute"], policy=POLICY)

        assert re.fullmatch(rf"fh_{new.record.id}_[A-Za-z0-9_-]{{43}}", new.token)
        assert await keys.verify(new.token) == new.record
        assert await Keys(database, clock=clock).verify(new.token) == new.record
        assert new.record.policy == POLICY
        assert new.record.scopes == {"execute"}
        assert await keys.list() == [new.record]


async def test_tokens_differ_and_none_is_stored(database_url):
    """Neither a token nor the secret part of one is anywhere in the table."""
    async with opened(database_url) as database:
        keys = Keys(database)
        made = [await keys.create("k") for _ in range(20)]
        await keys.rotate(made[0].record.id, grace_seconds=60)

        async with database.reading("looking") as connection:
            stored = repr((await connection.execute(select(KEYS))).all())

    assert len({new.token for new in made}) == len({new.record.id for new in made}) == 20
    assert not any(new.token[16:] in stored for new in made)


ODD = [
    None, 5, b"fh_", [], {}, "", " ", "fh_", "fh__", "\x00", "é" * 59, "\ud800" * 59, "fh_" + "a" * 56,
    "x" * 10_000_000,
    "fh_abcdefghijkl_" + "\x00" * 43, "fh_abcdefghijkl_" + "٣" * 43, "fh_ABCDEFGHIJKL_" + "a" * 43,
    "fh_abcdefghijkl_" + "a" * 42 + "\n", "fh_" + "'" * 12 + "_" + "a" * 43, "fh_abcdefghijkl_" + "a" * 43,
]  # fmt: skip


async def test_odd_tokens_are_answered_like_wrong_ones(database_url):
    """Whatever is sent as a token, the answer is that there is no such key."""
    async with opened(database_url) as database:
        keys = Keys(database)
        token = (await keys.create("k")).token
        near = [token[:-1], token + "a", token.upper(), f" {token}", f"{token}\n", token[:-1] + "\x00"]
        near += [token[:16] + "".join(reversed(token[16:])), "fh_aaaaaaaaaaaa_" + token[16:]]

        assert [await keys.verify(odd) for odd in [*ODD, *near]] == [None] * len([*ODD, *near])
        assert await keys.verify(token) is not None


async def test_a_known_key_is_verified_without_the_database(database_url, clock, monkeypatch):
    """A request does not wait for a database, right or wrong token, until the answer is too old."""
    async with opened(database_url) as database:
        keys = Keys(database, remember_seconds=5, clock=clock)
        new = await keys.create("k")
        wrong = new.token[:-1] + ("a" if new.token[-1] != "a" else "b")
        assert await keys.verify(new.token)

        asked = count_reads(database, monkeypatch)
        assert await keys.verify(new.token)
        assert await keys.verify(wrong) is None
        assert asked == []

        clock.now += 5.1
        assert await keys.verify(new.token)
        assert asked == ["looking up a key"]

        # A clock that is set back makes no answer last.
        clock.now -= 1000
        assert await keys.verify(new.token)
        assert len(asked) == 2
        await keys.close()


def count_reads(database, monkeypatch) -> list[str]:
    real, asked = database.reading, []

    def reading(operation: str):
        asked.append(operation)
        return real(operation)

    monkeypatch.setattr(database, "reading", reading)
    return asked


async def test_a_revocation_counts_at_once_here_and_soon_elsewhere(database_url, clock):
    async with opened(database_url) as database:
        here, elsewhere = Keys(database, clock=clock), Keys(database, clock=clock)
        new = await here.create("k")
        assert await here.verify(new.token)
        assert await elsewhere.verify(new.token)

        await here.revoke(new.record.id)
        await here.revoke(new.record.id)
        assert await here.verify(new.token) is None
        clock.now += 5.1
        assert await elsewhere.verify(new.token) is None
        assert (await here.get(new.record.id)).revoked_at == clock.now - 5.1

        with pytest.raises(KeyNotFoundError):
            await here.rotate(new.record.id)


async def test_an_answer_that_a_revocation_overtakes_is_not_remembered(database_url, monkeypatch):
    async with opened(database_url) as database:
        keys = Keys(database)
        new = await keys.create("k")
        real, read, go_on = keys._row, asyncio.Event(), asyncio.Event()

        async def slow_row(key_id: str):
            row = await real(key_id)
            read.set()
            await go_on.wait()
            return row

        monkeypatch.setattr(keys, "_row", slow_row)
        verifying = asyncio.create_task(keys.verify(new.token))
        await read.wait()
        monkeypatch.setattr(keys, "_row", real)
        await keys.revoke(new.record.id)
        go_on.set()
        await verifying
        assert await keys.verify(new.token) is None
        await keys.close()


async def test_after_a_rotation_the_old_token_has_its_grace(database_url, clock):
    async with opened(database_url) as database:
        keys = Keys(database, clock=clock)
        first = await keys.create("k", policy=POLICY)
        second = await keys.rotate(first.record.id, grace_seconds=60)

        assert (await keys.verify(first.token)).policy == POLICY
        assert await keys.verify(second.token) == second.record
        clock.now += 60
        assert await keys.verify(first.token) is None
        assert await keys.verify(second.token)

        third = await keys.rotate(first.record.id, grace_seconds=60)
        assert [bool(await keys.verify(new.token)) for new in (first, second, third)] == [False, True, True]

        fourth = await keys.rotate(first.record.id)
        assert [bool(await keys.verify(new.token)) for new in (second, third, fourth)] == [False, False, True]

        await keys.rotate(first.record.id, grace_seconds=60)
        await keys.revoke(first.record.id)
        assert await keys.verify(fourth.token) is None
        await keys.close()


async def test_a_change_counts_at_once_and_keeps_the_token(database_url, clock):
    """Changes of one key at the same time take turns, and one that raises or comes too late stores nothing."""
    async with opened(database_url) as database:
        keys = Keys(database, clock=clock)
        made = await keys.create("k", policy=POLICY)
        key_id = made.record.id
        assert await keys.verify(made.token) == made.record

        def one_more(record):
            return replace(
                record,
                policy=changed(
                    record.policy, {"max_sandboxes": record.policy.max_sandboxes + 1}, POLICY_OF_OWNER
                ),
            )

        await asyncio.gather(*(keys.change(key_id, one_more) for _ in range(5)))
        assert await keys.verify(made.token) == replace(
            made.record, policy=replace(POLICY, max_sandboxes=POLICY.max_sandboxes + 5)
        )

        def without_scopes(record):
            return replace(record, name="nothing", scopes=frozenset())

        with pytest.raises(InvalidArgumentError):
            await keys.change(key_id, without_scopes)

        assert (await keys.get(key_id)).name == "k"
        await keys.revoke(key_id)

        for gone in (key_id, "x" * 12):
            with pytest.raises(KeyNotFoundError):
                await keys.change(gone, one_more)


def test_an_end_that_is_too_late_is_named_as_a_time() -> None:
    """Not as a number of seconds, which nobody can compare with what was sent."""
    with pytest.raises(InvalidArgumentError) as caught:
        changed(KeyPolicy(), {"expires_at": 1_900_000_001.0}, POLICY)

    assert "2030-03-17T17:46:41+00:00" in str(caught.value)
    assert "at most this key's own: 2030-03-17T17:46:40+00:00" in caught.value.hint


async def test_a_key_ends_at_its_time(database_url, clock):
    """Also while its record is in memory."""
    async with opened(database_url) as database:
        keys = Keys(database, clock=clock)
        new = await keys.create("k", policy=KeyPolicy(expires_at=clock.now + 2))
        assert await keys.verify(new.token)
        clock.now += 2
        assert await keys.verify(new.token) is None
        await keys.close()


async def test_the_last_use_is_stored_in_batches(database_url, clock):
    async with opened(database_url) as database:
        keys = Keys(database, clock=clock)
        made = [await keys.create(f"k{number}") for number in range(5)]

        for new in made[:3]:
            await keys.verify(new.token)

        assert [record.last_used_at for record in await keys.list()] == [None] * 5
        await keys.close()
        used = {record.id: record.last_used_at for record in await keys.list()}
        assert [used[new.record.id] for new in made] == [clock.now] * 3 + [None] * 2


@pytest.mark.parametrize("key_id", ["", "nothing", "abcdefghijkl", "\x00" * 12, "é" * 12, None])
async def test_a_key_that_is_not_there_is_reported(database_url, key_id):
    async with opened(database_url) as database:
        keys = Keys(database)

        for verb in (keys.get, keys.revoke, keys.rotate):
            with pytest.raises(KeyNotFoundError):
                await verb(key_id)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "\ud800", 5])
async def test_bad_names_are_refused(database_url, name):
    async with opened(database_url) as database:
        with pytest.raises(InvalidArgumentError, match="name"):
            await Keys(database).create(name)


async def test_a_policy_of_a_newer_version_is_not_read_as_no_policy(database_url):
    """A bound that is not understood is not dropped: the key does not work here."""
    async with opened(database_url) as database:
        keys = Keys(database)
        new = await keys.create("k")

        async with database.writing("ageing") as connection:
            text = '{"scopes": ["execute"], "max_moons": 1}'
            await connection.execute(update(KEYS).values(policy=text))

        with pytest.raises(StorageError):
            await keys.verify(new.token)


def test_a_policy_survives_its_form_as_json():
    assert from_json(as_json(frozenset({"keys"}), POLICY)) == (frozenset({"keys"}), POLICY, "")
    assert from_json(as_json(frozenset({"keys"}), POLICY, "abc"))[2] == "abc"


@pytest.mark.parametrize(
    "values",
    [{"max_sandboxes": -1}, {"max_sandboxes": 1.5}, {"max_concurrent_executions": "2"}, {"executions_per_day": True},
     {"cpu_seconds_per_day": float("nan")}, {"expires_at": float("inf")}, {"max_limits": {"memory": 5}},
     {"max_limits": {"memory_bytes": 1}}, {"max_limits": {"cpu_cores": None}}, {"max_limits": [1]}],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(values):
    with pytest.raises(InvalidArgumentError):
        KeyPolicy(**values)


@pytest.mark.parametrize("scopes", [[], "execute", ["fly"], ["execute", None]])
async def test_scopes_that_do_not_exist_are_refused(tmp_path, scopes):
    async with opened(f"sqlite:///{tmp_path}/fumehood.db") as database:
        with pytest.raises(InvalidArgumentError, match="scopes"):
            await Keys(database).create("k", scopes=scopes)


@pytest.mark.parametrize(
    ("bound", "limits", "is_allowed"),
    [
        ({}, Limits(memory_bytes=64 * GIB), True),
        ({"memory_bytes": GIB}, Limits(memory_bytes=GIB), True),
        ({"memory_bytes": GIB}, Limits(memory_bytes=GIB + 1), False),
        ({"cpu_seconds": 5}, Limits(cpu_seconds=None), False),
        ({"cpu_seconds": 5}, Limits(cpu_seconds=5), True),
    ],
)
def test_limits_above_the_policy_are_refused(bound, limits, is_allowed):
    expected = (
        contextlib.nullcontext()
        if is_allowed
        else pytest.raises(LimitForbiddenError, match=f"limits.{[*bound, ''][0]}")
    )

    with expected:
        KeyPolicy(max_limits=bound).check_limits(limits)
