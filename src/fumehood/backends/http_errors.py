"""Problem details back to the error that the server raised: the same class, with the same fields.

Runs in the process that asks a server. A code that is not known here (a newer server's) becomes the branch of the
tree that fits, and keeps its code.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fumehood import checkpoint_errors, errors, fork_errors, save_errors, service_errors
from fumehood.errors import (
    FumehoodError,
    InvalidArgumentError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.service_errors import ServiceError

# What a server says of a sandbox that does not live.
GONE = (SandboxNotFoundError, SandboxClosedError, ProtocolViolationError)
_MAX_TEXT = 10_000
# What Python's own classes beside ours have, which does not travel.
_ERRNO: Mapping[str, int] = {
    "path_not_found": errno.ENOENT,
    "path_exists": errno.EEXIST,
    "path_is_directory": errno.EISDIR,
    "path_not_directory": errno.ENOTDIR,
    "path_permission": errno.EACCES,
    "disk_full": errno.ENOSPC,
    "process_not_found": errno.ESRCH,
    "port_closed": errno.ECONNREFUSED,
}


def error_of(problem: Mapping[str, Any]) -> FumehoodError:
    """Returns the error that a body of problem details stands for."""
    code = str(problem.get("code", ""))
    detail = str(problem.get("detail", ""))[:_MAX_TEXT]
    fields = problem.get("fields")
    given = fields if isinstance(fields, dict) else {}

    if code == InvalidArgumentError.code and "field" not in given:
        # The server's own check of the form of a request names what is wrong in a list.
        return InvalidArgumentError(field="request", value=detail, allowed="what the server describes")

    kind = _kinds().get(code, ServiceError)
    error = kind.__new__(kind, detail)
    error.args = (detail,)
    error.message = detail
    error.hint = str(problem.get("hint", ""))[:_MAX_TEXT]
    error.outcome_unknown = problem.get("outcome_unknown") is True

    for name, value in given.items():
        if not hasattr(kind, name):
            setattr(error, name, value)

    if isinstance(error, OSError) and code in _ERRNO:
        error.errno = _ERRNO[code]

    return error


@cache
def _kinds() -> dict[str, type[FumehoodError]]:
    return {kind.code: kind for kind in _tree()}


def _tree() -> Iterator[type[FumehoodError]]:
    for module in (errors, checkpoint_errors, fork_errors, save_errors, service_errors):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, FumehoodError):
                yield value
