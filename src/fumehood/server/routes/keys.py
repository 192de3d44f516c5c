"""Routes of keys: the keys of the server with their scopes and quotas, and the usage of each.

A token is in the response that makes it and nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from fastapi import Path, Query

from fumehood.errors import ForbiddenError, KeyNotFoundError
from fumehood.log import events
from fumehood.server.auth import AnyCaller, KeysCaller, StoresOf
from fumehood.server.principal import Principal
from fumehood.server.routes.guarded import guarded_router
from fumehood.server.schemas.keys import (
    ChangeKey,
    CreateKey,
    Key,
    KeyList,
    KeyWithToken,
    RotateKey,
    UsageItem,
    UsageList,
)
from fumehood.server.schemas.problem import problems
from fumehood.server.services import Services
from fumehood.storage.keys import KeyRecord
from fumehood.storage.policy import KeyPolicy, changed, within

router = guarded_router("keys", "/v1")
_PROBLEMS = problems(401, 403, 404, 409, 413, 422)
KeyId = Annotated[str, Path(pattern=r"^[a-z0-9]{1,64}$", description="The key's id.")]
_DAYS = 30


@router.post("/keys", status_code=201, summary="Make a key", responses=_PROBLEMS)
async def create_key(wanted: CreateKey, principal: KeysCaller, services: StoresOf) -> KeyWithToken:
    """Makes a key; its token is shown in this answer only.

    A key that makes another gives it no scope and no quota beyond its own; fields that are not given are copied from
    its own.
    """
    policy = wanted.policy.policy()
    made_by = ""

    if not principal.is_owner:
        # A key with `watch` sees what its maker has.
        _check_gives(frozenset(wanted.scopes), principal, may_watch=True)
        policy = within(policy, principal.policy, wanted.policy.model_fields_set)
        made_by = principal.key_id

    made = await services.keys.create(wanted.name, scopes=wanted.scopes, policy=policy, made_by=made_by)
    services.audit.note(
        "key_made", key_id=made.record.id, by=principal.key_id, scopes=[*sorted(made.record.scopes)]
    )
    return KeyWithToken.of(made)


@router.get("/keys", summary="List the keys", responses=_PROBLEMS)
async def list_keys(principal: KeysCaller, services: StoresOf) -> KeyList:
    """Lists all keys, including revoked ones, for the server's owner.

    For a key, itself and the keys that it made, directly or not.
    """
    records = await _keys_under(principal, services)
    return KeyList(items=[Key.of(record) for record in records])


@router.get("/keys/{key_id}", summary="Describe a key", responses=_PROBLEMS)
async def get_key(key_id: KeyId, principal: KeysCaller, services: StoresOf) -> Key:
    """Describes one key."""
    await check_is_under(key_id, principal, services)
    return Key.of(await services.keys.get(key_id))


@router.patch("/keys/{key_id}", summary="Change a key", responses=_PROBLEMS)
async def change_key(key_id: KeyId, wanted: ChangeKey, principal: KeysCaller, services: StoresOf) -> Key:
    """Changes the name, the scopes or the quotas of a key, from its next request on; its token does not change.

    A key may do this only for itself and the keys that it made, directly or not, and gives no scope and no quota beyond
    its own.
    """
    await check_is_under(key_id, principal, services)
    named = wanted.model_fields_set
    changes = wanted.policy.changes()

    def change(record: KeyRecord) -> KeyRecord:
        scopes = frozenset(wanted.scopes) if "scopes" in named else record.scopes
        _check_gives(scopes - record.scopes, principal, may_watch=record.id != principal.key_id)
        own = KeyPolicy() if principal.is_owner else principal.policy
        return replace(
            record,
            name=wanted.name if "name" in named else record.name,
            scopes=scopes,
            policy=changed(record.policy, changes, own),
        )

    record = await services.keys.change(key_id, change)
    fields = sorted((named - {"policy"}) | {f"policy.{name}" for name in changes})
    events.KEY_CHANGED.log(key_id=key_id, by=principal.key_id, fields=fields)
    services.audit.note(
        "key_changed",
        key_id=key_id,
        by=principal.key_id,
        changed=list(fields),
        scopes=[*sorted(record.scopes)],
    )
    return Key.of(record)


@router.post("/keys/{key_id}/rotate", summary="Give a key a new token", responses=_PROBLEMS)
async def rotate_key(
    key_id: KeyId, wanted: RotateKey, principal: KeysCaller, services: StoresOf
) -> KeyWithToken:
    """Gives a key a new token; the old one may be valid for a while.

    A token has all rights of its key, so a key may do this only for itself and the keys that it made, directly or not.
    Without a grace period the shares of the key end too: others may know the old token, and have made shares with it.
    """
    await check_is_under(key_id, principal, services)
    rotated = await services.keys.rotate(key_id, grace_seconds=wanted.grace_seconds)

    if not wanted.grace_seconds:
        await services.shares.end_those_of(key_id)

    services.audit.note("key_rotated", key_id=key_id, by=principal.key_id, grace_seconds=wanted.grace_seconds)
    return KeyWithToken.of(rotated)


@router.delete("/keys/{key_id}", status_code=204, summary="Revoke a key", responses=_PROBLEMS)
async def revoke_key(
    key_id: KeyId,
    principal: KeysCaller,
    services: StoresOf,
    sandboxes: Annotated[
        Literal["end", "keep"],
        Query(description="Whether its sandboxes end with it, or live until their time is over."),
    ] = "end",
) -> None:
    """Ends a key at once, with its batches and its sandboxes; its usage is kept.

    The key is revoked first. If its sandboxes cannot be ended the answer is an error; repeat the request to end them.
    """
    await check_is_under(key_id, principal, services)
    await services.keys.revoke(key_id)
    await services.batches.end_of(key_id)
    ended = await _end_sandboxes(key_id, services) if sandboxes == "end" else 0
    events.KEY_REVOKED.log(key_id=key_id, by=principal.key_id, sandboxes_ended=ended)
    services.audit.note("key_revoked", key_id=key_id, by=principal.key_id, sandboxes_ended=ended)


async def _end_sandboxes(key_id: str, services: Services) -> int:
    backend = services.backend_for(Principal(key_id=key_id))
    ended = 0

    for info in await backend.list():
        ended += await backend.kill(info.id, wait=False)

    return ended


@router.get("/usage", summary="What keys have used", responses=_PROBLEMS)
async def get_usage(
    principal: AnyCaller,
    services: StoresOf,
    since: Annotated[datetime | None, Query(description="From when on; default: 30 days ago.")] = None,
    until: Annotated[datetime | None, Query(description="Up to when; default: now.")] = None,
    by: Literal["hour", "day"] = "day",
    key_id: Annotated[
        str | None, Query(pattern=r"^[a-z0-9]{1,64}$", description="Of which key; for its own, none.")
    ] = None,
) -> UsageList:
    """Sums usage by hour or day.

    A key sees its own usage and, with the scope `keys`, that of the keys that it made, directly or not; the owner of
    the server sees all usage.
    """
    end = until or datetime.now(UTC)
    begin = since or end - timedelta(days=_DAYS)
    whose = key_id if "keys" in principal.scopes else principal.key_id
    seen: set[str] | None = None

    if not principal.is_owner and whose != principal.key_id:
        seen = {record.id for record in await _keys_under(principal, services)}

    periods = await services.ledger.read(
        since=max(0.0, begin.timestamp()), until=max(0.0, end.timestamp()), key_id=whose, by=by
    )
    return UsageList(
        items=[UsageItem.of(period) for period in periods if seen is None or period.key_id in seen]
    )


def _check_gives(scopes: frozenset[str], principal: Principal, *, may_watch: bool) -> None:
    """Raises ForbiddenError if the caller lacks one of these scopes: it cannot give it to a key.

    Args:
        scopes: The scopes.
        principal: The caller.
        may_watch: Whether a caller with sandboxes may give `watch`: the key that gets it sees the sandboxes of its
            maker, which must be the caller or a key that it made. If a key could give `watch` to itself, it would see
            more sandboxes.
    """
    own = principal.scopes | ({"watch"} if may_watch and "sandboxes" in principal.scopes else set())

    if beyond := sorted(scopes - own):
        raise ForbiddenError(reason=f"a key cannot give a scope that it lacks: {', '.join(beyond)}")


async def _keys_under(principal: Principal, services: Services) -> list[KeyRecord]:
    """Returns the keys that a caller may manage: all for the owner, else its own and those made with it."""
    records = await services.keys.list()

    if principal.is_owner:
        return records

    under, found = {principal.key_id}, {principal.key_id}

    while found:
        found = {record.id for record in records if record.made_by in found} - under
        under |= found

    return [record for record in records if record.id in under]


async def check_is_under(key_id: str, principal: Principal, services: Services) -> None:
    """Raises KeyNotFoundError for a key that the caller may not manage, as for one that does not exist."""
    if principal.is_owner:
        return

    if all(record.id != key_id for record in await _keys_under(principal, services)):
        raise KeyNotFoundError(key_id=key_id)
