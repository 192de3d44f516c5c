"""A sandbox in E2B's format, and the fields that E2B has and the port has not.

Pure functions. The name by which its template was asked for is kept in a sandbox's metadata, under a name that no
caller may use.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from fumehood.bounds import MIB
from fumehood.dialects.e2b.tokens import SandboxTokens
from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.server.port_dialects import PortRules
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
    return _DEFAULT if name in _DEFAULT_NAMES else name


def kept_metadata(metadata: Mapping[str, str], template: str, ports: PortRules) -> dict[str, str]:
    """Returns the metadata of a new sandbox: the caller's, and the fields of E2B.

    Args:
        metadata: The caller's.
        template: The name by which its template was asked for.
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


def given_metadata(info: SandboxInfo) -> dict[str, str]:
    """Returns the caller's own labels."""
    return {name: value for name, value in info.metadata.items() if not name.startswith(_OWN)}


def template_of(info: SandboxInfo) -> str:
    """Returns the name by which the template was asked for."""
    return info.metadata.get(_TEMPLATE) or ("base" if info.template == _DEFAULT else info.template)


def state_of(info: SandboxInfo) -> str:
    """Returns running or paused."""
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
    """Returns a sandbox as lists have it: without its tokens."""
    return {
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
        "lifecycle": {"autoResume": info.auto_resume, "onTimeout": info.on_timeout},
    }


def _network_data(info: SandboxInfo, *, are_ports_public: bool) -> dict[str, Any]:
    """Returns the network in force, whatever was asked for; added headers are shown without their values."""
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
    return max(1, math.ceil(info.limits.cpu_cores or host_cores))


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
