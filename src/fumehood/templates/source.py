"""The port between the builder of named templates and the places that an environment can come from.

A source describes itself as plain data, by which a rebuild knows whether anything has changed, and makes the
environment in an empty folder. Requirements are the first source; another one, such as an image that was pulled,
needs these two verbs and nothing of the builder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where and for whom an environment is made.

    Attributes:
        template: The name of the template, for messages.
        folder: An empty folder that stays where it is.
        lock_fd: What says that `folder` is in use; given to every program that writes into it, so that the
            folder is not swept away under one that outlives its builder.
        say: Hears of each step.
    """

    template: str
    folder: str
    lock_fd: int
    say: Say


class Source(ABC):
    """Where the environment of a template comes from."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Returns all that the environment depends on, as what JSON can hold: equal data, equal environment."""

    @abstractmethod
    def make(self, workshop: Workshop) -> str:
        """Makes the environment and returns the path of its interpreter.

        Raises:
            TemplateStoreError: A step failed; the error holds the last lines of the program that failed.
        """
