"""Stored files as the code API writes them: one form for each `detail`, with the ids of both generations.

Pure functions, used in the server process.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.storage.files import StoredFile

DETAILS = ("simple", "summary", "full", "normalized")


def object_name(file: StoredFile) -> str:
    """Returns the name of the stored object: clients read the file's id from it."""
    suffix = posixpath.splitext(file.name)[1]
    return f"{file.session_id}/{file.id}{suffix}"


def described(file: StoredFile, detail: str) -> Any:
    """Returns the description of a file in one form.

    Raises:
        InvalidArgumentError: There is no such form.
    """
    form = _FORMS.get(detail)

    if form is None:
        raise InvalidArgumentError(field="detail", value=detail, allowed=", ".join(DETAILS))

    return form(file)


def produced(file: StoredFile, echoed: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a file of a run as its answer names it."""
    data: dict[str, Any] = {
        "id": file.id,
        "name": file.name,
        "path": f"/mnt/data/{file.name}",
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "size": file.size_bytes,
        **(echoed or {}),
    }

    if file.modified_from is not None:
        source = file.modified_from_session
        data["modified_from"] = {
            "id": file.modified_from,
            "session_id": source,
            "storage_session_id": source,
        }

    return data


def etag_of(file: StoredFile) -> str:
    """Returns the tag of a file: its bytes never change."""
    return f'"{file.id}"'


def _last_modified(file: StoredFile) -> str:
    moment = datetime.fromtimestamp(file.created_at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _simple(file: StoredFile) -> str:
    return object_name(file)


def _summary(file: StoredFile) -> dict[str, Any]:
    return {
        "name": object_name(file),
        "size": file.size_bytes,
        "lastModified": _last_modified(file),
        "etag": etag_of(file).strip('"'),
    }


def _full(file: StoredFile) -> dict[str, Any]:
    return {
        **_summary(file),
        "id": file.id,
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "metadata": {
            "content-type": file.content_type,
            "original-filename": file.name,
            "session-id": file.session_id,
        },
        "versionId": None,
        "contentType": file.content_type,
    }


def _normalized(file: StoredFile) -> dict[str, Any]:
    return {
        "id": file.id,
        "name": file.name,
        "session_id": file.session_id,
        "storage_session_id": file.session_id,
        "size": file.size_bytes,
        "contentType": file.content_type,
        "lastModified": _last_modified(file),
    }


_FORMS: Mapping[str, Callable[[StoredFile], Any]] = {
    "simple": _simple,
    "summary": _summary,
    "full": _full,
    "normalized": _normalized,
}
