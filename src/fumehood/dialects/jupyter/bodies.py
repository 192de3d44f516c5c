"""The bodies of requests to Jupyter's REST API: kernels to start, and sessions to make or change.

Pure functions. A client may send null for a field that it does not use.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, InstanceOf, model_validator
from starlette.requests import Request

from fumehood.server.json_bodies import Allowed, DialectBody, bounded_body, refused

_MAX_BODY_BYTES = 1 << 20
_MAX_CHARACTERS = 4096
_HALVES = re.compile("[\ud800-\udfff]")


def _checked(value: str | None) -> str | None:
    # Half a surrogate pair could not be encoded in any response.
    if value is not None and (len(value) > _MAX_CHARACTERS or _HALVES.search(value)):
        raise ValueError

    return value


def _an_object(value: object) -> object:
    if value is not None and not isinstance(value, dict):
        raise refused("kernel", value, "an object with a name or an id")

    return value


_Text = Annotated[
    InstanceOf[str] | None,
    AfterValidator(_checked),
    Allowed(f"text of at most {_MAX_CHARACTERS} characters"),
]
_Envs = Annotated[dict[str, Any] | None, Allowed("an object of text to text")]


class NewKernel(DialectBody):
    """A kernel to start: the name of its spec, and its environment, which the sandbox checks."""

    name: _Text = None
    envs: _Envs = Field(default=None, alias="env")


class KernelChoice(DialectBody):
    """The kernel of a session: one that runs, or the spec of a new one."""

    id: _Text = None
    name: _Text = None


class SessionBody(DialectBody):
    """A session to make, or the fields of one to change."""

    path: _Text = None
    name: _Text = None
    kind: _Text = Field(default=None, alias="type")
    kernel: Annotated[KernelChoice | None, BeforeValidator(_an_object)] = None

    @model_validator(mode="before")
    @classmethod
    def _modern(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Converts a body in the form of before 2017, which had the path in `notebook`, to that of today."""
        notebook = given.get("notebook")

        if not isinstance(notebook, dict):
            return given

        return {"type": "notebook", "path": notebook.get("path") or notebook.get("name"), **given}

    def required_path(self) -> str:
        """Returns the path of a new session.

        Raises:
            InvalidArgumentError: The body has no path.
        """
        if self.path is None:
            raise refused("path", None, f"text of at most {_MAX_CHARACTERS} characters")

        return self.path


async def body_of(request: Request) -> bytes:
    """Returns the JSON of a request; an empty body is an empty object.

    Raises:
        RequestTooLargeError: The body is larger than this API allows.
    """
    body = await bounded_body(request, _MAX_BODY_BYTES)
    return body if body.strip() else b"{}"
