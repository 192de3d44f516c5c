"""OpenAI's containers and their files in terms of a sandbox and its files, and back.

Pure functions. The fields of a container are labels of its sandbox, so that they live and end with it. The id of a file
is its path, encoded for an address.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from fumehood.bounds import GIB
from fumehood.dialects.openai.answers import UnknownFileError
from fumehood.errors import SandboxNotFoundError
from fumehood.server.json_bodies import Allowed, AnyText, DialectBody, refused, required
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.limits import Limits
from fumehood.values.network import Network
from fumehood.values.requests import SandboxSpec
from fumehood.values.sandbox import FileInfo, SandboxInfo

_PREFIX = "cntr_"
_FILE_PREFIX = "cfile_"
_NAME, _MINUTES, _MEMORY = "openai.name", "openai.minutes", "openai.memory_limit"
_MEMORY_LIMITS = {"1g": 1 * GIB, "4g": 4 * GIB, "16g": 16 * GIB, "64g": 64 * GIB}
_DEFAULT_MEMORY = "1g"
_DEFAULT_MINUTES = 20
_MAX_MINUTES = 24 * 60
# A container lives as long as it is used; the server's maximum lifetime bounds it all the same.
_LIFETIME_SECONDS = 365 * 86_400.0
_MAX_NAME_CHARACTERS = 200
_MAX_PAGE = 100
_DEFAULT_PAGE = 20


def _no_secrets(policy: _NetworkPolicy | None) -> _NetworkPolicy | None:
    if policy is not None and policy.type == "allowlist" and policy.domain_secrets:
        raise refused(
            "network_policy.domain_secrets", "...", "nothing: give secrets as headers, by the native API"
        )

    return policy


def _nothing(instead: str) -> AfterValidator:
    """Returns a validator that refuses a value for a feature that does not exist here; an empty value passes."""

    def check(value: object, info: ValidationInfo) -> object:
        if value:
            raise refused(info.field_name, value, f"nothing: {instead}")

        return value

    return AfterValidator(check)


class _Expiry(DialectBody):
    anchor: Literal["last_active_at"]
    minutes: Annotated[int, Field(ge=1, le=_MAX_MINUTES)]


class _NetworkPolicy(DialectBody):
    type: Literal["disabled", "allowlist"]
    allowed_domains: Any = None
    domain_secrets: Any = None

    @model_validator(mode="after")
    def _has_domains(self) -> Self:
        if self.type == "allowlist" and not (isinstance(self.allowed_domains, list) and self.allowed_domains):
            raise ValueError("an allowlist has domains")

        return self


class NewContainer(DialectBody):
    """A request for a container."""

    name: Annotated[
        AnyText,
        Field(min_length=1, max_length=_MAX_NAME_CHARACTERS),
        Allowed(f"a text of 1 to {_MAX_NAME_CHARACTERS} characters"),
    ] = required()
    memory_limit: Annotated[
        Literal["1g", "4g", "16g", "64g"] | None,
        BeforeValidator(lambda value: value or None),
        Allowed(", ".join(_MEMORY_LIMITS)),
    ] = None
    file_ids: Annotated[Any, _nothing("upload files to the container itself")] = None
    skills: Annotated[Any, _nothing("put what is needed into a file of the container")] = None
    expires_after: Annotated[
        _Expiry | None, Allowed(f'{{"anchor": "last_active_at", "minutes": 1 to {_MAX_MINUTES:,}}}')
    ] = None
    network_policy: Annotated[
        _NetworkPolicy | None,
        Allowed('{"type": "disabled"}, or "allowlist" with `allowed_domains`'),
        AfterValidator(_no_secrets),
    ] = None

    def spec(self) -> SandboxSpec:
        """Returns the requested sandbox.

        Raises:
            InvalidArgumentError: The request needs a feature that does not exist here.
        """
        memory = self.memory_limit or _DEFAULT_MEMORY
        minutes = _DEFAULT_MINUTES if self.expires_after is None else self.expires_after.minutes
        policy = self.network_policy
        return SandboxSpec(
            limits=Limits(memory_bytes=_MEMORY_LIMITS[memory]),
            chosen_limits=("memory_bytes",) if self.memory_limit else (),
            network=Network(allow=policy.allowed_domains)
            if policy is not None and policy.type == "allowlist"
            else Network(),
            metadata={_NAME: self.name, _MINUTES: str(minutes), _MEMORY: memory},
            timeout_seconds=_LIFETIME_SECONDS,
            idle_timeout_seconds=minutes * 60.0,
        )


def is_container(info: SandboxInfo) -> bool:
    """Returns whether a sandbox was made as a container."""
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
        SandboxNotFoundError: The text is not the id of a container.
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
    """Returns the id for the file at a path of the sandbox."""
    return _FILE_PREFIX + base64.urlsafe_b64encode(path.encode("utf-8", "surrogateescape")).decode().rstrip(
        "="
    )


def path_of(file_id: str) -> str:
    """Returns the path of the file that an id names, below the folder of a container's files.

    Raises:
        UnknownFileError: The id does not name a file.
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
    """Returns whether a path is one of a container's files."""
    return path.startswith(f"{DATA_PATH}/") and posixpath.normpath(path) == path and "\x00" not in path


def path_of_upload(filename: str) -> str:
    """Returns the path of an uploaded file: only its name is used; directories that a client sends are ignored.

    Raises:
        InvalidArgumentError: The file has no name.
    """
    name = filename.replace("\\", "/").rpartition("/")[2]

    if name in ("", ".", "..") or "\x00" in name:
        raise refused("file", filename, "a file with a name")

    return f"{DATA_PATH}/{name}"


def page(data: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Returns the requested part of a list; `data` is in the order of creation.

    Raises:
        InvalidArgumentError: The query is not valid.
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


def _network_policy(network: Network) -> dict[str, Any]:
    if network.level == "none":
        return {"type": "disabled"}

    return {"type": "allowlist", "allowed_domains": ["*"] if network.internet else [*network.allow]}
