"""What drivers of languages have in common: their interface, and the error of a program that is not there."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Tuple


class MissingProgramError(Exception):
    """What a language needs is not there; the text says what."""


class DriverProgram(Protocol):
    """A program that runs cells, and how it is spoken to.

    Attributes:
        fds: Descriptors that it inherits beside those of its pipes.
    """

    fds: Tuple[int, ...]

    def command(self, requests: int, replies: int, breaks: int) -> Tuple[Tuple[str, ...], Dict[str, str]]:
        """Returns the program with its arguments, and the variables that it needs, for these descriptors."""

    def encode(self, request: Dict[str, Any]) -> bytes:
        """Returns the body of a request."""
