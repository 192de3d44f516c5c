"""What OpenAI's clients call a container and its files, in terms of a sandbox and its files, and back.

Pure functions. A container's own words are labels of its sandbox, so that they live and end with it. The id of a file
is its path, written so that it can stand in an address.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from fumehood.bounds import GIB
from fumehood.dialects.openai.answers import UnknownFileError, refused
from fumehood.errors import SandboxNotFoundError
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import FileInfo, SandboxInfo

ROOT = "/mnt/data"
_PREFIX = "cntr_"
_FILE_PREFIX = "cfile_"
_NAME, _MINUTES, _MEMORY = "openai.name", "openai.minutes", "openai.memory_limit"
_MEMORY_LIMITS = {"1g": 1 * GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
_DEFAULT_MINUTES = 20
_MAX_MINUTES = 24 * 60
# A container lives as long as it is used; the server's own longest lifetime bounds it all the same.
_LIFETIME_SECONDS = 365 * 86_400.0
_MAX_NAME_CHARACTERS = 200
_MAX_PAGE = 100
_DEFAULT_PAGE = 20


def read_container(body: Mapping[str, Any]) -> SandboxSpec:
    """Returns the sandbox that a request for a container asks for.

    Raises:
        InvalidArgumentError: Something in it cannot be had here.
    """
    name = body.get("name")

    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARACTERS:
        raise refused("name", name, f"a text of 1 to {_MAX_NAME_CHARACTERS} characters")

    memory = body.get("memory_limit") or "1g"

    if not isinstance(memory, str) or memory not in _MEMORY_LIMITS:
        raise refused("memory_limit", memory, ", ".join(_MEMORY_LIMITS))

    _refuse_what_is_not_here(body)
    minutes = _minutes(body.get("expires_after"))
    return SandboxSpec(
        limits=Limits(memory_bytes=_MEMORY_LIMITS[memory]),
        chosen_limits=("memory_bytes",) if body.get("memory_limit") else (),
        network=_network(body.get("network_policy")),
        metadata={_NAME: name, _MINUTES: str(minutes), _MEMORY: memory},
        timeout_seconds=_LIFETIME_SECONDS,
        idle_timeout_seconds=minutes * 60.0,
    )


def is_container(info: SandboxInfo) -> bool:
    """Tells whether a sandbox was made as a container."""
    return _NAME in info.metadata


def container_data(info: SandboxInfo) -> dict[str, Any]:
    """Describes a sandbox as a container; any sandbox of the caller's can be one."""
    minutes = info.metadata.get(_MINUTES, "")
    data: dict[str, Any] = {
        "id": f"{_PREFIX}{info.id}",
        "object": "container",
        "created_at": int(info.started_at.timestamp()),
        "status": "running",
        "name": info.metadata.get(_NAME, info.id),
        "network_policy": _network_policy(info.network),
    }

    if minutes.isascii() and minutes.isdigit():
        data["expires_after"] = {"anchor": "last_active_at", "minutes": int(minutes)}

    memory = info.metadata.get(_MEMORY, "")

    if _MEMORY_LIMITS.get(memory) == info.limits.memory_bytes:
        data["memory_limit"] = memory

    return data


def sandbox_id_of(container_id: str) -> str:
    """Returns the id of the sandbox behind a container.

    Raises:
        SandboxNotFoundError: It is no id of a container.
    """
    if not container_id.startswith(_PREFIX):
        raise SandboxNotFoundError(sandbox_id=container_id)

    return container_id.removeprefix(_PREFIX)


def file_data(info: FileInfo, container_id: str, *, is_users: bool) -> dict[str, Any]:
    """Describes a file of a container."""
    return {
        "id": file_id_of(info.path),
        "object": "container.file",
        "created_at": 0 if info.modified_at is None else int(info.modified_at.timestamp()),
        "bytes": info.size_bytes,
        "container_id": container_id,
        # A name may have bytes that are no text; its id has them all the same.
        "path": info.path.encode("utf-8", "backslashreplace").decode(),
        "source": "user" if is_users else "assistant",
    }


def file_id_of(path: str) -> str:
    """Returns the id of a file."""
    return _FILE_PREFIX + base64.urlsafe_b64encode(path.encode("utf-8", "surrogateescape")).decode().rstrip(
        "="
    )


def path_of(file_id: str) -> str:
    """Returns the path of the file that an id names, below the folder of a container's files.

    Raises:
        UnknownFileError: It names none.
    """
    written = file_id.removeprefix(_FILE_PREFIX)

    padded = written + "=" * (-len(written) % 4)

    try:
        path = base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        path = ""

    if not file_id.startswith(_FILE_PREFIX) or not is_file_path(path):
        raise UnknownFileError(field="file_id", value=file_id, allowed="the id of a file of this container")

    return path


def is_file_path(path: str) -> bool:
    """Tells whether a path is one of a container's files."""
    return path.startswith(f"{ROOT}/") and posixpath.normpath(path) == path and "\x00" not in path


def path_of_upload(filename: str) -> str:
    """Returns where an uploaded file goes: its name counts, directories that a client sends along do not.

    Raises:
        InvalidArgumentError: It has no name.
    """
    name = filename.replace("\\", "/").rpartition("/")[2]

    if name in ("", ".", "..") or "\x00" in name:
        raise refused("file", filename, "a file with a name")

    return f"{ROOT}/{name}"


def page(data: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the part of a list that a request asks for; `data` is in the order in which things were made.

    Raises:
        InvalidArgumentError: The query is none.
    """
    limit, order = query.get("limit", str(_DEFAULT_PAGE)), query.get("order", "desc")

    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _MAX_PAGE and len(limit) <= 3):
        raise refused("limit", limit, f"a whole number from 1 to {_MAX_PAGE}")

    if order not in ("asc", "desc"):
        raise refused("order", order, "asc or desc")

    found = list(data) if order == "asc" else list(reversed(data))

    if after := query.get("after"):
        places = [place for place, item in enumerate(found) if item["id"] == after]
        found = found[places[0] + 1 :] if places else []

    shown = found[: int(limit)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(found) > len(shown),
    }


def _minutes(expires_after: object) -> int:
    if expires_after is None:
        return _DEFAULT_MINUTES

    given = expires_after if isinstance(expires_after, Mapping) else {}
    minutes = given.get("minutes")

    if (
        given.get("anchor") != "last_active_at"
        or type(minutes) is not int
        or not 1 <= minutes <= _MAX_MINUTES
    ):
        raise refused(
            "expires_after",
            expires_after,
            f'{{"anchor": "last_active_at", "minutes": 1 to {_MAX_MINUTES:,}}}',
        )

    return minutes


def _refuse_what_is_not_here(body: Mapping[str, Any]) -> None:
    if body.get("file_ids"):
        raise refused("file_ids", body["file_ids"], "nothing: upload files to the container itself")

    if body.get("skills"):
        raise refused("skills", body["skills"], "nothing: put what is needed into a file of the container")


def _network(policy: object) -> Network:
    given = policy if isinstance(policy, Mapping) else {}

    if policy is None or given.get("type") == "disabled":
        return Network()

    domains = given.get("allowed_domains")

    if given.get("type") != "allowlist" or not isinstance(domains, list) or not domains:
        raise refused("network_policy", policy, '{"type": "disabled"}, or "allowlist" with `allowed_domains`')

    if given.get("domain_secrets"):
        raise refused(
            "network_policy.domain_secrets", "...", "nothing: give secrets as headers, by the native API"
        )

    return Network(allow=domains)


def _network_policy(network: Network) -> dict[str, Any]:
    if network.level == "none":
        return {"type": "disabled"}

    return {"type": "allowlist", "allowed_domains": ["*"] if network.internet else [*network.allow]}
