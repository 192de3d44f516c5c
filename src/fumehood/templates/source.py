"""The interface between the builder of named templates and the sources of an environment.

A source describes itself as plain data, by which a rebuild knows whether anything has changed, and makes the
environment in an empty folder. Requirements are the first source; another one, such as an image that was pulled, needs
these two verbs and nothing of the builder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """The folder and the template of one build.

    Attributes:
        template: The name of the template, for messages.
        folder: An empty folder that stays where it is.
        lock_fd: The lock that marks `folder` as used; inherited by every program that writes into it, so that the
            folder is not deleted under one that outlives its builder.
        say: Called with each step.
    """

    template: str
    folder: str
    lock_fd: int
    say: Say


class Source(ABC):
    """A source of a template's environment."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Returns all inputs of the environment, as JSON data: equal data, equal environment."""

    @abstractmethod
    def make(self, workshop: Workshop) -> str:
        """Makes the environment and returns the path of its interpreter.

        Raises:
            TemplateStoreError: A step failed; the error holds the last lines of the program that failed.
        """
