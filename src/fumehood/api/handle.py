"""The state of a sandbox object: its backend, the sandbox's id, and the process that may use it.

The parts of one object (`files`, `commands`, `pty`) share one handle, so that they agree on whether the sandbox was
started. A handle never ends a sandbox.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

from fumehood.errors import InvalidArgumentError, SandboxNotStartedError, WrongProcessError
from fumehood.port.backend import Backend
from fumehood.tracebacks import PlainErrors
from fumehood.values.sandbox import SandboxInfo


class Uncopied(PlainErrors):
    """A class whose objects cannot be pickled or copied: two objects for one sandbox would both end it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: pass on its `id`, and take hold of it there with "
            "`connect(id)` (in another process: of a sandbox at a server), or `fork()` it to have a second one"
        )


class SandboxHandle:
    """A backend and, once the sandbox was made, its id."""

    def __init__(self, backend: Backend | None) -> None:
        self._backend = backend
        self._wrap: Callable[[Backend], Backend] | None = None
        self._wrapped: Backend | None = None
        self._info: SandboxInfo | None = None
        self._owner_pid = os.getpid()

    @property
    def is_granted(self) -> bool:
        """True once the sandbox was made."""
        return self._info is not None

    @property
    def is_foreign(self) -> bool:
        """True in a forked child, which may not use its parent's sandbox."""
        return os.getpid() != self._owner_pid

    @property
    def backend(self) -> Backend:
        """The backend of the sandbox; the one of this process unless another was named."""
        if self._wrapped is None:
            plain = self.plain_backend
            self._wrapped = plain if self._wrap is None else self._wrap(plain)

        return self._wrapped

    @property
    def plain_backend(self) -> Backend:
        """The backend of the sandbox without the layer that `wrap` has added."""
        if self._backend is None:
            self._backend = default_backend()

        return self._backend

    def bound(self) -> SandboxHandle:
        """Return a handle of the present sandbox only, never of one that replaces it.

        For objects that hold a pid in it.
        """
        if self._info is None:
            return self

        other = SandboxHandle(self._backend)
        other._info, other._owner_pid, other._wrapped = self._info, self._owner_pid, self.backend
        return other

    def wrap(self, make: Callable[[Backend], Backend]) -> None:
        """Replace the backend, before its first use, by the one that `make` returns for it."""
        self._wrap = make

    @property
    def info(self) -> SandboxInfo:
        """The description of the sandbox when it was started.

        Raises:
            SandboxNotStartedError: The sandbox was not started yet.
            WrongProcessError: The caller is a forked child of the process that made the sandbox.
        """
        if self._info is None:
            raise SandboxNotStartedError

        if self.is_foreign:
            raise WrongProcessError(sandbox_id=self._info.id, owner_pid=self._owner_pid)

        return self._info

    @property
    def id(self) -> str:
        """The sandbox's id; raises like `info`."""
        return self.info.id

    def grant(self, info: SandboxInfo) -> None:
        """Set the sandbox of this handle."""
        self._info = info
        self._owner_pid = os.getpid()


def check_child(child: object, kind: type) -> None:
    """Raise InvalidArgumentError unless `child` is a sandbox of this kind, as `fork()` returns them."""
    if not isinstance(child, kind):
        raise InvalidArgumentError(
            field="child", value=child, allowed="one of the sandboxes that `fork()` has returned"
        )


def default_backend() -> Backend:
    """Return the default backend: the server of FUMEHOOD_URL, or else this process."""
    # By name and late: the API knows the port only, and importing it must not load an engine.
    from fumehood.assemble import chosen_backend

    return chosen_backend()


def named_backend(url: str | None, api_key: str | None, backend: Backend | None = None) -> Backend | None:
    """Return the backend that the caller has given, as an object or by its server's address; None if none was given.

    Raises:
        InvalidArgumentError: `backend` is not a backend, the URL is invalid, or there is a key without a server.
    """
    if backend is not None:
        if not isinstance(backend, Backend):
            raise InvalidArgumentError(
                field="backend", value=backend, allowed="a Backend; the address of a server goes into `url`"
            )

        return backend

    if url is None and api_key is None:
        return None

    from fumehood.assemble import remote_backend

    return remote_backend(url, api_key)
