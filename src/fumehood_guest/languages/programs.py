"""The interface of language drivers, and the error for a program that is not installed."""

from __future__ import annotations

from typing import Any, Dict, Protocol, Tuple


class MissingProgramError(Exception):
    """A program that a language needs is not installed; the message names it."""


class DriverProgram(Protocol):
    """A program that runs cells: how to start it, and how to encode requests to it.

    Attributes:
        fds: Descriptors that it inherits beside those of its pipes.
    """

    fds: Tuple[int, ...]

    def command(
        self, requests: int, replies: int, breaks: int, settled: int
    ) -> Tuple[Tuple[str, ...], Dict[str, str]]:
        """Returns the program with its arguments, and the variables that it needs.

        Args:
            requests: The pipe from which it reads requests.
            replies: The pipe to which it writes replies, and what a cell prints.
            breaks: A pipe with a byte for each interrupt that it did not react to.
            settled: A pipe with a byte for each of its messages of the type `settle`, as soon as all output before
                that message was passed on.
        """

    def encode(self, request: Dict[str, Any]) -> bytes:
        """Returns the body of a request."""
