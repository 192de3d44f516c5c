"""Models of the routes of files.

They bound and describe; paths are paths of a sandbox, used nowhere else.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from fumehood.server.schemas.base import Body, GuestPath, model_of
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.values.sandbox import FileChange, FileInfo

_WEEK_SECONDS = 7 * 86_400

FileAnswer = model_of(FileInfo)


class FileList(BaseModel):
    """Files, directories and links of a sandbox."""

    items: list[FileAnswer]  # type: ignore[valid-type]


class NewDirectory(Body):
    """A directory to make, including its parents."""

    path: GuestPath


class Renaming(Body):
    """A file or directory to move within the sandbox; parents are made."""

    source: GuestPath
    destination: GuestPath


class SigningRequest(Body):
    """A request for a signed address, which permits one method on one file without a token."""

    path: GuestPath
    method: Literal["GET", "PUT"] = Field(
        "GET", description="GET: read the file (and HEAD it); PUT: write it."
    )
    expires_in_seconds: int = Field(3600, ge=1, le=_WEEK_SECONDS, description="How long.")


class SignedUrl(BaseModel):
    """An address that needs no token, for one method and one path of one sandbox."""

    url: str
    method: Literal["GET", "PUT"]
    expires_at: datetime = Field(description="When it ends (UTC).")


class SettledWatch(BaseModel):
    """The number of changes that a watch has reported."""

    changes: int = Field(description="How many changes it has had since it began.")


class WatchingLine(BaseModel):
    """The first line: every change after it is reported."""

    type: Literal["watching"]
    path: str = Field(description="The directory, as it was given.")


WATCH_LINES: tuple[type[BaseModel], ...] = (
    WatchingLine,
    model_of(FileChange, kind="change"),
    ProblemLine,
    KeepaliveLine,
)
