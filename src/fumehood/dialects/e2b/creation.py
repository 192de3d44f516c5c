"""New sandboxes: a create request and its network rules as a spec of the port, made once for each idempotency key.

A field or a rule that is not supported is refused by its name. At E2B an allow rule wins over a deny rule; here a
denial wins, so a denied address beside an allowed one stays denied. Only the sandbox's id is stored for a key: its
tokens are computed again for a repeated request.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any

from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.assemble import template_store
from fumehood.bounds import MIB
from fumehood.cancellation import complete
from fumehood.dialects.e2b.answers import NotOfferedError
from fumehood.dialects.e2b.auth import ControlCaller, SandboxTokens
from fumehood.dialects.e2b.bodies import MAX_JSON_BYTES, read_message
from fumehood.dialects.e2b.inside import InsideInterpreters
from fumehood.dialects.e2b.messages import (
    AnObject,
    ClientMessage,
    Flag,
    Seconds,
    TextMap,
    Texts,
    is_filled,
    messages_by_name,
    objects,
)
from fumehood.dialects.e2b.sandboxes import is_default_template, kept_metadata, our_template, sandbox_data
from fumehood.dialects.e2b.snapshots import SnapshotService
from fumehood.dialects.e2b.volume_mounts import MAX_MOUNTS
from fumehood.dialects.e2b.volumes import VolumeMount, Volumes
from fumehood.errors import FumehoodError, IdempotencyConflictError, InvalidArgumentError, StorageError
from fumehood.log import events
from fumehood.server.allowance import most_network
from fumehood.server.json_bodies import Text, bounded_body
from fumehood.server.port_rules import PortRules
from fumehood.server.settings import ServerSettings
from fumehood.storage.idempotency import (
    Begun,
    Idempotency,
    OtherRequest,
    StillRunning,
    StoredReply,
    digest_of,
)
from fumehood.storage.policy import KeyPolicy
from fumehood.templates.recipe import is_store_name
from fumehood.values.limits import Limits
from fumehood.values.network import MAX_RULES, NETWORK_LEVELS, Network, NetworkLevel
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import SandboxInfo, TimeoutAction

_ALL = "0.0.0.0/0"
_MOST_RULES_OF_HOST = 8
_PLACEHOLDER = "${e2b."
_HOST = re.compile(r"(?:[A-Za-z0-9._-]|\$\{PORT\}){1,200}(?::(?:[0-9]{1,5}|\$\{PORT\}))?", re.ASCII)
_NO_NETWORK = "its owner allows sandboxes no network; leave it out"


class _Transform(ClientMessage):
    headers: TextMap = Field(default_factory=dict)


class _Rule(ClientMessage):
    transform: Annotated[_Transform | None, AnObject] = None


class NetworkRules(ClientMessage):
    """The destinations that code in a sandbox may reach, and the access to its ports."""

    allow_out: Texts = ()
    deny_out: Texts = ()
    # By the host whose requests a rule is for.
    rules: Annotated[
        dict[str, Annotated[list[_Rule], objects(_MOST_RULES_OF_HOST)] | None], messages_by_name(MAX_RULES)
    ] = Field(default_factory=dict)
    mask_request_host: Text = ""
    allow_public_traffic: Flag = True
    # About how traffic is routed, not whether it is allowed: none of them is offered.
    dns_servers: Any = None
    egress_proxy: Any = None
    https_ports: Any = None


_NOT_OFFERED = {"dns_servers": "dnsServers", "egress_proxy": "egressProxy", "https_ports": "httpsPorts"}


def read_network(rules: NetworkRules | None, asks_internet: bool | None, most: NetworkLevel) -> Network:
    """Returns the network that a client requests.

    At E2B, a client that requests no restriction gets the internet. Here it gets what the server and the key allow: a
    server without networks gives none to clients that request nothing in particular.

    Args:
        rules: Its rules, if it has given any.
        asks_internet: Its flag for the internet.
        most: The most network that the client may have.

    Raises:
        NotOfferedError: The client names hosts but may reach none, or uses a rule that does not exist here.
    """
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    added: dict[str, dict[str, str]] = {}

    if rules is not None:
        for field, name in _NOT_OFFERED.items():
            if is_filled(getattr(rules, field)):
                raise NotOfferedError(what=f"network rules ({name})", instead="leave it out")

        allowed, denied = rules.allow_out, rules.deny_out
        added = _added_headers(rules.rules)

    named = tuple(rule for rule in allowed if rule != _ALL)
    denials = tuple(rule for rule in denied if rule != _ALL)
    is_open = asks_internet is not False and _ALL not in denied and (not allowed or _ALL in allowed)

    if named and NETWORK_LEVELS.index(most) < NETWORK_LEVELS.index("listed"):
        raise NotOfferedError(what="network rules (allowOut)", instead=_NO_NETWORK)

    return Network(allow=named, deny=denials, internet=is_open and most == "internet", secrets=added)


def _added_headers(rules: dict[str, list[_Rule] | None]) -> dict[str, dict[str, str]]:
    """Returns the headers that rules add to https requests, by host.

    They may hold secrets, so they are not added to plain http requests.
    """
    added: dict[str, dict[str, str]] = {}

    for host, of_host in rules.items():
        headers: dict[str, str] = {}

        for rule in of_host or ():
            headers.update({} if rule.transform is None else rule.transform.headers)

        if any(_PLACEHOLDER in value for value in headers.values()):
            raise NotOfferedError(
                what="workload identity in headers of network rules", instead="write the value"
            )

        if headers:
            added[host] = headers

    return added


def read_port_rules(rules: NetworkRules | None, *, are_ports_public: bool) -> PortRules:
    """Returns the settings of a client for the ports of a new sandbox.

    Args:
        rules: Its rules, if it has given any.
        are_ports_public: Whether the server makes ports public unless the client chooses otherwise.

    Raises:
        InvalidArgumentError: The Host header is not valid.
    """
    if rules is None:
        return PortRules()

    host = rules.mask_request_host

    if host and not _HOST.fullmatch(host):
        raise InvalidArgumentError(
            field="maskRequestHost",
            value=host,
            allowed="a host name, with `:` and a port behind it if wanted; `${PORT}` stands for the port",
        )

    # Without public ports all are private: there is nothing to remember.
    is_private = are_ports_public and not rules.allow_public_traffic
    return PortRules(is_private=is_private, host=host)


DEFAULT_SECONDS = 300.0

# E2B bounds neither the time of code, which its client keeps, nor its output. The latter lies in the server's memory
# for each command of a sandbox, so it has a bound here, and dropped output is reported.
_LIMITS = Limits(wall_seconds=86_400.0, stdout_bytes=4 * MIB, stderr_bytes=4 * MIB)
_MISSING = {
    "mcp": ("mcp", "the MCP gateway"),
    "iam": ("iam", "workload identity (iam)"),
}


class _AutoResume(ClientMessage):
    enabled: Flag = False


class SandboxRequest(ClientMessage):
    """A sandbox to create."""

    template_id: Text = Field(default="", validation_alias=AliasChoices("templateID", "template_id"))
    env_vars: TextMap = Field(default_factory=dict)
    metadata: TextMap = Field(default_factory=dict)
    timeout: Seconds | None = None
    auto_pause: Flag = False
    auto_pause_memory: Flag = True
    auto_resume: Annotated[_AutoResume, AnObject] = _AutoResume()
    network: Annotated[NetworkRules | None, AnObject] = None
    allow_internet_access: Flag | None = None
    volume_mounts: Annotated[list[VolumeMount], objects(MAX_MOUNTS)] = Field(default_factory=list)
    # None of these is offered.
    mcp: Any = None
    iam: Any = None


def read_spec(
    body: SandboxRequest, policy: KeyPolicy, most_network: NetworkLevel, *, are_ports_public: bool
) -> SandboxSpec:
    """Returns the sandbox that a create request describes.

    Args:
        body: The request.
        policy: The policy of the caller's key.
        most_network: The most network that the caller may have.
        are_ports_public: Whether ports are reached without a token unless the request chooses otherwise.

    Raises:
        InvalidArgumentError: A field is not valid.
        NotOfferedError: The request needs a feature that does not exist here.
    """
    for field, (name, what) in _MISSING.items():
        if is_filled(getattr(body, field)):
            raise NotOfferedError(what=what, instead=f"create the sandbox without {name}")

    return SandboxSpec(
        template=our_template(body.template_id),
        limits=default_limits(policy),
        envs=body.env_vars,
        metadata=kept_metadata(
            body.metadata, body.template_id, read_port_rules(body.network, are_ports_public=are_ports_public)
        ),
        timeout_seconds=body.timeout or DEFAULT_SECONDS,
        on_timeout=_read_on_timeout(body),
        auto_resume=body.auto_resume.enabled,
        network=read_network(body.network, body.allow_internet_access, most_network),
    )


def _read_on_timeout(body: SandboxRequest) -> TimeoutAction:
    if not body.auto_pause:
        return "kill"

    return "pause" if body.auto_pause_memory else "pause_files"


def default_limits(policy: KeyPolicy, ordered: Mapping[str, float] | None = None) -> Limits:
    """Returns the limits of a sandbox: those of its template, or the usual ones, within what its key allows.

    Args:
        policy: The policy of the caller's key.
        ordered: The limits that the template's builder has ordered.
    """
    chosen: dict[str, Any] = dict(ordered or {})
    wanted = replace(_LIMITS, **chosen)
    allowed: dict[str, Any] = {
        item.name: _lower(getattr(wanted, item.name), policy.max_limits[item.name])
        for item in fields(Limits)
        if item.name in policy.max_limits
    }
    return replace(wanted, **allowed)


async def _ordered_limits(template: str) -> Mapping[str, float]:
    """Returns the limits that the builder of a template has ordered; none where it is not in this machine's store."""
    if not is_store_name(template):
        return {}

    record = await asyncio.to_thread(template_store().record, template)
    return {} if record is None else record.info.limits


def _lower(wanted: float | None, maximum: float) -> float:
    return maximum if wanted is None else min(wanted, maximum)


_KEY = re.compile(r"[a-z0-9-]{1,255}", re.ASCII)


class Creation:
    """Makes sandboxes.

    Args:
        idempotency: The store of earlier requests.
        tokens: The sandboxes' tokens.
        settings: The settings of the server.
        stored: The snapshots and volumes that a new sandbox can use.
        resolve: Returns our name of a template that a client names by one of its builds.
        inside: The interpreters inside sandboxes.
    """

    def __init__(
        self,
        idempotency: Idempotency,
        tokens: SandboxTokens,
        settings: ServerSettings,
        stored: tuple[SnapshotService, Volumes],
        resolve: Callable[[str], Awaitable[str]],
        inside: InsideInterpreters,
    ) -> None:
        self._inside = inside
        self._resolve = resolve
        self._idempotency = idempotency
        self._tokens = tokens
        self._snapshots, self._volumes = stored
        self._settings = settings
        self._domain = settings.domain
        self._are_ports_public = bool(settings.domain) and settings.public_ports

    async def create(self, request: Request, caller: ControlCaller) -> Response:
        """Makes a sandbox, or returns the one that was made for the same idempotency key."""
        body = await bounded_body(request, MAX_JSON_BYTES)
        key = request.headers.get("idempotency-key", "")
        info = await (self._create_once(key, body, caller) if key else self._create(body, caller))
        await self._inside.ensure(info, request.app)
        return JSONResponse(sandbox_data(info, self._tokens, self._domain), 201)

    async def _create(self, body: bytes, caller: ControlCaller) -> SandboxInfo:
        wanted = read_message(SandboxRequest, body)
        volumes = await self._volumes.wanted(wanted.volume_mounts, caller)
        info = await self._make(wanted, caller)

        if volumes:
            try:
                await self._volumes.mount(info.id, volumes)
            except BaseException:
                await complete(caller.backend.kill(info.id))
                raise

        return info

    async def _make(self, wanted: SandboxRequest, caller: ControlCaller) -> SandboxInfo:
        if not (template := wanted.template_id):
            raise InvalidArgumentError(field="templateID", value=template, allowed="the name of a template")

        policy = caller.principal.policy
        most = most_network(self._settings, policy)
        spec = read_spec(wanted, policy, most, are_ports_public=self._are_ports_public)

        if not is_default_template(template) and (found := await self._snapshots.find(template, caller)):
            return await self._snapshots.load(found, spec, caller)

        name = await self._resolve(spec.template_name)
        limits = default_limits(policy, await _ordered_limits(name))
        return await caller.backend.create(replace(spec, template=name, limits=limits))

    async def _create_once(self, key: str, body: bytes, caller: ControlCaller) -> SandboxInfo:
        if not _KEY.fullmatch(key):
            raise InvalidArgumentError(
                field="Idempotency-Key",
                value=key,
                allowed="1 to 255 of lower-case letters, digits and hyphens",
            )

        digest = digest_of((b"e2b create", body))
        answer = await self._idempotency.begin(caller.principal.key_id, key, digest)

        if isinstance(answer, Begun):
            return await self._create_first(answer, body, caller)

        if isinstance(answer, StoredReply) and answer.body:
            return await caller.backend.info(str(json.loads(answer.body)["sandboxID"]))

        reason = "it is unknown whether its request was done"

        if isinstance(answer, StillRunning):
            reason = "its request is still under way"
        elif isinstance(answer, OtherRequest):
            reason = "it was used for another request"

        raise IdempotencyConflictError(key=key, reason=reason)

    async def _create_first(self, begun: Begun, body: bytes, caller: ControlCaller) -> SandboxInfo:
        try:
            info = await self._create(body, caller)
        except FumehoodError as error:
            # If nothing was made for certain, the same key may be used again.
            end = self._idempotency.lose if error.outcome_unknown else self._idempotency.withdraw
            await end(begun)
            raise
        except BaseException:
            await complete(self._idempotency.lose(begun))
            raise

        stored = json.dumps({"sandboxID": info.id}).encode()

        try:
            await self._idempotency.finish(begun, status=201, headers={}, body=stored)
        except StorageError as error:
            # The sandbox was made, and its id must not be lost because storing it failed.
            events.ANSWER_NOT_KEPT.log(reason=error.reason)

        return info
