"""The rights and quotas of a key: scopes and `KeyPolicy`, a value that is valid if it exists, and its form as JSON.

Only the bounds of the values themselves are enforced here: the tenant guard calls `check_limits`, and the usage ledger
reads the quotas.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from fumehood.bounds import BOUNDS, Bound, plain_number
from fumehood.errors import InvalidArgumentError, LimitForbiddenError
from fumehood.values.limits import Limits, check_bound
from fumehood.values.network import NETWORK_LEVELS

SCOPES = ("execute", "sandboxes", "keys", "metrics", "watch")

_DEFAULTS = Limits()
_QUOTAS = {
    "max_sandboxes": Bound(0, 1_000_000, "sandboxes", optional=True),
    "max_concurrent_executions": Bound(0, 1_000_000, "executions", optional=True),
    "executions_per_day": Bound(0, 1_000_000_000_000, "executions", optional=True),
    "cpu_seconds_per_day": Bound(0, 1e12, "seconds", whole=False, optional=True),
    "expires_at": Bound(0, 253_402_300_799, "seconds since 1970", whole=False, optional=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPolicy:
    """The quotas of a key; None is no bound.

    Attributes:
        max_sandboxes: The most sandboxes that live at the same time.
        max_concurrent_executions: The most executions under way at the same time, including stateless ones.
        executions_per_day: The most executions begun per day (UTC).
        cpu_seconds_per_day: The most CPU time per day (UTC), checked when an execution begins: one that is under way
            may exceed it.
        max_limits: Upper bounds of a sandbox's limits, by the names of the fields of `Limits`.
        expires_at: When the key ends, in seconds since 1970.
        max_network: The most network that a sandbox may be given: none, pip, listed or internet.
    """

    max_sandboxes: int | None = None
    max_concurrent_executions: int | None = None
    executions_per_day: int | None = None
    cpu_seconds_per_day: float | None = None
    max_limits: Mapping[str, float] = field(default_factory=dict)
    expires_at: float | None = None
    max_network: str | None = None

    def __post_init__(self) -> None:
        if self.max_network not in (None, *NETWORK_LEVELS):
            raise InvalidArgumentError(
                field="max_network", value=self.max_network, allowed=f"{', '.join(NETWORK_LEVELS)}, or None"
            )

        for name, bound in _QUOTAS.items():
            check_bound(name, getattr(self, name), bound)

        if not isinstance(self.max_limits, Mapping):
            raise InvalidArgumentError(field="max_limits", value=self.max_limits, allowed="limits by name")

        for name, value in self.max_limits.items():
            if name not in BOUNDS or value is None:
                raise InvalidArgumentError(field="max_limits", value=name, allowed=", ".join(BOUNDS))

            check_bound(f"max_limits.{name}", value, BOUNDS[name])

        object.__setattr__(self, "max_limits", MappingProxyType(dict(self.max_limits)))

    def check_limits(self, limits: Limits) -> None:
        """Raise LimitForbiddenError for the first of `limits` above the policy's bound."""
        for name in self.max_limits:
            self.check_limit(name, getattr(limits, name))

    def check_limit(self, name: str, value: float | None) -> None:
        """Raise LimitForbiddenError when a limit, by its name in `Limits`, is above the policy's bound."""
        maximum = self.max_limits.get(name)

        # None is no limit at all, which is above any.
        if maximum is not None and (value is None or value > maximum):
            raise LimitForbiddenError(limit=name, wanted=value, maximum=maximum)

    def limits_within(self, limits: Limits, chosen: Collection[str] = ()) -> Limits:
        """Return the limits with those that were not chosen cut to the policy's bounds.

        Args:
            limits: The requested limits.
            chosen: The names of the limits that the caller gave; limits that differ from the defaults count as chosen
                too.

        Raises:
            LimitForbiddenError: A chosen limit is above the policy's bound.
        """
        cut: dict[str, float] = {}

        for name, maximum in self.max_limits.items():
            value = getattr(limits, name)

            if name in chosen or value != getattr(_DEFAULTS, name):
                self.check_limit(name, value)
            elif value is None or value > maximum:
                cut[name] = int(maximum) if BOUNDS[name].whole else maximum

        return replace(limits, **cut) if cut else limits  # type: ignore[arg-type]  # whole where it must be

    def seconds_within(self, seconds: float | None, default: float | None) -> float | None:
        """Return the time of an execution, or of a judged case, within `max_limits.wall_seconds`.

        Args:
            seconds: The requested time; None for the sandbox's own limit.
            default: The time of a request that names none; it is cut to the bound instead of refused.

        Raises:
            LimitForbiddenError: The chosen time is above the bound.
        """
        maximum = self.max_limits.get("wall_seconds")

        if seconds is None or maximum is None or seconds <= maximum:
            return seconds

        if seconds != default:
            self.check_limit("wall_seconds", seconds)

        return maximum


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """Return `scopes` as a set; raise InvalidArgumentError for none, or for one that does not exist."""
    allowed = f"one or more of {', '.join(sorted(SCOPES))}"

    if isinstance(scopes, str):
        raise InvalidArgumentError(field="scopes", value=scopes, allowed=allowed)

    chosen = frozenset(scopes)

    unknown = chosen.difference(SCOPES)

    if not chosen or unknown:
        raise InvalidArgumentError(field="scopes", value=sorted(map(str, unknown)), allowed=allowed)

    if {"sandboxes", "watch"} <= chosen:
        # It would see two kinds of sandboxes: its own, and those that it may only look at.
        raise InvalidArgumentError(
            field="scopes",
            value="sandboxes, watch",
            allowed="one of these two: `watch` is looking without doing",
        )

    return chosen


def within(policy: KeyPolicy, own: KeyPolicy, chosen: Collection[str]) -> KeyPolicy:
    """Return the policy of a key that another key makes; fields not chosen are copied from the maker's.

    Args:
        policy: The requested policy.
        own: The policy of the maker.
        chosen: The names of the fields of `policy` that the caller gave.

    Raises:
        InvalidArgumentError: A chosen field allows more than the maker's policy.
    """
    values: dict[str, Any] = {}

    for name in _QUOTAS:
        wanted, most = getattr(policy, name), getattr(own, name)
        values[name] = wanted

        if most is not None and (wanted is None or wanted > most):
            if name in chosen:
                at_end = name == "expires_at"
                raise InvalidArgumentError(
                    field=f"policy.{name}",
                    value=_moment(wanted) if at_end and wanted is not None else wanted,
                    allowed=f"at most this key's own: {_moment(most) if at_end else plain_number(most)}",
                )

            values[name] = most

    limits = dict(policy.max_limits)

    for name, most in own.max_limits.items():
        if limits.setdefault(name, most) > most:
            raise InvalidArgumentError(
                field=f"policy.max_limits.{name}",
                value=limits[name],
                allowed=f"at most this key's own: {plain_number(most)}",
            )

    network = policy.max_network

    if own.max_network is not None:
        # None is the server's most, which may be more.
        rank = NETWORK_LEVELS.index(network) if network is not None else len(NETWORK_LEVELS)

        if rank > NETWORK_LEVELS.index(own.max_network) and "max_network" in chosen:
            raise InvalidArgumentError(
                field="policy.max_network",
                value=network,
                allowed=f"at most this key's own: {own.max_network}",
            )

        network = network or own.max_network

    return KeyPolicy(**values, max_limits=limits, max_network=network)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def changed(policy: KeyPolicy, changes: Mapping[str, Any], own: KeyPolicy) -> KeyPolicy:
    """Return `policy` with some fields changed by the holder of another policy; the other fields stay as they are.

    Args:
        policy: The policy of the key.
        changes: New values by the names of fields; None: no bound. Of `max_limits` those that are named change, and
            None removes one.
        own: The policy of the caller.

    Raises:
        InvalidArgumentError: A new value is not valid, or more than the caller has.
    """
    limits = dict(changes.get("max_limits", {}))
    removed = {name for name, value in limits.items() if value is None}
    kept = {name: value for name, value in limits.items() if value is not None}
    within(KeyPolicy(**{**changes, "max_limits": kept}), own, changes)

    for name in sorted(removed):
        if name not in BOUNDS:
            raise InvalidArgumentError(field="max_limits", value=name, allowed=", ".join(BOUNDS))

        if name in own.max_limits:
            raise InvalidArgumentError(
                field=f"policy.max_limits.{name}",
                value=None,
                allowed=f"at most this key's own: {plain_number(own.max_limits[name])}",
            )

    merged = {name: value for name, value in policy.max_limits.items() if name not in removed} | kept
    return replace(policy, **{**changes, "max_limits": merged})


def as_json(scopes: frozenset[str], policy: KeyPolicy, made_by: str = "") -> str:
    """Return the stored form of both, with the key that made this one if one did."""
    values = {name: getattr(policy, name) for name in _QUOTAS}
    values["max_network"] = policy.max_network
    made = {"made_by": made_by} if made_by else {}
    return json.dumps({"scopes": sorted(scopes), **values, "max_limits": dict(policy.max_limits), **made})


def from_json(text: str) -> tuple[frozenset[str], KeyPolicy, str]:
    """Return the values that `as_json` stored; the last is empty for a key that the server's owner made.

    Raises:
        ValueError: A field in it is unknown. An unknown bound is never ignored.
    """
    data = json.loads(text)

    try:
        scopes, made_by = check_scopes(data.pop("scopes")), str(data.pop("made_by", ""))
        return scopes, KeyPolicy(**data), made_by
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a policy: {error}") from error
