"""Sessions of Jupyter's REST API: the kernel of each notebook or console. They are kept here, in memory.

A session belongs to the key that made it and lasts as long as its kernel.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.errors import InvalidArgumentError, OverloadedError

_MAX_SESSIONS = 10_000
_MAX_CHARACTERS = 4096
# So that one key cannot use up the sessions of all others.
_MAX_SESSIONS_OF_KEY = 1000
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSession:
    """One session.

    Attributes:
        id: Its name in every call.
        owner: The key it belongs to.
        path: The notebook, or another name of the client that has the kernel.
        name: How it is shown.
        kind: notebook, console or another word of the client's.
        kernel: Its kernel.
    """

    id: str
    owner: str
    path: str
    name: str
    kind: str
    kernel: Kernel

    def model(self) -> dict[str, Any]:
        """Returns its model in the REST API."""
        return {
            "id": self.id,
            "path": self.path,
            "name": self.name,
            "type": self.kind,
            "kernel": self.kernel.model(),
            # For clients of before 2017.
            "notebook": {"path": self.path, "name": self.name},
        }


class NotebookSessions:
    """The sessions of one server."""

    def __init__(self) -> None:
        self._sessions: dict[str, NotebookSession] = {}

    def all_of(self, owner: str) -> list[NotebookSession]:
        """Returns the sessions of a key whose kernels live."""
        self._sweep()
        return [session for session in self._sessions.values() if session.owner == owner]

    def is_used(self, kernel: Kernel) -> bool:
        """Tells whether a session has this kernel; all that have it belong to one key."""
        return any(session.kernel is kernel for session in self._sessions.values())

    def find(self, owner: str, session_id: str) -> NotebookSession | None:
        """Returns one of them by its id."""
        return next((session for session in self.all_of(owner) if session.id == session_id), None)

    def find_by_path(self, owner: str, path: str) -> NotebookSession | None:
        """Returns one of them by its path."""
        return next((session for session in self.all_of(owner) if session.path == path), None)

    def add(self, owner: str, content: Mapping[str, Any], kernel: Kernel) -> NotebookSession:
        """Makes a session.

        Raises:
            OverloadedError: There are too many.
        """
        if len(self._sessions) >= _MAX_SESSIONS or len(self.all_of(owner)) >= _MAX_SESSIONS_OF_KEY:
            raise OverloadedError(
                reason="it keeps as many notebook sessions as it may", retry_after_seconds=60.0
            )

        session = NotebookSession(
            id=str(uuid.uuid4()),
            owner=owner,
            path=read_text(content, "path"),
            name=read_text(content, "name", ""),
            kind=read_text(content, "type", "notebook"),
            kernel=kernel,
        )
        self._sessions[session.id] = session
        return session

    def change(
        self, session: NotebookSession, content: Mapping[str, Any], kernel: Kernel | None
    ) -> NotebookSession:
        """Gives a session another path, name, kind or kernel."""
        changed = replace(
            session,
            path=read_text(content, "path", session.path),
            name=read_text(content, "name", session.name),
            kind=read_text(content, "type", session.kind),
            kernel=kernel or session.kernel,
        )
        self._sessions[session.id] = changed
        return changed

    def remove(self, session: NotebookSession) -> None:
        """Removes a session."""
        self._sessions.pop(session.id, None)

    def _sweep(self) -> None:
        for session in list(self._sessions.values()):
            if session.kernel.state == "dead":
                self.remove(session)


def read_text(content: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Returns a text of a body, or the default if there is none.

    Raises:
        InvalidArgumentError: It is no text, is too long, or must be there and is not.
    """
    value = content.get(name)

    if value is None and default is not None:
        return default

    # Half a surrogate pair could not be encoded in any response.
    if not isinstance(value, str) or len(value) > _MAX_CHARACTERS or _HALVES.search(value):
        raise InvalidArgumentError(
            field=name, value=value, allowed=f"text of at most {_MAX_CHARACTERS} characters"
        )

    return value
