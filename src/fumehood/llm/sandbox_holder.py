"""The sandbox of an interpreter: borrowed from the caller, or made at first use, replaced when it dies, and killed.

A borrowed sandbox is never started, replaced or killed here. It holds no state of the interpreter: the interpreter
resets its own state when the sandbox is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping

from fumehood import AsyncSandbox, InvalidArgumentError, Sandbox, SandboxNotStartedError


class SandboxHolder:
    """Holds the sandbox of one interpreter.

    Args:
        sandbox: The borrowed one, or None.
        options: Arguments for sandboxes that are made here; those that are None are left out. `lifetime` is the
            sandbox's own `timeout`, a word that means one call here.
    """

    def __init__(self, sandbox: AsyncSandbox | Sandbox | None, options: Mapping[str, object]) -> None:
        self._options = {name: value for name, value in options.items() if value is not None}
        self.is_owner = sandbox is None
        self._sandbox = async_face(sandbox) if sandbox is not None else None

        if sandbox is not None and self._options:
            name, value = next(iter(self._options.items()))
            raise InvalidArgumentError(
                field=name, value=value, allowed="nothing when a sandbox is given: it has its own"
            )

        if "lifetime" in self._options:
            self._options["timeout"] = self._options.pop("lifetime")

    @property
    def current(self) -> AsyncSandbox:
        """The current sandbox.

        Raises:
            SandboxNotStartedError: None was made yet.
        """
        if self._sandbox is None:
            raise SandboxNotStartedError

        return self._sandbox

    @property
    def is_begun(self) -> bool:
        """True when there is a sandbox."""
        return self._sandbox is not None

    async def begin(self) -> AsyncSandbox:
        """Return the sandbox, made now if there is none."""
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox(**self._options).__aenter__()  # type: ignore[arg-type]

        return self._sandbox

    async def replace(self) -> bool:
        """Drop a sandbox that has ended; return True when the next use makes a fresh one."""
        if not self.is_owner:
            return False

        await self.end()
        return True

    async def end(self) -> None:
        """Kill the sandbox if it was made here."""
        if self.is_owner and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()


def async_face(sandbox: AsyncSandbox | Sandbox) -> AsyncSandbox:
    """Return the asynchronous object of a sandbox."""
    if isinstance(sandbox, AsyncSandbox):
        return sandbox

    if isinstance(sandbox, Sandbox):
        return sandbox._async

    raise InvalidArgumentError(
        field="sandbox", value=sandbox, allowed="a Sandbox or an AsyncSandbox, or None"
    )


def sync_face(sandbox: AsyncSandbox) -> Sandbox:
    """Return the synchronous object of a sandbox."""
    face = Sandbox.__new__(Sandbox)
    face._hold(sandbox)
    return face
