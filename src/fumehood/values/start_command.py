"""The program that a template starts in each of its sandboxes, and the check that tells when it is ready.

Plain data of the host process. A check is one text, the same in Python, on the command line and over HTTP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast
from urllib.parse import urlsplit

from fumehood.errors import InvalidArgumentError

CheckKind = Literal["port", "url", "file", "command"]
MAX_READY_SECONDS = 3600.0
_MAX_CHARACTERS = 1 << 16
_ALLOWED = (
    "port:NUMBER, url:http://localhost:NUMBER/PATH, file:/PATH, command:LINE, or nothing: ready once started"
)
_LOCAL = ("localhost", "127.0.0.1", "0.0.0.0", "::1")  # noqa: S104 - names of the sandbox's own loopback
_PLAIN_PATH = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyCheck:
    """The check that is repeated until a start command is ready.

    Attributes:
        kind: A port that takes connections, a URL that answers with 2xx, a file that exists, or a command that ends
            with 0.
        port: The port of a port or URL check; 0 otherwise.
        text: The path of a URL with its query, the path of a file, or the command.
    """

    kind: CheckKind
    port: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """A command that runs in each sandbox of a template, from its creation on.

    Attributes:
        command: A shell command.
        ready: `port:NUMBER`, `url:http://localhost:NUMBER/PATH` (2xx is ready), `file:/PATH` or `command:LINE` (exit
            code 0 is ready). A sandbox is handed out only when this check succeeds; empty: as soon as the command has
            started.
        ready_seconds: How long the check may take to succeed before the start of the sandbox fails.
    """

    command: str
    ready: str = ""
    ready_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not _is_line(self.command):
            raise InvalidArgumentError(field="start", value=self.command, allowed="a line for the shell")

        if not isinstance(self.ready, str) or len(self.ready) > _MAX_CHARACTERS:
            raise InvalidArgumentError(field="ready", value=self.ready, allowed=_ALLOWED)

        is_number = isinstance(self.ready_seconds, (int, float)) and not isinstance(self.ready_seconds, bool)

        if not is_number or not 0 < self.ready_seconds <= MAX_READY_SECONDS:
            allowed = f"seconds, more than 0 and at most {MAX_READY_SECONDS:g}"
            raise InvalidArgumentError(field="ready_timeout", value=self.ready_seconds, allowed=allowed)

        self.check()

    def check(self) -> ReadyCheck | None:
        """Returns the parsed check of `ready`; None if it is empty."""
        if not self.ready:
            return None

        kind, _, text = self.ready.partition(":")

        if (
            kind == "port"
            and text.isascii()
            and text.isdecimal()
            and len(text) <= 5
            and 0 < int(text) <= 65_535
        ):
            return ReadyCheck(kind="port", port=int(text))

        if kind == "url" and (found := _read_url(text)) is not None:
            return found

        if (kind == "file" and text.startswith("/") and _is_line(text)) or (
            kind == "command" and _is_line(text)
        ):
            return ReadyCheck(kind=cast("CheckKind", kind), text=text)

        raise InvalidArgumentError(field="ready", value=self.ready, allowed=_ALLOWED)


def read_start(command: str | None, ready: str = "", ready_seconds: float = 60.0) -> StartCommand | None:
    """Returns the start command with these three parts; None if there is no command.

    Raises:
        InvalidArgumentError: A part is invalid, or there is a check without a command.
    """
    if command is not None:
        return StartCommand(command=command, ready=ready, ready_seconds=ready_seconds)

    if ready:
        raise InvalidArgumentError(field="ready", value=ready, allowed="none without a start command")

    return None


def _read_url(text: str) -> ReadyCheck | None:
    """Returns the check of a URL of the sandbox itself; None for another one."""
    try:
        parts = urlsplit(text)
        port = parts.port or 80
    except ValueError:
        return None

    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"

    # It becomes a line of a request.
    if parts.scheme != "http" or parts.hostname not in _LOCAL or not _PLAIN_PATH.fullmatch(path):
        return None

    return ReadyCheck(kind="url", port=port, text=path)


def _is_line(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _MAX_CHARACTERS and "\0" not in text
