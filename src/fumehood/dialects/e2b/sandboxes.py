"""Sandboxes in E2B's format: one sandbox, and the list of a caller's sandboxes with filters, order and pages.

Pure functions. Fields that only E2B has, such as the name by which a template was requested, are kept
in a sandbox's metadata, under names that no caller may use. A page's token says where the last page ended, so nothing
is remembered between pages.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.datastructures import QueryParams

from fumehood.bounds import MIB
from fumehood.dialects.e2b.auth import SandboxTokens
from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.port_rules import PortRules
from fumehood.values.limits import Limits
from fumehood.values.sandbox import SandboxInfo

# The period over which the CPU is measured.
_SAMPLE_SECONDS = 0.1

# The newest version whose features all exist here: metadata on files, entries in changes, watches of any mount.
_WITH_METADATA = "0.6.4"
# The newest one before metadata on files (0.6.2).
_WITHOUT_METADATA = "0.5.7"

_OWN = "fumehood.e2b/"
_TEMPLATE = f"{_OWN}template"
_PRIVATE_PORTS = f"{_OWN}private-ports"
_PORT_HOST = f"{_OWN}port-host"
_DEFAULT_NAMES = ("base", "code-interpreter-v1")
_DEFAULT = "default"
# For a sandbox without an end; E2B's clients need a time.
_LONG = timedelta(days=365)


def our_template(name: str) -> str:
    """Returns our name of a template: the names that exist at E2B without being built mean the default one."""
    name = name.removesuffix(":default")
    return _DEFAULT if name in _DEFAULT_NAMES else name


def is_default_template(name: str) -> bool:
    """Returns whether a name means the default template."""
    return our_template(name) == _DEFAULT


def kept_metadata(metadata: Mapping[str, str], template: str, ports: PortRules) -> dict[str, str]:
    """Returns the metadata of a new sandbox: the caller's, and the fields of E2B.

    Args:
        metadata: The caller's.
        template: The name by which its template was requested.
        ports: The rules for its ports.

    Raises:
        InvalidArgumentError: The caller uses one of our names.
    """
    for name in metadata:
        if name.startswith(_OWN):
            raise InvalidArgumentError(
                field="metadata", value=name, allowed=f"names that do not begin with {_OWN!r}"
            )

    kept = {**metadata, _TEMPLATE: template}

    if ports.is_private:
        kept[_PRIVATE_PORTS] = "yes"

    if ports.host:
        kept[_PORT_HOST] = ports.host

    return kept


def port_rules(info: SandboxInfo) -> PortRules:
    """Returns the rules for the ports of a sandbox."""
    return PortRules(
        is_private=info.metadata.get(_PRIVATE_PORTS) == "yes", host=info.metadata.get(_PORT_HOST, "")
    )


def has_interpreter(info: SandboxInfo) -> bool:
    """Returns whether a sandbox gets an interpreter inside: as at E2B, unless its template is `base`.

    One that is resumed by requests has none, because its own programs would undo its pause.
    """
    asked = info.metadata.get(_TEMPLATE, "").removesuffix(":default")
    return bool(asked) and asked != "base" and not info.auto_resume


def given_metadata(info: SandboxInfo) -> dict[str, str]:
    """Returns the caller's own labels."""
    return {name: value for name, value in info.metadata.items() if not name.startswith(_OWN)}


def template_of(info: SandboxInfo) -> str:
    """Returns the name by which the template was requested."""
    return info.metadata.get(_TEMPLATE) or ("base" if info.template == _DEFAULT else info.template)


def state_of(info: SandboxInfo) -> str:
    """Returns E2B's word for the state of a sandbox: "running" or "paused"."""
    return "paused" if info.state == "paused" else "running"


def sandbox_data(info: SandboxInfo, tokens: SandboxTokens, domain: str) -> dict[str, Any]:
    """Returns a sandbox with its tokens, for a caller that made it or connects to it."""
    return {
        "templateID": template_of(info),
        "sandboxID": info.id,
        "clientID": "fumehood",
        "envdVersion": envd_version(),
        "envdAccessToken": tokens.access_token(info.id),
        "trafficAccessToken": tokens.traffic_token(info.id),
        "domain": domain or None,
    }


def listed_data(info: SandboxInfo, host_cores: float) -> dict[str, Any]:
    """Returns a sandbox in the form of lists: without its tokens."""
    data = {
        "templateID": template_of(info),
        "sandboxID": info.id,
        "clientID": "fumehood",
        "startedAt": _time(info.started_at),
        "endAt": _time(info.ends_at or info.started_at + _LONG),
        "cpuCount": cpu_count(info, host_cores),
        "memoryMB": info.limits.memory_bytes // MIB,
        "diskSizeMB": info.limits.disk_bytes // MIB,
        "metadata": given_metadata(info),
        "state": state_of(info),
        "envdVersion": envd_version(),
    }

    if info.state == "paused" and info.pause is not None:
        data["pauseMode"] = "filesystem" if info.pause.files_only else "full"

    return data


def detail_data(
    info: SandboxInfo, tokens: SandboxTokens, domain: str, host_cores: float, *, are_ports_public: bool
) -> dict[str, Any]:
    """Returns the full description of a sandbox."""
    return {
        **listed_data(info, host_cores),
        "envdAccessToken": tokens.access_token(info.id),
        "domain": domain or None,
        # The network in force, whatever was asked for.
        "allowInternetAccess": info.network.internet,
        "network": _network_data(info, are_ports_public=are_ports_public),
        "lifecycle": {
            "autoResume": info.auto_resume,
            "onTimeout": "kill" if info.on_timeout == "kill" else "pause",
        },
    }


def _network_data(info: SandboxInfo, *, are_ports_public: bool) -> dict[str, Any]:
    """Returns the network in force, which may differ from the requested one.

    Added headers are shown without their values.
    """
    ports = port_rules(info)
    network = info.network.without_secrets()
    data: dict[str, Any] = {
        "allowOut": list(network.allow),
        "denyOut": list(network.deny),
        "allowPublicTraffic": are_ports_public and not ports.is_private,
    }

    if network.secrets:
        data["rules"] = {
            place: [{"transform": {"headers": dict(headers)}}] for place, headers in network.secrets.items()
        }

    if ports.host:
        data["maskRequestHost"] = ports.host

    return data


def _time(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


@cache
def envd_version() -> str:
    """Returns the newest version whose features this kernel supports."""
    # A memfd lies in a filesystem of the same kind as the files of a sandbox.
    fd = os.memfd_create("attributes", os.MFD_CLOEXEC)

    try:
        os.setxattr(fd, "user.e2b.probe", b"x")
    except OSError:
        return _WITHOUT_METADATA
    finally:
        os.close(fd)

    return _WITH_METADATA


def cpu_count(info: SandboxInfo, host_cores: float) -> int:
    """Returns the number of processors that a sandbox may use, as an integer."""
    return cpu_count_of(info.limits, host_cores)


def cpu_count_of(limits: Limits, host_cores: float) -> int:
    """Returns the number of processors that limits allow, as an integer."""
    return max(1, math.ceil(limits.cpu_cores or host_cores))


async def measures_data(backend: Backend, sandbox_id: str) -> dict[str, Any]:
    """Measures a sandbox for a short period."""
    info = await backend.info(sandbox_id)
    cores = cpu_count(info, (await backend.capacity()).cpu_cores)
    begun, before = time.monotonic(), await backend.metrics(sandbox_id)
    await asyncio.sleep(_SAMPLE_SECONDS)
    after = await backend.metrics(sandbox_id)
    used = (after.cpu_seconds - before.cpu_seconds) / (time.monotonic() - begun)
    now = time.time()
    return {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z"),
        "timestampUnix": int(now),
        "cpuCount": cores,
        # In percent of one processor, as at E2B.
        "cpuUsedPct": round(max(0.0, used) * 100, 2),
        "memUsed": after.memory_bytes,
        "memTotal": info.limits.memory_bytes,
        "memCache": 0,
        "diskUsed": after.disk_used_bytes,
        "diskTotal": after.disk_total_bytes or info.limits.disk_bytes,
    }


_MAX_PAGE = 100
_STATES = ("running", "paused")
# The position of a sandbox in the list.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListQuery:
    """The parameters of a list request.

    Attributes:
        states: running, paused or both.
        metadata: Labels that a sandbox must have.
        template: The template, by any of its names; empty for all.
        started_after: Only sandboxes that were started then or later.
        is_ascending: Whether the oldest come first.
        limit: The most sandboxes of the page.
        after: The position of the last sandbox of the previous page.
    """

    states: tuple[str, ...] = _STATES
    metadata: tuple[tuple[str, str], ...] = ()
    template: str = ""
    started_after: datetime | None = None
    is_ascending: bool = False
    limit: int = _MAX_PAGE
    after: Place | None = None


def read_query(query: QueryParams) -> ListQuery:
    """Returns the parameters in a query.

    Raises:
        InvalidArgumentError: A part of the query is not valid.
    """
    states = tuple(state for value in query.getlist("state") for state in value.split(",") if state)

    if unknown := [state for state in states if state not in _STATES]:
        raise InvalidArgumentError(field="state", value=unknown[0], allowed="running or paused")

    order = query.get("order", "desc")

    if order not in ("asc", "desc"):
        raise InvalidArgumentError(field="order", value=order, allowed="asc or desc")

    return ListQuery(
        states=states or _STATES,
        metadata=tuple(read_metadata(query.get("metadata", ""))),
        template=query.get("template", ""),
        started_after=_time_of(query.get("startedAfter", "")),
        is_ascending=order == "asc",
        limit=_limit(query.get("limit", "")),
        after=_place(query.get("nextToken", "")),
    )


def read_metadata(text: str) -> Iterable[tuple[str, str]]:
    """Returns the labels of a filter, whose names and values are quoted twice."""
    return ((unquote(name), unquote(value)) for name, value in parse_qsl(text, keep_blank_values=True))


def page_of(infos: Iterable[SandboxInfo], query: ListQuery) -> tuple[list[SandboxInfo], str]:
    """Returns a page, and the token of the next one; empty when there is none."""
    chosen = sorted(
        (info for info in infos if _fits(info, query)), key=_place_of, reverse=not query.is_ascending
    )

    if query.after is not None:
        chosen = [info for info in chosen if _is_behind(info, query.after, query.is_ascending)]

    page = chosen[: query.limit]
    return page, _token(page[-1]) if len(chosen) > len(page) else ""


def token_headers(token: str) -> dict[str, str]:
    """Returns the header with the next page's token; none on the last page: clients take an empty value for a token."""
    return {"x-next-token": token} if token else {}


def _fits(info: SandboxInfo, query: ListQuery) -> bool:
    metadata = given_metadata(info)
    return (
        info.state != "ending"
        and state_of(info) in query.states
        and all(metadata.get(name) == value for name, value in query.metadata)
        and (not query.template or query.template == template_of(info) or _is_own_name(info, query.template))
        and (query.started_after is None or info.started_at >= query.started_after)
    )


def _is_own_name(info: SandboxInfo, name: str) -> bool:
    """Returns whether `name` is our own name of its template, rather than one of E2B's for the default one."""
    return name == info.template and our_template(name) == name


def _place_of(info: SandboxInfo) -> Place:
    return info.started_at.astimezone(UTC).isoformat(timespec="microseconds"), info.id


def _is_behind(info: SandboxInfo, after: Place, is_ascending: bool) -> bool:
    place = _place_of(info)
    return place > after if is_ascending else place < after


def _token(info: SandboxInfo) -> str:
    return base64.urlsafe_b64encode("|".join(_place_of(info)).encode()).decode()


def _place(token: str) -> Place | None:
    if not token:
        return None

    try:
        started, name = base64.b64decode(token, b"-_", validate=True).decode().split("|")
    except (binascii.Error, ValueError):
        raise InvalidArgumentError(field="nextToken", value=token, allowed="the token of a page") from None

    return started, name


def _limit(text: str) -> int:
    if not text:
        return _MAX_PAGE

    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_PAGE:
        raise InvalidArgumentError(field="limit", value=text, allowed=f"a number from 1 to {_MAX_PAGE}")

    return int(text)


def _time_of(text: str) -> datetime | None:
    if not text:
        return None

    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(field="startedAfter", value=text, allowed="a time of ISO 8601") from None

    return time if time.tzinfo else time.replace(tzinfo=UTC)
