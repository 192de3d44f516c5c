"""Shares: made, listed and revoked where a server shows them; refused, with the way out, where none does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from fumehood import InvalidArgumentError


def test_a_share_is_made_opened_listed_and_revoked(face, sandbox):
    """Its address opens it until it is revoked, and stands in the answer that makes it alone."""
    if not face.is_remote:
        with pytest.raises(InvalidArgumentError, match="url is missing"):
            sandbox.shares.create()
        with pytest.raises(InvalidArgumentError, match="url is missing"):
            sandbox.shares.list()
        return

    assert sandbox.shares.list() == []
    made = sandbox.shares.create(["record", "variables"], seconds=3600)
    assert (made.sandbox_id, made.context_id, made.shows) == (sandbox.id, "default", ("record", "variables"))
    assert made.ends_at - made.created_at == timedelta(hours=1)
    assert made.until_at is None

    address, secret = made.url.split("#")
    assert secret not in repr(made)
    place = address.replace("/share/", "/v1/shares/")
    opened = httpx2.post(f"{place}/open", json={"secret": secret}, timeout=60)
    assert opened.json()["share"]["shows"] == ["record", "variables"]

    until = datetime.now(UTC)
    ended = sandbox.shares.create(until_at=until)
    assert ended.until_at is not None
    assert abs(ended.until_at - until) < timedelta(seconds=1)
    listed = sandbox.shares.list()
    assert {share.id: share.openings for share in listed} == {made.id: 1, ended.id: 0}
    assert {share.url for share in listed} == {""}

    sandbox.shares.revoke(made)
    sandbox.shares.revoke(ended.id)
    sandbox.shares.revoke(ended.id)
    assert sandbox.shares.list() == []
    assert httpx2.post(f"{place}/open", json={"secret": secret}, timeout=60).status_code in (401, 403)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"shows": "record"}, "shows"),
        ({"shows": ["everything"]}, "shows"),
        ({"shows": []}, "shows"),
        ({"seconds": 5}, "seconds"),
        ({"until_at": datetime(2026, 1, 1)}, "until_at"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_a_request(sandbox, given, field):
    """The error names the argument."""
    with pytest.raises(InvalidArgumentError) as refused:
        sandbox.shares.create(**given)

    assert refused.value.field == field
