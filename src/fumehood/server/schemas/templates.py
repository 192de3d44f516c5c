"""Models of the routes of named templates.

They describe the arguments of `build_template` and the data of the store; the builder checks names and versions again.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from fumehood.server.schemas.base import Body, Code, Envs, Name, Text, model_of
from fumehood.server.schemas.executions import KeepaliveLine, ProblemLine
from fumehood.templates.store import TemplateInfo
from fumehood.values.start_command import MAX_READY_SECONDS

TemplateAnswer = model_of(TemplateInfo)


class TemplateList(BaseModel):
    """The named templates."""

    items: list[TemplateAnswer]  # type: ignore[valid-type]


class BuildTemplate(Body):
    """A template to be built."""

    name: Name = Field(description="Letters, digits, '.', '_' and '-', at most 64.")
    requirements: list[Text] = Field(
        default_factory=list, max_length=1000, description="What to install, each as pip takes it."
    )
    python: Name | None = Field(
        default=None, description="A version such as 3.12; null: the Python of the server."
    )
    preload: list[Name] = Field(
        default_factory=list, max_length=1000, description="Modules that are imported once for all sandboxes."
    )
    envs: Envs = Field(default_factory=dict, description="Environment variables of its sandboxes.")
    own_interpreter: bool | None = Field(
        default=None,
        description="Start an interpreter for each of its sandboxes; null: for images with their own Python, which "
        "can reach every sandbox that it makes.",
    )
    image: Name | None = Field(
        default=None,
        description="A container image in place of the server's system: its name at a registry, or oci:FOLDER[:TAG] or "
        "docker-archive:FILE of the server's machine.",
    )
    dockerfile: Code | None = Field(
        default=None,
        description="The text of a Dockerfile that builds the image, without files of a context.",
    )
    steps: list[Text] = Field(
        default_factory=list, max_length=1000, description="Instructions that are carried out on the image."
    )
    apt: list[Name] = Field(
        default_factory=list, max_length=1000, description="Debian packages to install on it first."
    )
    build_args: Envs = Field(default_factory=dict, description="Values of the Dockerfile's ARGs.")
    start: Text | None = Field(
        default=None, description="A line for the shell that each of its sandboxes runs from its making on."
    )
    ready: Text = Field(
        default="",
        description="When that has come up: port:NUMBER, url:http://localhost:NUMBER/PATH, file:/PATH or command:LINE.",
    )
    ready_timeout: float = Field(
        default=60.0, gt=0, le=MAX_READY_SECONDS, description="How long that may take, in seconds."
    )
    display: bool = Field(False, description="Give its sandboxes a display, by Xvfb.")
    force: bool = Field(False, description="Build it even if nothing has changed.")


class RemovedTemplate(BaseModel):
    """A template that was removed."""

    is_deleted: bool = Field(
        description="Whether its files are gone; false while sandboxes are made from it or live from it."
    )


class _Step(BaseModel):
    """A step of the build has begun."""

    type: Literal["step"]
    text: str = Field(description="Which, for a person to read.")


class _Finished(BaseModel):
    """The template is ready: built now, or up to date."""

    type: Literal["finished"]
    template: TemplateAnswer  # type: ignore[valid-type]


BUILD_LINES: tuple[type[BaseModel], ...] = (_Step, _Finished, ProblemLine, KeepaliveLine)
