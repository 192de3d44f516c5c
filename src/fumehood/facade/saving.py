"""The verbs that save a sandbox and load one, for `Sandbox` and `AsyncSandbox`.

Runs in the host process, on the caller's side of the backend port, which gives a saved state as a stream and takes one
as a file. Where that lies is decided here: on this machine, or in a bucket.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from fumehood.backends.base import Backend
from fumehood.backends.requests import SandboxSpec
from fumehood.backends.save_requests import Loaded, LoadRequest
from fumehood.facade.portal import call
from fumehood.limits import Limits
from fumehood.models import ContextInfo, TimeoutAction
from fumehood.network import NetworkChoice
from fumehood.record import Record
from fumehood.saved_state import LoadReport, SaveReport
from fumehood.templates.template import Template

if TYPE_CHECKING:
    from fumehood.facade.lease import Lease

StatePlace: TypeAlias = str | os.PathLike[str]


class AsyncSaving:
    """What `AsyncSandbox` does to last; described at `Saving`."""

    _lease: Lease
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

        return await save_to(self._lease.backend, self._lease.id, place)

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
        loaded: Loaded = await load_from(sandbox._lease.backend, request, place)
        sandbox._lease.grant(loaded.sandbox)
        sandbox._is_open = True
        sandbox._load_report = loaded.report
        return cast(Self, sandbox)


class Saving:
    """What `Sandbox` does to last."""

    _twin: Any
    # The asynchronous face.
    _twin_kind: Any

    @property
    def load_report(self) -> LoadReport | None:
        """What of a saved state is in it, of a sandbox that was loaded; None of any other."""
        return cast("LoadReport | None", self._twin.load_report)

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
        return cast(SaveReport, call(self._twin.save, place))

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
        twin: Any = call(
            cls._twin_kind.load,
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
        cast(Any, sandbox)._hold(twin)
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
