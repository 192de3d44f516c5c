"""The contexts of one sandbox, by name: the default context, the one for plain bash code, and those created by callers.

It finds the context that a request means and bounds their number; the lifecycle of a context is in `LiveContext`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from fumehood.cancellation import complete, keep
from fumehood.engine.contexts.context import LiveContext
from fumehood.engine.contexts.process import ContextOwner
from fumehood.errors import ContextNotFoundError, InvalidArgumentError
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.requests import (
    DEFAULT_CONTEXT_ID,
    ContextCall,
    CreateContext,
    ExecuteRequest,
    ListContexts,
    RemoveContext,
    RestartContext,
)
from fumehood.values.sandbox import ContextInfo


def default_context(workdir: str) -> ContextInfo:
    """Returns the description of the context that each sandbox has from the start."""
    return ContextInfo(id=DEFAULT_CONTEXT_ID, language="python", cwd=workdir)


def forked_context(origin: ContextInfo, workdir: str) -> ContextInfo:
    """Returns the description of a fork's first context: the default one, or one of a language other than Python."""
    if origin.language == "python":
        return default_context(workdir)

    return ContextInfo(id=origin.language, language=origin.language, cwd=origin.cwd)


_MAX_CONTEXTS = 32


class LiveContexts:
    """The contexts of one sandbox.

    Args:
        sandbox: The sandbox; its contexts use the methods of `ContextOwner`.
        start_folder: Resolves a caller's path to the folder in which a context starts.
        workdir: The folder in which a context starts if its caller names none.
        first: Describes the context that is there from the start; None: the default one.
    """

    def __init__(
        self,
        sandbox: ContextOwner,
        start_folder: Callable[[str], Awaitable[str]],
        workdir: str = HOME_PATH,
        first: ContextInfo | None = None,
    ) -> None:
        self.first = LiveContext(sandbox, first or default_context(workdir))
        self._workdir = workdir
        self._sandbox = sandbox
        self._start_folder = start_folder
        self._contexts: dict[str, LiveContext] = {self.first.info.id: self.first}
        self._next_number = 1

    def __iter__(self) -> Iterator[LiveContext]:
        return iter(tuple(self._contexts.values()))

    @property
    def busy(self) -> bool:
        """Whether code runs in any context."""
        return any(context.busy for context in self)

    def named(self, context_id: str | None, language: str = "python") -> LiveContext:
        """Returns the context that a call means: if the call names none, the default one or that of the language.

        Raises:
            ContextNotFoundError: The context does not exist.
        """
        if context_id is None and language != "python":
            return self._made(language, language)

        if context_id is None or context_id == DEFAULT_CONTEXT_ID:
            return self._made(DEFAULT_CONTEXT_ID, "python")

        return self.existing(context_id)

    def existing(self, context_id: str) -> LiveContext:
        """Returns the context with this name.

        Raises:
            ContextNotFoundError: The context does not exist.
        """
        context = self._contexts.get(context_id)

        if context is None:
            raise ContextNotFoundError(context_id=context_id)

        return context

    def for_request(self, request: ExecuteRequest) -> LiveContext:
        """Returns the context that code is to run in."""
        return self.named(request.context_id, request.language)

    def interrupt(self, context_id: str | None) -> bool:
        """Interrupts the running execution of a context; returns False if there is none."""
        name = context_id or DEFAULT_CONTEXT_ID

        if name == DEFAULT_CONTEXT_ID and name not in self._contexts:
            return False

        return self.existing(name).interrupt()

    async def call(self, call: ContextCall) -> tuple[ContextInfo, ...]:
        """Creates, lists, restarts or removes contexts."""
        match call:
            case ListContexts():
                return tuple(context.info for context in self)
            case CreateContext():
                return (await self._create(call),)
            case RestartContext():
                context = self.existing(call.context_id)
                await context.replace()
                return (context.info,)
            case RemoveContext():
                # Completed after a cancellation, so that no context stays listed that cannot be used.
                await complete(self._remove(self.existing(call.context_id)))
                return ()

    async def _create(self, call: CreateContext) -> ContextInfo:
        cwd = self._workdir if call.cwd is None else await self._start_folder(call.cwd)

        # There must be no await between this check and the insertion.
        if len(self._contexts) >= _MAX_CONTEXTS:
            raise InvalidArgumentError(
                field="contexts",
                value=len(self._contexts) + 1,
                allowed=f"at most {_MAX_CONTEXTS} in a sandbox",
            )

        context_id = f"context-{self._next_number}"
        self._next_number += 1
        info = ContextInfo(id=context_id, language=call.language, cwd=cwd)
        context = self._contexts[context_id] = LiveContext(self._sandbox, info)
        try:
            await context.start()
        except BaseException:
            # Its id was not returned yet, but it may be starting.
            keep(self._remove(context))
            raise

        return info

    async def _remove(self, context: LiveContext) -> None:
        await context.remove()
        self._contexts.pop(context.info.id, None)
        self._sandbox.recorder.forget(context.info.id)

    def _made(self, name: str, language: str) -> LiveContext:
        if name not in self._contexts:
            info = ContextInfo(id=name, language=language, cwd=self._workdir)
            self._contexts[name] = LiveContext(self._sandbox, info)

        return self._contexts[name]
