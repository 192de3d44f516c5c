"""References of images: parses the text by which a user names one.

Plain data of the host process. `python:3.12-slim`, `ghcr.io/owner/name@sha256:...`, `localhost:5000/name` mean a
registry, as Docker reads them; `oci:FOLDER[:TAG]` is an OCI layout, `docker-archive:FILE[:TAG]` a `docker save`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from fumehood.errors import InvalidArgumentError

Kind = Literal["registry", "oci", "docker-archive"]
_NAME = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(?::\d{1,5})?|\[[0-9a-fA-F:]+\](?::\d{1,5})?")
_TAG = re.compile(r"\w[\w.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DOCKER_HUB = "docker.io"
_MOST_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The location of an image.

    Attributes:
        text: As the user wrote it.
        kind: The kind of its source.
        place: The registry's host with its port, or the absolute path of a folder or file.
        name: The repository in a registry; empty elsewhere.
        version: A tag or a digest; empty for the only image of a layout or an archive.
    """

    text: str
    kind: Kind
    place: str
    name: str = ""
    version: str = ""


def read_reference(text: str) -> Reference:
    """Reads a reference.

    Raises:
        InvalidArgumentError: The text is not a reference.
    """
    if not isinstance(text, str) or not 0 < len(text) <= _MOST_CHARACTERS or "\0" in text:
        raise _wrong(text)

    for kind in ("oci", "docker-archive"):
        if text.startswith(f"{kind}:"):
            return _on_disk(text, kind, text[len(kind) + 1 :])

    return _in_registry(text)


def _on_disk(text: str, kind: Kind, rest: str) -> Reference:
    path, colon, version = rest.rpartition(":")

    if not colon or "/" in version or os.path.exists(rest):
        path, version = rest, ""

    if kind == "docker-archive" and not os.path.exists(path):
        path, version = _saved(rest) or (path, version)

    if not path or (version and _TAG.fullmatch(version.rpartition(":")[2]) is None):
        raise _wrong(text)

    return Reference(text=text, kind=kind, place=os.path.abspath(os.path.expanduser(path)), version=version)


def _saved(rest: str) -> tuple[str, str] | None:
    """Returns the file of an archive and an image's name with its tag in it; None if there is no such file."""
    ends = (place for place, letter in enumerate(rest) if letter == ":")
    end = next((place for place in ends if os.path.isfile(os.path.expanduser(rest[:place]))), None)
    return None if end is None else (rest[:end], rest[end + 1 :])


def _in_registry(text: str) -> Reference:
    rest, _, digest = text.partition("@")
    first, slash, others = rest.partition("/")
    # As Docker decides whether the first part is a host.
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    place, rest = (first, others) if is_host else (DOCKER_HUB, rest)
    name, colon, tag = rest.rpartition(":")

    if not colon:
        name, tag = rest, "latest"

    if place == DOCKER_HUB and "/" not in name:
        name = f"library/{name}"

    is_right = _NAME.fullmatch(name) and _TAG.fullmatch(tag) and _HOST.fullmatch(place)

    if not is_right or ("@" in text and DIGEST.fullmatch(digest) is None):
        raise _wrong(text)

    return Reference(text=text, kind="registry", place=place, name=name, version=digest or tag)


def _wrong(text: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        field="image",
        value=text,
        allowed="a name such as 'python:3.12-slim' or 'registry.example/team/name:tag', "
        "'oci:FOLDER[:TAG]', or 'docker-archive:FILE'",
    )
