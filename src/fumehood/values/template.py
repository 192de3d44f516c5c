"""A template: the Python environment of a sandbox, and the modules that are already imported in it.

Plain data of the host process. A template names an environment of the host (a virtual environment or an installation);
nothing is copied or built here: runtimes mount it for the guest, read-only. `fumehood.templates` builds environments
and keeps them under names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.values.image import ImageRoot
from fumehood.values.limits import Limits
from fumehood.values.start_command import StartCommand

MAX_TEMPLATE_NAME_BYTES = 255
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
DEFAULT_PRELOAD = ("numpy", "pandas", "matplotlib.pyplot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The environment that a sandbox starts from.

    Attributes:
        name: Its name in `Sandbox(template=...)`.
        python: Path of the environment's interpreter; None: the environment of this process.
        preload: Modules that are imported once, before any sandbox is made. Those that the environment does not
            have, whose import fails or leaves threads running are left out, with a line in the log.
        files: A folder whose content each sandbox finds in its home; None: no files.
        envs: Environment variables of everything that runs in its sandboxes, and of the preloading.
        own_interpreter: Whether to start an interpreter for each sandbox, instead of forking all sandboxes from one:
            hash seed and addresses then differ from sandbox to sandbox. A sandbox that is not ready in the pool takes
            as long as the interpreter's start, and each takes the memory of an interpreter.
        image: The container image that its sandboxes have as their root; None: the system of this machine. It is set by
            the build of a named template.
        start: A command that each sandbox runs from its creation on, with the check for its readiness.
        languages: A folder with files that compilers of its languages have prepared; None: no such folder.
        language_versions: The languages that the template was prepared for, and their versions.
        limits: The limits, set by its builder, in which the ready sandboxes of its pool differ from the defaults.
    """

    name: str = "default"
    python: str | None = None
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    files: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict, hash=False)
    own_interpreter: bool = False
    image: ImageRoot | None = None
    start: StartCommand | None = None
    languages: str | None = None
    language_versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    limits: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name.encode()) <= MAX_TEMPLATE_NAME_BYTES:
            allowed = f"text of 1 to {MAX_TEMPLATE_NAME_BYTES} bytes"
            raise InvalidArgumentError(field="template name", value=self.name, allowed=allowed)

        if self.python is not None and not isinstance(self.python, str):
            raise InvalidArgumentError(
                field="python", value=self.python, allowed="the path of an interpreter, or None"
            )

        check_preload(self.preload)

        for field_name, folder in (("files", self.files), ("languages", self.languages)):
            if folder is not None and not (isinstance(folder, str) and os.path.isabs(folder)):
                allowed = "the absolute path of a folder, or None"
                raise InvalidArgumentError(field=field_name, value=folder, allowed=allowed)

        if not isinstance(self.envs, Mapping) or not all(map(_is_variable, self.envs.items())):
            raise InvalidArgumentError(
                field="envs", value=self.envs, allowed="texts by names; no NUL, and no '=' in a name"
            )

        if not isinstance(self.own_interpreter, bool):
            raise InvalidArgumentError(
                field="own_interpreter", value=self.own_interpreter, allowed="True or False"
            )

        # They are checked there.
        replace(Limits(), **self.limits)

        if self.start is not None and not isinstance(self.start, StartCommand):
            raise InvalidArgumentError(field="start", value=self.start, allowed="a StartCommand, or None")


def check_preload(value: object) -> None:
    """Raises InvalidArgumentError unless the value is a list of modules to import before any sandbox."""
    if not isinstance(value, tuple) or not all(map(_is_module, value)):
        raise InvalidArgumentError(field="preload", value=value, allowed="names of modules, as a list")


def _is_module(name: object) -> bool:
    return isinstance(name, str) and _MODULE.fullmatch(name) is not None


def _is_variable(item: tuple[object, object]) -> bool:
    name, value = item

    if not isinstance(name, str) or not isinstance(value, str):
        return False

    return bool(name) and "=" not in name and "\0" not in name + value
