"""A create request of E2B's clients, as a spec of the port; a field that is not supported is refused by its name.

Pure functions.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fumehood.bounds import MIB
from fumehood.dialects.e2b.answers import NotOfferedError
from fumehood.dialects.e2b.fields import Fields
from fumehood.dialects.e2b.networks import read_network, read_port_rules
from fumehood.dialects.e2b.sandbox_words import kept_metadata, our_template
from fumehood.errors import InvalidArgumentError
from fumehood.storage.policy import KeyPolicy
from fumehood.values.limits import Limits
from fumehood.values.network import NetworkLevel
from fumehood.values.requests import SandboxSpec

DEFAULT_SECONDS = 300.0

# E2B bounds neither the time of code, which its client keeps, nor its output. The latter lies in the server's memory
# for each command of a sandbox, so it has a bound here, and dropped output is reported.
_LIMITS = Limits(wall_seconds=86_400.0, stdout_bytes=4 * MIB, stderr_bytes=4 * MIB)
_MISSING = {
    "mcp": "the MCP gateway",
    "iam": "workload identity (iam)",
    "volumeMounts": "volumes",
}


def read_spec(
    body: Fields, policy: KeyPolicy, most_network: NetworkLevel, *, are_ports_public: bool
) -> SandboxSpec:
    """Returns the sandbox that a create request asks for.

    Args:
        body: The request.
        policy: What its key may use.
        most_network: The most network that it may have.
        are_ports_public: Whether ports are reached without a token where nothing else is chosen.

    Raises:
        InvalidArgumentError: A field has no sense.
        NotOfferedError: It asks for something that does not exist here.
    """
    for name, what in _MISSING.items():
        if name in body.filled():
            raise NotOfferedError(what=what, instead=f"create the sandbox without {name}")

    rules = body.inner("network")
    template = body.text("templateID")
    on_timeout = "pause" if body.flag("autoPause") else "kill"

    if on_timeout == "pause" and body.flag("autoPauseMemory") is False:
        raise NotOfferedError(what="pauses that drop the memory", instead="a pause here keeps it")

    auto_resume = body.inner("autoResume")
    return SandboxSpec(
        template=our_template(template),
        limits=default_limits(policy),
        envs=body.strings("envVars"),
        metadata=kept_metadata(
            body.strings("metadata"), template, read_port_rules(rules, are_ports_public=are_ports_public)
        ),
        timeout_seconds=read_timeout(body) or DEFAULT_SECONDS,
        on_timeout="pause" if on_timeout == "pause" else "kill",
        auto_resume=auto_resume is not None and auto_resume.flag("enabled") is True,
        network=read_network(rules, body.flag("allow_internet_access"), most_network),
    )


def read_timeout(body: Fields) -> float | None:
    """Returns the lifetime in seconds, or None if none is given."""
    seconds = body.number("timeout")

    if seconds is not None and not 0 <= seconds <= 86_400 * 365:
        raise InvalidArgumentError(field="timeout", value=seconds, allowed="seconds from 0 to a year")

    return seconds


def default_limits(policy: KeyPolicy) -> Limits:
    """Returns the limits of a sandbox, which E2B's clients do not choose, within what its key allows."""
    allowed: dict[str, Any] = {
        item.name: _lower(getattr(_LIMITS, item.name), policy.max_limits[item.name])
        for item in fields(Limits)
        if item.name in policy.max_limits
    }
    return replace(_LIMITS, **allowed)


def _lower(wanted: float | None, maximum: float) -> float:
    return maximum if wanted is None else min(wanted, maximum)
