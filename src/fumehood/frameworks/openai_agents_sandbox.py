"""Sandboxes for the sandbox agents of the OpenAI Agents SDK: `SandboxRunConfig(client=FumehoodSandboxClient(), ...)`.

Runs in the user's process, on the loop of the run. A session is one sandbox: commands, files and ports. At the end of a
run the workspace becomes a tar, which the SDK keeps as a snapshot and gives back later. There are no terminals
(`write_stdin`) and no mounts of cloud storage; the SDK offers a model only the supported tools.
"""

from __future__ import annotations

import io
import shlex
import uuid
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from fumehood import (
    AsyncSandbox,
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    FumehoodError,
    Limits,
    PathNotFoundError,
    SandboxClosedError,
    SandboxNotFoundError,
)
from fumehood.frameworks.needed import needed
from fumehood.values.guest_paths import HOME_PATH

with needed("openai-agents"):
    from agents.sandbox import Manifest
    from agents.sandbox.errors import (
        ExecTimeoutError,
        ExecTransportError,
        ExposedPortUnavailableError,
        WorkspaceArchiveReadError,
        WorkspaceArchiveWriteError,
        WorkspaceReadNotFoundError,
    )
    from agents.sandbox.session import SandboxSession, SandboxSessionState
    from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
    from agents.sandbox.session.manager import Instrumentation
    from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER, RuntimeHelperScript
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.session.tar_workspace import shell_tar_exclude_args
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
    from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
    from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tar_bytes
    from pydantic import Field

# The root of a sandbox is read-only, so the SDK's own default of /workspace cannot be.
_ROOT = f"{HOME_PATH}/workspace"
_ARCHIVE = "/tmp/fumehood-workspace.tar"  # noqa: S108 - inside the sandbox
_LONGEST_SECONDS = 86_400
# What a shell answers when there is no such program.
_NO_PROGRAM = 127


class FumehoodSandboxOptions(BaseSandboxClientOptions):
    """The options of a client's sandboxes.

    Attributes:
        template: The named template that they start from.
        limits: Fields of `fumehood.Limits`.
        envs: Environment of everything that runs in them.
        timeout: Seconds after which a sandbox is killed; None: it lives until its session ends.
        url: URL of the server; its key is read from FUMEHOOD_API_KEY. None: FUMEHOOD_URL, or in this process.
        exposed_ports: Ports inside that may be reached from outside.
    """

    type: Literal["fumehood"] = "fumehood"
    template: str = "default"
    limits: dict[str, Any] = Field(default_factory=dict)
    envs: dict[str, str] = Field(default_factory=dict)
    timeout: float | None = None
    url: str | None = None
    exposed_ports: tuple[int, ...] = ()


class FumehoodSandboxState(SandboxSessionState):
    """The state from which a session is resumed: its sandbox, and how to make another one when that has ended."""

    type: Literal["fumehood"] = "fumehood"
    sandbox_id: str
    options: FumehoodSandboxOptions


class FumehoodSandboxSession(BaseSandboxSession):
    """One sandbox as the SDK sees it.

    Attributes:
        state: The state from which it can be resumed.
        sandbox: The sandbox itself, for what the SDK has no verb for.
    """

    state: FumehoodSandboxState

    def __init__(self, state: FumehoodSandboxState, sandbox: AsyncSandbox) -> None:
        self.state = state
        self.sandbox = sandbox

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file of the workspace."""
        inside = await self._validate_path_access(path)

        try:
            return io.BytesIO(await self.sandbox.files.read(str(inside), format="bytes"))
        except PathNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except FumehoodError as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file of the workspace."""
        inside = await self._validate_path_access(path, for_write=True)

        try:
            await self.sandbox.files.write(str(inside), data)
        except FumehoodError as error:
            raise WorkspaceArchiveWriteError(path=inside, cause=error) from error

    async def running(self) -> bool:
        """Return whether the sandbox lives."""
        return await self.sandbox.is_running()

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar."""
        excluded = " ".join(shell_tar_exclude_args(self._persist_workspace_skip_relpaths()))
        root = shlex.quote(self.state.manifest.root)

        try:
            await self._run(f"tar {excluded} -C {root} -cf {_ARCHIVE} .")
            return io.BytesIO(await self.sandbox.files.read(_ARCHIVE, format="bytes"))
        except FumehoodError as error:
            raise WorkspaceArchiveReadError(path=self._workspace_root_path(), cause=error) from error
        finally:
            await self._run(f"rm -f {_ARCHIVE}")

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack a tar into the workspace."""
        content = data.read()
        root = shlex.quote(self.state.manifest.root)

        try:
            validate_tar_bytes(content, allow_external_symlink_targets=False)
            await self.sandbox.files.write(_ARCHIVE, content)
            await self._run(
                f"mkdir -p {root} && tar -C {root} -xf {_ARCHIVE}; code=$?; rm -f {_ARCHIVE}; exit $code"
            )
        except (FumehoodError, UnsafeTarMemberError) as error:
            raise WorkspaceArchiveWriteError(path=self._workspace_root_path(), cause=error) from error

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        argv = [str(part) for part in command]
        # The SDK asks for another user in this way; there is one in a sandbox, and it is called user.
        argv = argv[4:] if argv[:4] == ["sudo", "-u", "user", "--"] else argv
        envs = {**self.state.options.envs, **await self.state.manifest.environment.resolve()}

        try:
            done = await self.sandbox.commands.run(
                argv,
                cwd=self.state.manifest.root if self._is_prepared else None,
                envs=envs,
                timeout=_LONGEST_SECONDS if timeout is None else max(timeout, 0.01),
            )
        except CommandExitError as failed:
            return _result(failed.stdout, failed.stderr, failed.exit_code)
        except CommandTimeoutError as late:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=late) from late
        except CommandStartError as failed:
            return _result("", failed.message, _NO_PROGRAM)
        except FumehoodError as error:
            raise ExecTransportError(command=command, cause=error, message=error.message) from error

        return _result(done.stdout, done.stderr, 0)

    _is_prepared = False

    async def _prepare_backend_workspace(self) -> None:
        await self.sandbox.files.make_dir(self.state.manifest.root)
        self._is_prepared = True

    async def _shutdown_backend(self) -> None:
        await self.sandbox.kill()

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        inside: Path = await self._validate_remote_path_access(path, for_write=for_write)
        return inside

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        address = urlsplit(await self.sandbox.get_url(port))

        # At a server without a domain a port has a path and no host of its own.
        if address.hostname is None or address.path.strip("/"):
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "fumehood", "detail": "the server of the sandbox has no domain"},
            )

        tls = address.scheme == "https"
        return ExposedPortEndpoint(address.hostname, address.port or (443 if tls else 80), tls)

    async def _run(self, line: str) -> None:
        await self.sandbox.commands.run(line, cwd="/", timeout=_LONGEST_SECONDS)


class FumehoodSandboxClient(BaseSandboxClient[FumehoodSandboxOptions]):
    """Makes and resumes sessions."""

    backend_id = "fumehood"
    supports_default_options = True

    def __init__(self, *, instrumentation: Instrumentation | None = None) -> None:
        self._instrumentation = instrumentation or Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: FumehoodSandboxOptions | None = None,
    ) -> SandboxSession:
        """Make a session with a sandbox of its own; a manifest without a root has /home/user/workspace."""
        given = manifest or Manifest()
        placed = given if "root" in given.model_fields_set else given.model_copy(update={"root": _ROOT})
        self._validate_manifest_for_create(placed)
        chosen = options or FumehoodSandboxOptions()
        sandbox = await _make(chosen)
        number = uuid.uuid4()
        state = FumehoodSandboxState(
            session_id=number,
            manifest=placed,
            snapshot=resolve_snapshot(snapshot, str(number)),
            sandbox_id=sandbox.id,
            options=chosen,
            exposed_ports=chosen.exposed_ports,
        )
        return self._wrap_session(
            FumehoodSandboxSession(state, sandbox), instrumentation=self._instrumentation
        )

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Kill the sandbox of a session, unless it was killed already."""
        inner = session._inner

        if not isinstance(inner, FumehoodSandboxSession):
            raise TypeError(f"{type(inner).__name__} is not a session of fumehood")

        await inner.sandbox.kill()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Continue in the sandbox of a session, or in a new one with its snapshot when that has ended."""
        if not isinstance(state, FumehoodSandboxState):
            raise TypeError(f"{type(state).__name__} is not a state of fumehood")

        state.assert_path_grants_rebound()

        try:
            sandbox = await AsyncSandbox.connect(state.sandbox_id, url=state.options.url)
            is_same = True
        except (SandboxNotFoundError, SandboxClosedError):
            sandbox = await _make(state.options)
            state.sandbox_id, state.workspace_root_ready, is_same = sandbox.id, False, False

        inner = FumehoodSandboxSession(state, sandbox)
        inner._set_start_state_preserved(is_same, system=is_same)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Read the state of a session back."""
        return self._deserialize_session_state_payload(payload, FumehoodSandboxState)


def _result(stdout: str, stderr: str, exit_code: int) -> ExecResult:
    return ExecResult(stdout=stdout.encode(), stderr=stderr.encode(), exit_code=exit_code)


async def _make(options: FumehoodSandboxOptions) -> AsyncSandbox:
    return await AsyncSandbox.create(
        options.template,
        limits=Limits(**options.limits),
        envs=options.envs,
        timeout=options.timeout,
        url=options.url,
    )
