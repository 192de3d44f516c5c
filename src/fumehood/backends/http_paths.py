"""Where the parts of a sandbox are on a server.

Runs in the process that asks one.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from fumehood.errors import SandboxNotFoundError

_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def sandbox_path(sandbox_id: str, *parts: str) -> str:
    """Returns the path of a part of a sandbox.

    Raises:
        SandboxNotFoundError: No server has a sandbox of such a name.
    """
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        # In a path it might mean something else.
        raise SandboxNotFoundError(sandbox_id=sandbox_id)

    return "/".join(["/v1/sandboxes", quoted(sandbox_id), *map(quoted, parts)])


def quoted(part: str) -> str:
    """Returns a name as one part of a path."""
    return quote(part, safe="")
