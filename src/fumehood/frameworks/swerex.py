"""A sandbox as a deployment of SWE-ReX: `FumehoodDeployment(image="...")` in place of `DockerDeployment(image="...")`.

Runs in the process of the agent. No server of SWE-ReX is installed in the image: sessions are terminals of the sandbox,
and files and commands its own. Programs such as SWE-agent call each verb on a loop of its own (`asyncio.run`), so the
sandbox lives on a loop in a thread of the deployment, and every verb works from any loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from fumehood import (
    AsyncSandbox,
    CommandError,
    CommandExitError,
    CommandStartError,
    CommandTimeoutError,
    Limits,
    Network,
)
from fumehood.frameworks.images import DEFAULT_TEMPLATE, Origin
from fumehood.frameworks.needed import needed
from fumehood.frameworks.terminal_shell import Reply, ShellEndedError, ShellTimeoutError, TerminalShell
from fumehood.portal import Portal

with needed("swe-rex"):
    from pydantic import BaseModel, ConfigDict
    from swerex import exceptions
    from swerex.deployment.abstract import AbstractDeployment
    from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
    from swerex.runtime.abstract import (
        AbstractRuntime,
        Action,
        BashAction,
        BashInterruptAction,
        BashObservation,
        CloseBashSessionResponse,
        CloseResponse,
        CloseSessionRequest,
        CloseSessionResponse,
        Command,
        CommandResponse,
        CreateBashSessionResponse,
        CreateSessionRequest,
        CreateSessionResponse,
        IsAliveResponse,
        Observation,
        ReadFileRequest,
        ReadFileResponse,
        UploadRequest,
        UploadResponse,
        WriteFileRequest,
        WriteFileResponse,
    )
    from swerex.utils.log import get_logger

_T = TypeVar("_T")
# A command without a time limit ends with its deployment.
_LONGEST_SECONDS = 86_400.0
_CHECK_SECONDS = 30.0
_UNPACK_SECONDS = 600.0
# A folder may be there already; what is unpacked belongs to the sandbox's user.
_UNPACK = 'mkdir -p "$2" && tar -xof "$1" -C "$2"; code=$?; rm -f "$1"; exit $code'
# What SWE-ReX calls the end of a line; its programs see it in `expect_string`.
_PROMPT = "SHELLPS1PREFIX"


class FumehoodDeploymentConfig(BaseModel):
    """The configuration of a deployment.

    Attributes:
        type: The name of this kind of deployment.
        template: The named template that its sandbox starts from.
        image: A container image in place of a template, as `build_template` takes it.
        dockerfile: The path of a Dockerfile that builds the image.
        limits: Fields of `fumehood.Limits`.
        network: Fields of `fumehood.Network`; none is no network.
        envs: Environment of everything that runs in it.
        url: The server of the sandbox; None: that of FUMEHOOD_URL, or else this process. Its key is FUMEHOOD_API_KEY.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["fumehood"] = "fumehood"
    template: str = DEFAULT_TEMPLATE
    image: str | None = None
    dockerfile: str | None = None
    limits: dict[str, Any] = {}
    network: dict[str, Any] = {}
    envs: dict[str, str] = {}
    url: str | None = None

    def get_deployment(self) -> FumehoodDeployment:
        """Return a deployment with this configuration."""
        return FumehoodDeployment.from_config(self)


class FumehoodDeployment(AbstractDeployment):
    """One sandbox, from `start` to `stop`.

    Args:
        logger: The logger; SWE-ReX's own logger for deployments unless given.
        config: Fields of `FumehoodDeploymentConfig`, such as *image*, *dockerfile* and *limits*.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **config: Any) -> None:
        self.logger = logger or get_logger("rex-deploy")
        self._hooks = CombinedDeploymentHook()
        self._runtime: FumehoodRuntime | None = None
        self._config = FumehoodDeploymentConfig(**config)
        self._origin = Origin(
            template=self._config.template,
            image=self._config.image,
            dockerfile=self._config.dockerfile,
            url=self._config.url,
        )

    @classmethod
    def from_config(cls, config: FumehoodDeploymentConfig) -> FumehoodDeployment:
        """Make a deployment from its configuration."""
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        """Add a hook that is called at each step of the start, on the loop that starts it."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return whether the sandbox lives."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Build the image, if it is not there yet, and make the sandbox.

        Raises:
            DeploymentStartupError: The deployment was started before.
            ImageError: The image could not be pulled or unpacked.
        """
        if self._runtime is not None:
            raise exceptions.DeploymentStartupError("the deployment is started already")

        loop = asyncio.get_running_loop()

        def tell(line: str) -> None:
            loop.call_soon_threadsafe(self._hooks.on_custom_step, line)

        template = await self._origin.build_apart(tell)
        self._hooks.on_custom_step("Starting runtime")
        config = self._config
        self._runtime = await FumehoodRuntime.start(
            self.logger,
            template,
            limits=Limits(**config.limits),
            network=Network(**config.network) if config.network else None,
            envs=config.envs,
            url=config.url,
        )

    async def stop(self) -> None:
        """Kill the sandbox and all that runs in it."""
        runtime, self._runtime = self._runtime, None

        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> FumehoodRuntime:
        """The runtime of the started deployment.

        Raises:
            DeploymentNotStartedError: The deployment is not started.
        """
        if self._runtime is None:
            raise exceptions.DeploymentNotStartedError

        return self._runtime


class FumehoodRuntime(AbstractRuntime):
    """SWE-ReX's runtime on one sandbox; the start of a deployment makes it.

    Attributes:
        sandbox: The sandbox itself, which belongs to the loop of this runtime.
    """

    def __init__(self, logger: logging.Logger, portal: Portal, sandbox: AsyncSandbox) -> None:
        self.logger = logger
        self.sandbox = sandbox
        self._portal = portal
        self._sessions: dict[str, TerminalShell] = {}

    @classmethod
    async def start(cls, logger: logging.Logger, template: str, **options: Any) -> FumehoodRuntime:
        """Make a sandbox on a loop of its own; *options* are those of `AsyncSandbox`."""
        portal = Portal("fumehood-swerex")

        try:
            sandbox = await _on(portal, AsyncSandbox.create(template, **options))
        except BaseException:
            await asyncio.to_thread(portal.close)
            raise

        return cls(logger, portal, sandbox)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return whether the sandbox lives."""
        is_running = await self._do(self.sandbox.is_running())
        return IsAliveResponse(is_alive=is_running, message="" if is_running else "the sandbox has ended")

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Start a bash on a terminal.

        Raises:
            SessionExistsError: There is one of this name.
            CommandTimeoutError: The files to source took too long.
        """
        return await self._do(self._create_session(request))

    async def run_in_session(self, action: Action) -> Observation:
        """Run lines in a session, type one into the program that runs there, or interrupt it.

        Raises:
            BashIncorrectSyntaxError: Bash does not understand the lines; nothing was run.
            CommandTimeoutError: The command did not end in time, and continues until it is interrupted.
            NonZeroExitCodeError: The command failed, and `check` is "raise".
            NoExitCodeError: The command waits for input, and `check` is "raise".
            SessionDoesNotExistError: The session does not exist, or its shell has ended.
        """
        return await self._do(self._run_in_session(action))

    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """End a session and what runs in it."""
        await self._do(self._close_session(request.session))
        return CloseBashSessionResponse()

    async def execute(self, command: Command) -> CommandResponse:
        """Run a command as `subprocess.run` does; *env* is added to the environment.

        Raises:
            CommandTimeoutError: The command ran out of time.
            NonZeroExitCodeError: The command failed, and `check` is set.
            FileNotFoundError: The program does not exist.
        """
        return await self._do(self._execute(command))

    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Read a file as text; ends of lines stay as they are."""
        content = await self._do(self.sandbox.files.read(request.path, format="bytes"))
        return ReadFileResponse(
            content=content.decode(request.encoding or "utf-8", request.errors or "strict")
        )

    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a file, and make missing parent folders."""
        await self._do(self.sandbox.files.write(request.path, request.content))
        return WriteFileResponse()

    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Write a file or a whole folder of this machine into the sandbox; execute permission is kept.

        Raises:
            FileNotFoundError: The local file does not exist.
        """
        await self._do(self._upload(request))
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """Kill the sandbox, and with it every session."""
        if not self._portal.loop.is_closed():
            await self._do(self._close())
            await asyncio.to_thread(self._portal.close)

        return CloseResponse()

    async def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return await _on(self._portal, work)

    async def _create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        if request.session in self._sessions:
            raise exceptions.SessionExistsError(f"session {request.session!r} already exists")

        shell = await TerminalShell.start(self.sandbox)

        try:
            lines = "\n".join(f"source {path}" for path in request.startup_source)
            reply = await shell.run(lines, timeout=request.startup_timeout)
        except BaseException as error:
            await shell.close()

            if isinstance(error, (ShellEndedError, ShellTimeoutError)):
                raise _translated(error, f"session {request.session!r}") from error

            raise

        self._sessions[request.session] = shell
        return CreateBashSessionResponse(output=reply.output)

    async def _run_in_session(self, action: Action) -> Observation:
        shell = self._session(action.session)

        try:
            if isinstance(action, BashInterruptAction):
                reply = await shell.interrupt(
                    patterns=action.expect, timeout=action.timeout, tries=action.n_retry
                )
                return _observed(reply, exit_code=0, output=reply.output.strip())

            if action.is_interactive_command or action.is_interactive_quit:
                reply = await shell.type_line(action.command, patterns=action.expect, timeout=action.timeout)
                # Programs that draw their own input line show what was typed.
                shown = reply.output.lstrip().removeprefix(action.command).strip()
                return _observed(reply, exit_code=0, output=shown)

            await self._check_syntax(action.command)
            reply = await shell.run(action.command, patterns=action.expect, timeout=action.timeout)
        except (ShellEndedError, ShellTimeoutError) as error:
            if isinstance(error, ShellEndedError):
                await self._close_session(action.session)

            raise _translated(error, _described(action)) from error

        return _checked(action, reply)

    async def _check_syntax(self, command: str) -> None:
        try:
            await self.sandbox.commands.run(("/bin/bash", "-n"), stdin=f"{command}\n", timeout=_CHECK_SECONDS)
        except CommandExitError as error:
            raise exceptions.BashIncorrectSyntaxError(
                f"bash does not understand {command!r}:\n{error.stderr}",
                extra_info={"bash_stdout": error.stdout, "bash_stderr": error.stderr},
            ) from None

    def _session(self, name: str) -> TerminalShell:
        try:
            return self._sessions[name]
        except KeyError:
            raise exceptions.SessionDoesNotExistError(f"session {name!r} does not exist") from None

    async def _close_session(self, name: str) -> None:
        shell = self._session(name)
        del self._sessions[name]
        await shell.close()

    async def _execute(self, command: Command) -> CommandResponse:
        line = [command.command] if isinstance(command.command, str) else command.command
        argv = ["/bin/sh", "-c", *line] if command.shell else line
        merged: list[str] = []
        listener = merged.append if command.merge_output_streams else None

        try:
            ended: Any = await self.sandbox.commands.run(
                argv,
                cwd=command.cwd,
                envs=command.env,
                on_stdout=listener,
                on_stderr=listener,
                timeout=_LONGEST_SECONDS if command.timeout is None else command.timeout,
            )
        except CommandExitError as error:
            ended = error
        except CommandTimeoutError as error:
            raise exceptions.CommandTimeoutError(error.message) from error
        except CommandStartError as error:
            # The built-in class of its number, as subprocess raises it.
            raise OSError(error.errno or errno.EIO, error.message) from error

        response = CommandResponse(
            stdout="".join(merged) if listener else ended.stdout,
            stderr="" if listener else ended.stderr,
            exit_code=ended.exit_code,
        )

        if command.check and ended.exit_code != 0:
            failed = f"Command {command.command!r} failed with exit code {ended.exit_code}"
            raise exceptions.NonZeroExitCodeError(
                f"{_prefix(command.error_msg)}{failed}. "
                f"Stdout:\n{response.stdout!r}\nStderr:\n{response.stderr!r}"
            )

        return response

    async def _upload(self, request: UploadRequest) -> None:
        source = Path(request.source_path)

        if not await asyncio.to_thread(source.exists):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))

        if not await asyncio.to_thread(source.is_dir):
            with await asyncio.to_thread(source.open, "rb") as content:
                written = await self.sandbox.files.write(request.target_path, content)

            if os.access(source, os.X_OK):
                await self.sandbox.commands.run(("/bin/sh", "-c", 'chmod +x "$1"', "sh", written.path))

            return

        inside = f"/tmp/swerex-{secrets.token_hex(8)}.tar"  # noqa: S108 - of the sandbox

        with await asyncio.to_thread(_packed, source) as archive:
            await self.sandbox.files.write(inside, archive)

        try:
            await self.sandbox.commands.run(
                ("/bin/sh", "-c", _UNPACK, "sh", inside, request.target_path), timeout=_UNPACK_SECONDS
            )
        except CommandExitError as error:
            raise RuntimeError(
                f"cannot unpack in the sandbox (images must have tar): {error.stderr}"
            ) from error

    async def _close(self) -> None:
        sessions, self._sessions = self._sessions, {}

        with suppress(CommandError):
            await asyncio.gather(*(shell.close() for shell in sessions.values()), return_exceptions=True)

        await self.sandbox.kill()


async def _on(portal: Portal, work: Coroutine[Any, Any, _T]) -> _T:
    """Await work on the loop of a portal; cancelling the caller cancels the work."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, portal.loop))


def _packed(folder: Path) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it

    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(folder, arcname=".")

    file.seek(0)
    return file


def _described(action: BashAction | BashInterruptAction) -> str:
    return f"command {action.command!r}" if isinstance(action, BashAction) else "the interrupt"


def _prefix(message: str) -> str:
    return f"{message}: " if message else ""


def _translated(error: ShellEndedError | ShellTimeoutError, what: str) -> Exception:
    """Return the error of SWE-ReX that corresponds to one of ours."""
    is_late = isinstance(error, ShellTimeoutError)
    kind: type[Exception] = exceptions.CommandTimeoutError if is_late else exceptions.SessionDoesNotExistError
    return kind(f"{what}: {error}")


def _observed(reply: Reply, *, exit_code: int | None, output: str) -> BashObservation:
    return BashObservation(output=output, exit_code=exit_code, expect_string=reply.matched or _PROMPT)


def _checked(action: BashAction, reply: Reply) -> BashObservation:
    """Return the observation of lines that have ended.

    Raises:
        NonZeroExitCodeError: The commands failed, and `check` is "raise".
        NoExitCodeError: The commands have no exit code yet, and `check` is "raise".
    """
    if action.check == "raise" and reply.exit_code is None:
        raise exceptions.NoExitCodeError(
            f"command {action.command!r} still runs: it waits after {reply.matched!r}"
        )

    if action.check == "raise" and reply.exit_code != 0:
        raise exceptions.NonZeroExitCodeError(
            f"{_prefix(action.error_msg)}Command {action.command!r} failed with exit code {reply.exit_code}. "
            f"Here is the output:\n{reply.output!r}"
        )

    return _observed(
        reply, exit_code=None if action.check == "ignore" else reply.exit_code, output=reply.output
    )
