"""The caller of a tool: the backend of its sandboxes, and which of them this server has to end.

Runs in the process of the MCP server, on its loop. Over HTTP each request has its own caller, which the server in front
has authenticated, and a sandbox is known by its id alone: the protocol is stateless. Over stdio there is one caller,
the host that has started us: its sandboxes have short names, and a call that names none uses the last one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeAlias, TypeVar

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent

from fumehood import (
    AsyncSandbox,
    Backend,
    CapacityError,
    FumehoodError,
    ProtocolViolationError,
    SandboxClosedError,
    SandboxInfo,
    SandboxNotFoundError,
)
from fumehood.cancellation import wait_shared
from fumehood.mcp.network import NetworkWord, network_named
from fumehood.mcp.outputs import Outputs
from fumehood.mcp.setup import Setup

CallContext: TypeAlias = Context[Any, Any]
Sandboxes: TypeAlias = list[AsyncSandbox]
_P = ParamSpec("_P")

# The key under which the server in front stores the caller of a request.
CALLER_STATE = "mcp_caller"
LABEL = {"made_by": "mcp"}
# A stateless protocol has no end of a session: an unused sandbox is killed after so long.
IDLE_SECONDS = 1800.0
LONGEST_SECONDS = 86_400.0
_MAX_KEPT = 32
_KILL_SECONDS = 10.0
_MAX_SAID = 5
_GONE = (SandboxClosedError, SandboxNotFoundError, ProtocolViolationError)
_T = TypeVar("_T")


@dataclass(slots=True)
class UsedSandbox:
    """What one call uses. Calls that come at once share only the last sandbox of the caller.

    Attributes:
        sandbox: The sandbox; None: none yet.
        ended: A line that the last sandbox has ended and which one the call uses instead; empty: it has not.
    """

    sandbox: AsyncSandbox | None = None
    ended: str = ""


_USED: ContextVar[UsedSandbox] = ContextVar("fumehood_mcp_used")


@contextmanager
def one_call() -> Iterator[UsedSandbox]:
    """A context manager that records what the call in its block uses, tasks started by it included; blocks may nest."""
    used = _USED.get(None) or UsedSandbox()
    token = _USED.set(used)
    try:
        yield used
    finally:
        _USED.reset(token)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """The options of a new sandbox.

    Attributes:
        template: Its template; None: that of the setup.
        envs: Its environment, beside that of the setup.
        idle_timeout_seconds: After how long without a call it ends.
        network: Its network policy.
    """

    template: str | None = None
    envs: Mapping[str, str] | None = None
    idle_timeout_seconds: float = IDLE_SECONDS
    network: NetworkWord = "none"


@dataclass(kw_only=True)
class Caller:
    """The caller of a tool.

    Attributes:
        backend: The backend of its sandboxes; None: that of `Sandbox()`.
        keeps: Whether it is the only caller, the host over stdio: its sandboxes end with this server and have short
            names, and a call that names no sandbox uses the last one.
        max_network: The most network that a sandbox may be given here: none, pip, listed or internet.
        setup: The default options of its sandboxes, which a call may override.
        made: Sandboxes that were made here and must end with this server, by id.
        making: The number of sandboxes that are being made.
        last: The id of the sandbox that was used last; empty: there is none.
        killed: The id of the last sandbox if it was killed and no other was used since.
        names: Short names of the sandboxes made here, by id.
        outputs: The folder that new files of the sandboxes are copied to.
        tools: The names of the tools that this caller is offered.
    """

    backend: Backend | None = None
    keeps: bool = False
    max_network: str = "internet"
    setup: Setup = field(default_factory=Setup)
    made: dict[str, AsyncSandbox] = field(default_factory=dict)
    making: int = 0
    last: str = ""
    killed: str = ""
    names: dict[str, str] = field(default_factory=dict)
    outputs: Outputs | None = None
    tools: Collection[str] = ()
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)
    _successors: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def new(self, wanted: SandboxOptions) -> AsyncGenerator[AsyncSandbox, None]:
        """Make and yield a sandbox; it is killed if the block raises, since the caller then has no id of it.

        Raises:
            CapacityError: The caller has as many sandboxes as one host may have.
            FumehoodError: The sandbox could not be made.
        """
        async with self._handed_out(lambda: self._create(wanted)) as (sandbox,):
            yield sandbox

        _use(self, sandbox)

    @asynccontextmanager
    async def forks(
        self, sandbox: AsyncSandbox, count: int, checkpoint: str | None
    ) -> AsyncGenerator[Sandboxes, None]:
        """Fork a sandbox of the caller; as with `new`, the forks outlive the block only if that succeeds.

        Raises:
            CapacityError: The caller would have more sandboxes than one host may have.
            FumehoodError: The forks could not be made.
        """
        async with self._handed_out(lambda: self._fork(sandbox, count, checkpoint)) as children:
            yield children

    async def sandbox(self, sandbox_id: str | None) -> AsyncSandbox:
        """Return a sandbox of the caller, for a call.

        Args:
            sandbox_id: Its id or its short name; None: the last one, or a first one that is
                made now.

        Raises:
            SandboxNotFoundError: The caller has no sandbox of this id.
            SandboxClosedError: The sandbox has ended.
            ToolError: No sandbox was named, and there is no last one, because each request is independent.
        """
        if sandbox_id is None and not self.keeps:
            raise ToolError("the argument `sandbox_id` is missing\nNext: give the id that run_code returned")

        killed = self.killed

        async with self._beginning:
            if sandbox_id is None and not self.last:
                return await self._replacing(killed, await self._begin())

            found = self.id_of(sandbox_id or self.last)

        return _use(self, self.made.get(found) or await AsyncSandbox.connect(found, backend=self.backend))

    async def sandbox_to_run(self) -> AsyncSandbox:
        """Return the last sandbox, or a new one in place of one that has ended.

        Raises:
            FumehoodError: No sandbox could be made.
        """
        wanted, killed = self.last, self.killed

        async with self._beginning:
            # Another call may have made a sandbox meanwhile: the first one, or one that replaces an ended one.
            begun = self._successors.get(wanted, "") if wanted else self.last
            sandbox = await _living(self, wanted) or await _living(self, begun)

            if sandbox is None:
                sandbox = await self._begin()
                self._successors[wanted] = sandbox.id

        return await self._replacing(wanted or killed, _use(self, sandbox))

    async def bring_files(self, sandbox: AsyncSandbox | None) -> str:
        """Copy new files of a sandbox to the folder for outputs, if there is one; return a line about them."""
        if self.outputs is None or sandbox is None or sandbox.id not in self.made:
            return ""

        try:
            return await self.outputs.bring(sandbox)
        except _GONE:
            return ""

    def name_of(self, sandbox_id: str) -> str:
        """Return the name of a sandbox in answers: its short name, or its id if it was not made here."""
        return self.names.get(sandbox_id, sandbox_id)

    def id_of(self, name: str) -> str:
        """Return the id of a short name; another text is an id."""
        return next((sandbox_id for sandbox_id, known in self.names.items() if known == name), name)

    def shown(self, info: SandboxInfo) -> SandboxInfo:
        """Return the description of a sandbox under its name."""
        return replace(info, id=self.name_of(info.id))

    def with_names(self, text: str) -> str:
        """Return a message with the names of sandboxes in place of their ids."""
        for sandbox_id, name in self.names.items():
            text = text.replace(sandbox_id, name)

        return text

    async def list(self) -> list[SandboxInfo]:
        """Describe the caller's sandboxes."""
        return await AsyncSandbox.list(backend=self.backend)

    async def kill(self, sandbox_id: str) -> bool:
        """End a sandbox; return False if no living sandbox has this id."""
        sandbox_id = self.id_of(sandbox_id)

        if self.last == sandbox_id:
            self.last, self.killed = "", sandbox_id

        try:
            sandbox = self.made.pop(sandbox_id, None) or await AsyncSandbox.connect(
                sandbox_id, backend=self.backend
            )
        except _GONE:
            return False

        return await sandbox.kill()

    async def kill_all(self) -> None:
        """End all sandboxes made here; one that cannot be ended within ten seconds is left to its timeouts."""
        sandboxes = list(self.made.values())
        self.made.clear()

        with anyio.move_on_after(_KILL_SECONDS, shield=True):
            await asyncio.gather(*(_kill_quietly(sandbox) for sandbox in sandboxes))

    @asynccontextmanager
    async def _handed_out(self, make: Callable[[], Awaitable[Sandboxes]]) -> AsyncGenerator[Sandboxes, None]:
        made = await in_order(make, undo=self._take_back)

        try:
            yield made
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._take_back(made)

            raise

    async def _take_back(self, sandboxes: Sandboxes) -> None:
        for sandbox in sandboxes:
            self.made.pop(sandbox.id, None)
            await _kill_quietly(sandbox)

    async def _begin(self) -> AsyncSandbox:
        """Make a sandbox with the setup's options; it becomes the last one, so a cancelled call does not lose it."""
        (sandbox,) = await in_order(lambda: self._create(SandboxOptions()), undo=self._take_back)
        return _use(self, sandbox)

    async def _replacing(self, ended: str, sandbox: AsyncSandbox) -> AsyncSandbox:
        """Record for the answer that a call uses a sandbox in place of an ended one, if there is such; return it."""
        used = _USED.get(None)

        if used is None or ended in ("", sandbox.id):
            return sandbox

        living = {info.id for info in await self.list()} & self.made.keys() - {ended, sandbox.id}
        others = [self.name_of(other) for other in self.made if other in living]
        kept = f" (still there: {', '.join(others[-_MAX_SAID:])})" if others else ""
        used.ended = (
            f"[{self.name_of(ended)} has ended; this ran in the new {self.name_of(sandbox.id)}, without its variables "
            f"and files{kept}]"
        )
        return sandbox

    async def _fork(self, sandbox: AsyncSandbox, count: int, checkpoint: str | None) -> Sandboxes:
        async with self._room(count):
            return self._kept(await sandbox.forks(count, checkpoint=checkpoint))

    async def _create(self, wanted: SandboxOptions) -> Sandboxes:
        network = network_named(wanted.network, self.max_network)

        async with self._room(1):
            sandbox = await AsyncSandbox.create(
                wanted.template or self.setup.template,
                limits=self.setup.limits,
                envs={**self.setup.envs, **(wanted.envs or {})},
                metadata=LABEL,
                timeout=LONGEST_SECONDS,
                idle_timeout=wanted.idle_timeout_seconds,
                strict=self.setup.strict,
                isolation=self.setup.isolation,
                network=network,
                backend=self.backend,
            )

            try:
                await self.setup.fill(sandbox)

                if self.outputs is not None:
                    await self.outputs.begin(sandbox)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await _kill_quietly(sandbox)

                raise

            return self._kept([sandbox])

    def _kept(self, sandboxes: Sandboxes) -> Sandboxes:
        if self.keeps:
            for sandbox in sandboxes:
                self.made[sandbox.id] = sandbox
                self.names[sandbox.id] = f"s{len(self.names) + 1}"

        return sandboxes

    @asynccontextmanager
    async def _room(self, count: int) -> AsyncGenerator[None, None]:
        """Reserves room for this many sandboxes while the block makes them; raises CapacityError if there is none."""
        if self.keeps and len(self.made) + self.making + count > _MAX_KEPT:
            await _forget_ended(self)

        used = len(self.made) + self.making

        if self.keeps and used + count > _MAX_KEPT:
            raise CapacityError(resource="sandboxes", used=used, maximum=_MAX_KEPT)

        self.making += count
        try:
            yield
        finally:
            self.making -= count


def caller_of(context: CallContext) -> Caller:
    """Return the caller of this call."""
    call = context.request_context
    caller = call.lifespan_context if call.request is None else call.request.scope["state"][CALLER_STATE]
    assert isinstance(caller, Caller)
    return caller


async def in_order(
    work: Callable[[], Awaitable[_T]], *, undo: Callable[[_T], Awaitable[object]] | None = None
) -> _T:
    """Do work that a cancelled call ends once and then waits for.

    The SDK's cancellation is raised again at each `await` of a cancelled call, also in its cleanup.

    Args:
        work: The work.
        undo: Undoes the work when the cancellation came too late to stop it.
    """

    async def run() -> _T:
        return await work()

    task = asyncio.create_task(run())
    try:
        return await wait_shared(task)
    except asyncio.CancelledError:
        task.cancel()

        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])

            # The error is retrieved in any case, or the loop would report it as never retrieved.
            if not task.cancelled() and task.exception() is None and undo is not None:
                await undo(task.result())

        raise


def _use(caller: Caller, sandbox: AsyncSandbox) -> AsyncSandbox:
    """Records a sandbox as the one of this call and as the last one; returns it."""
    caller.last, caller.killed = sandbox.id, ""

    if (used := _USED.get(None)) is not None:
        used.sandbox = sandbox

    return sandbox


async def _living(caller: Caller, sandbox_id: str) -> AsyncSandbox | None:
    if not sandbox_id:
        return None

    try:
        sandbox = caller.made.get(sandbox_id) or await AsyncSandbox.connect(
            sandbox_id, backend=caller.backend
        )
        await sandbox.get_info()
    except _GONE:
        return None

    return sandbox


async def _forget_ended(caller: Caller) -> None:
    # A sandbox that is made during this request is not in its answer, and has not ended.
    known = set(caller.made)
    living = {info.id for info in await caller.list()}

    for sandbox_id in known - living:
        if (ended := caller.made.pop(sandbox_id, None)) is not None:
            await _kill_quietly(ended)


async def _kill_quietly(sandbox: AsyncSandbox) -> None:
    try:
        await sandbox.kill()
    except FumehoodError:
        # The sandbox has ended by itself, or its server is gone: it cannot be ended here.
        return


def with_outputs(tool: Callable[_P, Awaitable[CallToolResult]]) -> Callable[_P, Awaitable[CallToolResult]]:
    """Decorate a tool: after each call, copy new files of its sandbox to the folder for outputs, if there is one."""

    @functools.wraps(tool)
    async def brought(*args: _P.args, **kwargs: _P.kwargs) -> CallToolResult:
        with one_call() as used:
            result = await tool(*args, **kwargs)

        context = kwargs.get("context", args[0] if args else None)
        assert isinstance(context, Context)
        line = await in_order(lambda: caller_of(context).bring_files(used.sandbox))
        return result.model_copy(
            update={"content": [*result.content, *([TextContent(text=line)] if line else [])]}
        )

    return brought


def telling_of_ends(tool: Callable[_P, Awaitable[CallToolResult]]) -> Callable[_P, Awaitable[CallToolResult]]:
    """Return the tool so that its answer or refusal begins with a line when a new sandbox replaces an ended one."""

    @functools.wraps(tool)
    async def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> CallToolResult:
        with one_call() as used:
            try:
                result = await tool(*args, **kwargs)
            except ToolError as error:
                if not used.ended:
                    raise

                raise ToolError(f"{used.ended}\n{error}") from error

        if not used.ended:
            return result

        first, *others = result.content or [TextContent(text="")]

        # Hosts that show only the first text show it too.
        if isinstance(first, TextContent):
            first = first.model_copy(update={"text": f"{used.ended}\n{first.text}"})
            return result.model_copy(update={"content": [first, *others]})

        return result.model_copy(update={"content": [TextContent(text=used.ended), first, *others]})

    return wrapped
