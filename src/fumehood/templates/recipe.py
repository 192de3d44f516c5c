"""A recipe: all inputs of a named template, checked, with one digest of them; and the interface of a source.

A source describes its inputs as plain data, which a rebuild compares with those of the last build, and makes the
environment in an empty folder. Requirements are one source, container images another; each implements `Source`. A
template is built again only when the digest of its recipe has changed. Modules of the preload list that are left out
are reported with the reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from fumehood.errors import InvalidArgumentError
from fumehood.templates.given_files import describe_files
from fumehood.text import visible_line
from fumehood.values.image import ImageRoot
from fumehood.values.start_command import StartCommand
from fumehood.values.template import Template

Cause = Literal["missing", "threads", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedModule:
    """A module of a preload list that is not preloaded; code in sandboxes can still import it, if it is installed.

    Attributes:
        module: Its name.
        cause: Why: the module is not installed, leaves threads running (which a fork would lose), or fails to import.
        reason: The same in words.
    """

    module: str
    cause: Cause
    reason: str

    def __str__(self) -> str:
        return f"{visible_line(self.module)}: {visible_line(self.reason, max_characters=300)}"


def without(preload: Iterable[str], left_out: Iterable[SkippedModule]) -> tuple[str, ...]:
    """Returns a preload list without the modules that are left out."""
    names = {one.module for one in left_out}
    return tuple(name for name in preload if name not in names)


Say = Callable[[str], None]
# In the folder of a build: what each sandbox finds in its home.
FILES = "files"
# Also in the folder of a build: files that compilers of its languages have prepared.
LANGUAGES = "languages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """The folder and the template of one build.

    Attributes:
        template: The name of the template, for messages.
        folder: An empty folder that stays where it is.
        lock_fd: The lock that marks `folder` as used; inherited by every program that writes into it, so that the
            folder is not deleted while such a program outlives the builder.
        say: Called with each step.
    """

    template: str
    folder: str
    lock_fd: int
    say: Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The environment or image that a source has made.

    Attributes:
        python: The path of the environment's interpreter; None for an image.
        image: The root of an image; None for an environment.
        files: A folder with the files that each sandbox gets in its home; None: no files.
    """

    python: str | None = None
    image: ImageRoot | None = None
    files: str | None = None


class Source(ABC):
    """A source of a template's environment."""

    def prepare(self, name: str, say: Say) -> None:  # noqa: B027 - most sources know their inputs at once
        """Does the work that must precede `describe`, if there is any.

        Args:
            name: The name of the template, for messages.
            say: Called with each step.
        """

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Returns all inputs of the environment, as JSON data: equal data, equal environment."""

    @abstractmethod
    def make(self, workshop: Workshop) -> Made:
        """Makes the environment.

        Raises:
            TemplateStoreError: A step failed; the error holds the last lines of the program that failed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageOrder:
    """The languages that a template is made ready for.

    Attributes:
        names: Their names.
        prepare: Given the template, an absent folder for what is prepared, and a listener for the steps, returns the
            versions of those that are there, by name.
    """

    names: tuple[str, ...]
    prepare: Callable[[Template, str, Say], dict[str, str]]


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,63})?")
# The version of the build; a higher number makes every template be rebuilt.
_FORMAT = 1
RESERVED = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The inputs of a named template.

    Attributes:
        name: Letters, digits, '.', '_' and '-', at most 64; with a tag behind a colon if wanted.
        source: The source of its environment.
        preload: Modules that are imported once.
        files: A folder to be copied, or None.
        envs: Environment of its sandboxes.
        own_interpreter: Whether each sandbox has an interpreter of its own; None: only if the Python is an image's own.
        languages: The languages that it is made ready for; None: those that are installed, without preparation.
        start: The command that each sandbox runs from its creation on.
        limits: The limits of sandboxes that a client of E2B's API makes, by name.
    """

    name: str
    source: Source
    preload: tuple[str, ...] = ()
    files: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    own_interpreter: bool | None = None
    start: StartCommand | None = None
    languages: LanguageOrder | None = None
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_store_name(self.name) or self.name.partition(":")[0] == RESERVED:
            raise InvalidArgumentError(
                field="template name",
                value=self.name,
                allowed="1 to 64 letters, digits, '.', '_' and '-', of which the first is a letter or a digit, and "
                "if wanted a tag of such, as in 'data:v2'; 'default' is the environment that fumehood is installed in",
            )

        # The checks of every template apply to this one too, before anything is built.
        own_interpreter = False if self.own_interpreter is None else self.own_interpreter
        Template(name=self.name, preload=self.preload, envs=self.envs, own_interpreter=own_interpreter)

    def fingerprint(self) -> str:
        """Returns a digest of all inputs.

        Raises:
            InvalidArgumentError: The folder of `files` cannot be given to sandboxes.
        """
        # Imported late: it takes as long as ten of our modules, and only builds need it.
        from importlib import metadata

        inputs: dict[str, object] = {
            "format": _FORMAT,
            "source": self.source.describe(),
            "preload": list(self.preload),
            "files": None if self.files is None else describe_files(self.files),
            "envs": dict(self.envs),
            "own_interpreter": self.own_interpreter,
            "start": None if self.start is None else asdict(self.start),
            "guest": metadata.version("fumehood"),
        }
        if self.languages is not None:
            inputs["languages"] = list(self.languages.names)

        if self.limits:
            inputs["limits"] = dict(self.limits)

        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def is_store_name(name: object) -> bool:
    """Returns whether a template of this name can be on disk; other names never become a path."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
