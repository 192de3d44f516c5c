"""The verbs that save a sandbox and load one, for `Sandbox` and `AsyncSandbox`.

Runs in the host process, on the caller's side of the backend port, which gives a saved state as a stream and takes one
as a file. Where that lies is decided here: on this machine, or in a bucket.

The verbs of going back, for `Sandbox` and `AsyncSandbox`: make a checkpoint, go back to it, forget it.

The verbs of forking, for `Sandbox` and `AsyncSandbox`: go on several times from one state, and keep one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, cast

from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.portal import call
from fumehood.values.execution import Record
from fumehood.values.judging import CaseResult, JudgeRequest, checked_cases, judged
from fumehood.values.limits import Limits
from fumehood.values.network import NetworkChoice
from fumehood.values.requests import (
    DropCheckpoint,
    ForkRequest,
    ForkSeconds,
    ListCheckpoints,
    Loaded,
    LoadRequest,
    RollBack,
    SandboxSpec,
    TakeCheckpoint,
)
from fumehood.values.sandbox import CheckpointInfo, ContextInfo, TimeoutAction
from fumehood.values.saved_state import LoadReport, SaveReport
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.api.handle import SandboxHandle
    from fumehood.port.backend import Backend


Context: TypeAlias = ContextInfo | str
Checkpoint: TypeAlias = CheckpointInfo | str
CheckpointInfos: TypeAlias = list[CheckpointInfo]
CaseResults: TypeAlias = list[CaseResult]


class AsyncTimeTravel:
    """What `AsyncSandbox` can go back to; described at `TimeTravel`."""

    _sandbox_handle: SandboxHandle

    async def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Keep the state of a context and the files, to go back to."""
        call = TakeCheckpoint(context_id=_context_id(context), name=name, strict=strict)
        return (await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call))[0]

    async def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint."""
        call = RollBack(checkpoint_id=_checkpoint_id(checkpoint))
        return (await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call))[0]

    async def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints."""
        return [
            *await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, ListCheckpoints())
        ]

    async def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint."""
        call = DropCheckpoint(checkpoint_id=_checkpoint_id(checkpoint))
        await self._sandbox_handle.backend.checkpoint_call(self._sandbox_handle.id, call)

    async def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program for many inputs, and compare what it prints with what it should."""
        pairs = checked_cases(cases)
        request = JudgeRequest(
            code=code,
            stdins=tuple(stdin for stdin, _ in pairs),
            wall_seconds=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
        )
        runs = await self._sandbox_handle.backend.judge(self._sandbox_handle.id, request)
        return [judged(run, expected) for run, (_, expected) in zip(runs, pairs, strict=True)]


class TimeTravel:
    """What `Sandbox` can go back to."""

    _async: AsyncTimeTravel

    def checkpoint(
        self, name: str | None = None, *, context: Context | None = None, strict: bool = False
    ) -> CheckpointInfo:
        """Keep the state of a context and the files, as they are now, to go back to.

        Every live object of the context is kept as it is: variables, modules, generators half-way, open files,
        random states. It takes a few milliseconds, and memory only for what changes afterwards. What cannot be kept
        (other threads, child processes, sockets) is named in `left_behind`. At most 16 are kept; the oldest goes.

        Args:
            name: A name of yours; `rollback` takes it as well.
            context: Whose state; None: the default one. A context of bash cannot be kept.
            strict: Refuse when anything could not be kept.

        Raises:
            CheckpointError: It cannot be made; the sandbox is as it was.
        """
        return call(self._async.checkpoint, name, context=context, strict=strict)

    def rollback(self, checkpoint: Checkpoint) -> CheckpointInfo:
        """Go back to a checkpoint: state and files are what they were then; the checkpoint stays.

        Other contexts, and commands that run, go on.

        Args:
            checkpoint: What `checkpoint` returned, its id, or its name.

        Raises:
            CheckpointNotFoundError: There is none of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it; the sandbox is as it was.
            CheckpointError: There is no room to go back; the sandbox is as it was.
        """
        return call(self._async.rollback, checkpoint)

    def list_checkpoints(self) -> CheckpointInfos:
        """List the checkpoints, the oldest first."""
        return call(self._async.list_checkpoints)

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint, and free what it holds."""
        call(self._async.drop_checkpoint, checkpoint)

    def judge(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        timeout: float = 10.0,
        memory_bytes: int | None = None,
        concurrency: int | None = None,
    ) -> CaseResults:
        """Run a program once for each case, and say whether it prints what it should.

        What the program imports at its top is imported once; each case is a fork of that, with its own memory,
        standard input and limits, so that a thousand cases take seconds. Variables of the sandbox are not seen by
        it; its files are, and are as before afterwards. What should be printed never enters the sandbox.

        Args:
            code: The program, in Python; it runs as `__main__`.
            cases: Of each, what it reads and what it should print. Lines are compared without the space at their ends;
                more than `limits.stdout_bytes` is cut off, and not accepted.
            timeout: Seconds of each run.
            memory_bytes: What each run may take beyond the interpreter and the imports.
            concurrency: How many run at once; as many as there are processors unless given.

        Raises:
            CheckpointError: The program could not be prepared.
        """
        return call(
            self._async.judge,
            code,
            cases,
            timeout=timeout,
            memory_bytes=memory_bytes,
            concurrency=concurrency,
        )


def _checkpoint_id(checkpoint: Checkpoint) -> str:
    return checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint


def _context_id(context: Context | None) -> str | None:
    return context.id if isinstance(context, ContextInfo) else context


class _Held:
    """What is held and not owned has no copy: two of them would both end it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: pass on its `id`, and take hold of it there with "
            "`connect(id)` (in another process: of a sandbox at a server), or `fork()` it to have a second one"
        )


class AsyncForking(_Held):
    """How `AsyncSandbox` is forked; described at `Forking`."""

    _sandbox_handle: SandboxHandle
    _is_open: bool
    _left_behind: tuple[str, ...] = ()

    if TYPE_CHECKING:

        def __init__(self, *, backend: Backend | None = None) -> None: ...

    @property
    def left_behind(self) -> tuple[str, ...]:
        """What could not come along from its parent."""
        return self._left_behind

    async def fork(
        self,
        count: int = 1,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> list[Self]:
        """Make sandboxes that go on from the state of this one."""
        request = ForkRequest(
            count=count,
            checkpoint_id=checkpoint.id if isinstance(checkpoint, CheckpointInfo) else checkpoint,
            reseed=reseed,
            timeout_seconds=timeout,
            metadata=metadata,
        )
        forked = await self._sandbox_handle.backend.fork(self._sandbox_handle.id, request)
        children = []

        for info in forked.items:
            child = type(self)(backend=self._sandbox_handle.backend)
            child._sandbox_handle.grant(info)
            child._is_open = True
            child._left_behind = forked.left_behind
            children.append(child)

        return children

    async def adopt(self, child: Self) -> None:
        """Go on as a fork of this sandbox, under this one's id."""
        _check_child(child, AsyncForking)
        info = await self._sandbox_handle.backend.adopt(self._sandbox_handle.id, child._sandbox_handle.id)
        child._is_open = False
        self._sandbox_handle.grant(info)
        self._left_behind = child._left_behind


class Forking(_Held):
    """How `Sandbox` is forked."""

    _async: AsyncForking

    if TYPE_CHECKING:

        def _hold(self, async_impl: Any) -> None: ...

    @property
    def left_behind(self) -> tuple[str, ...]:
        """Of a fork: what could not come along from its parent, in words; empty for what is none."""
        return self._async.left_behind

    def fork(
        self,
        count: int = 1,
        *,
        checkpoint: CheckpointInfo | str | None = None,
        reseed: bool = True,
        timeout: ForkSeconds = "inherit",
        metadata: Mapping[str, str] | None = None,
    ) -> list[Self]:
        """Make sandboxes that go on from the state of this one, each on its own; this one goes on as well.

        A fork has the variables, modules, open files, working directory, environment and record of the default context,
        and all files, as they are now or were at a checkpoint; limits, network and labels are those of its parent. It
        is a sandbox like any other: it sees nothing of its parent and of other forks, lives on when they end, and ends
        when it is killed or its `with` is left. What cannot come along is named in its `left_behind`: other contexts,
        running commands, threads, child processes, sockets.

        Args:
            count: How many, up to 64; all of them are made, or none.
            checkpoint: Go on from there: what `checkpoint()` returned, its id, or its name. None: from now on.
            reseed: Let randomness diverge: each draws numbers of its own. False: all draw the same.
            timeout: Seconds after which each is killed, or paused, as its parent; None: it lives until it is killed;
                "inherit": as many as its parent was given, counted from now on.
            metadata: Labels of each; those of the parent unless given.

        Raises:
            CheckpointNotFoundError: There is no checkpoint of this id or name.
            CheckpointLostError: Code in the sandbox, or a lack of memory, has ended it.
            ForkDepthError: This one is a fork of a fork of ... already.
            ForkError: They could not be made; the sandbox is as it was.
        """
        async_impls = call(
            self._async.fork,
            count,
            checkpoint=checkpoint,
            reseed=reseed,
            timeout=timeout,
            metadata=metadata,
        )
        return [self._around(async_impl) for async_impl in async_impls]

    def adopt(self, child: Self) -> None:
        """Go on as a fork of this sandbox: its state under this one's id; what was here before is killed.

        The fork's object is of no use afterwards, and its id has ended with the reason `adopted`.

        Args:
            child: What `fork` has returned.

        Raises:
            InvalidArgumentError: It is no fork of this sandbox.
            ForkError: It could not be done; both are as they were.
        """
        _check_child(child, Forking)
        call(self._async.adopt, child._async)

    def _around(self, async_impl: AsyncForking) -> Self:
        sandbox = type(self).__new__(type(self))
        sandbox._hold(async_impl)
        return sandbox


def _check_child(child: object, kind: type) -> None:
    if not isinstance(child, kind):
        raise InvalidArgumentError(
            field="child", value=child, allowed="one of the sandboxes that `fork()` has returned"
        )


StatePlace: TypeAlias = str | os.PathLike[str]


class AsyncSaving:
    """What `AsyncSandbox` does to last; described at `Saving`."""

    _sandbox_handle: SandboxHandle
    _spec: SandboxSpec
    _load_report: LoadReport | None = None

    @property
    def load_report(self) -> LoadReport | None:
        """What of a saved state is in it."""
        return self._load_report

    async def save(self, place: StatePlace) -> SaveReport:
        """Write what lasts of the sandbox to a file."""
        # Late, as below: who never saves does not load what writes archives.
        from fumehood.saved.verbs import save_to

        return await save_to(self._sandbox_handle.backend, self._sandbox_handle.id, place)

    @classmethod
    async def load(
        cls,
        place: StatePlace,
        *,
        template: str | Template | None = None,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        auto_resume: bool = False,
        strict: bool = False,
        network: NetworkChoice = "none",
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Self:
        """Start a sandbox from a file that `save` has written."""
        from fumehood.saved.verbs import load_from

        sandbox = cast(Any, cls)(
            "default" if template is None else template,
            limits=limits,
            envs=envs,
            metadata=metadata,
            timeout=timeout,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            strict=strict,
            network=network,
            url=url,
            api_key=api_key,
            backend=backend,
        )
        request = LoadRequest(spec=sandbox._spec, keep_template=template is None)
        loaded: Loaded = await load_from(sandbox._sandbox_handle.backend, request, place)
        sandbox._sandbox_handle.grant(loaded.sandbox)
        sandbox._is_open = True
        sandbox._load_report = loaded.report
        return cast(Self, sandbox)


class Saving:
    """What `Sandbox` does to last."""

    _async: Any
    # The asynchronous face.
    _async_kind: Any

    @property
    def load_report(self) -> LoadReport | None:
        """What of a saved state is in it, of a sandbox that was loaded; None of any other."""
        return cast("LoadReport | None", self._async.load_report)

    def save(self, place: StatePlace) -> SaveReport:
        """Write what lasts of the sandbox to a file, from which `load` makes one like it, today or in a year.

        Kept are the files of the writable places, the environment, the record of what ran, and of each context of
        Python the working directory, the imported modules and those variables that serialise; what they share stays
        shared.
        Processes, open files, threads and connections are not. The sandbox goes on. The file holds all that the sandbox
        knew, secrets in its environment too, and is for its owner alone.

        Args:
            place: A path, which is replaced when all is written, or `s3://BUCKET/NAME`, `az://CONTAINER/NAME`,
                `gs://BUCKET/NAME`, which need `fumehood[blobs]`.

        Returns:
            What was kept, and what was left out and why.

        Raises:
            SaveError: It cannot be written, or a context does not answer; the sandbox is as it was.
        """
        return cast(SaveReport, call(self._async.save, place))

    @classmethod
    def load(
        cls,
        place: StatePlace,
        *,
        template: str | Template | None = None,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: TimeoutAction = "kill",
        auto_resume: bool = False,
        strict: bool = False,
        network: NetworkChoice = "none",
        url: str | None = None,
        api_key: str | None = None,
        backend: Backend | None = None,
    ) -> Self:
        """Start a sandbox from a file that `save` has written; `load_report` says what of it is there again.

        Load only what you trust with a sandbox: its variables are unpickled, inside the sandbox and nowhere else.

        Args:
            place: Where it lies, as for `save`.
            template: What it starts from, instead of the template of the same name as when it was saved.
            limits: As for `Sandbox`, as are the others.
            envs: These come over those that were saved.
            metadata: Labels.
            timeout: Seconds after which it is killed, or paused.
            idle_timeout: Seconds without a call after which it is killed.
            on_timeout: What happens when the `timeout` is over.
            auto_resume: Whether a call resumes it.
            strict: Refuse to start when a layer of isolation is missing.
            network: What it may reach.
            url: The server that it is to live at.
            api_key: What opens that server.
            backend: Where it lives, in place of both.

        Raises:
            SavedStateDamagedError: It is not what was saved, or no saved state at all; the error names the part.
            SavedStateVersionError: It was written by a newer fumehood.
            LoadError: It cannot be loaded; no sandbox is left.
            SandboxStartError: It did not start.
        """
        sandbox = cls.__new__(cls)
        async_impl: Any = call(
            cls._async_kind.load,
            place,
            template=template,
            limits=limits,
            envs=envs,
            metadata=metadata,
            timeout=timeout,
            idle_timeout=idle_timeout,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            strict=strict,
            network=network,
            url=url,
            api_key=api_key,
            backend=backend,
        )
        cast(Any, sandbox)._hold(async_impl)
        return sandbox


def read_saved(place: StatePlace) -> SaveReport:
    """Tell what is in a saved state, as `Sandbox.save` did, without starting anything.

    Raises:
        LoadError: See `Sandbox.load`.
    """
    from fumehood.saved.verbs import report_on

    return call(report_on, place)


def read_saved_record(place: StatePlace, context: ContextInfo | str = "default") -> Record:
    """Tell what had run in a context of a saved state, as `Sandbox.get_record` did.

    Raises:
        LoadError: See `Sandbox.load`.
        ContextNotFoundError: The saved state has no such context.
    """
    from fumehood.saved.verbs import record_in

    return call(record_in, place, context.id if isinstance(context, ContextInfo) else context)
