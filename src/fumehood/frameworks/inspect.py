"""A sandbox for each sample of an Inspect evaluation: `sandbox="fumehood"`, found through an entry point.

Runs in the process of `inspect eval`, on its asyncio loop. One sandbox a sample, made when the sample begins and killed
when it ends, however it ends. It passes Inspect's own checks of a provider; it lacks a second
user: nothing in a sandbox becomes root, and a request for that raises.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Literal, overload

from fumehood import (
    AsyncSandbox,
    CommandExitError,
    CommandResult,
    CommandStartError,
    FileTooLargeError,
    Limits,
    PathNotFoundError,
    PathPermissionError,
    SandboxClosedError,
)
from fumehood.frameworks.images import Origin
from fumehood.frameworks.needed import needed

with needed("inspect"):
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict

# The user of a sandbox, by name and by number; every other one is refused.
_USERS = (None, "user", "1000")
_OWNER_WRITES = 0o200
_LONGEST_SECONDS = 86_400
# What a shell answers when there is no such program.
_NOT_FOUND = 127
_LABEL = "inspect_task"
_DOCKERFILE = "Dockerfile"


class FumehoodSandboxConfig(BaseModel):
    """The sandboxes of a task: the second part of `sandbox=SandboxEnvironmentSpec("fumehood", config)`.

    Attributes:
        template: The named template that they start from.
        image: A container image in place of a template, as `build_template` takes it.
        dockerfile: The path of a Dockerfile that builds the image.
        limits: Fields of `fumehood.Limits`.
        envs: Environment of everything that runs in them.
        url: The server of the sandboxes; None: that of FUMEHOOD_URL, or else this process. Its key is FUMEHOOD_API_KEY,
            since a configuration is written to the log.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    template: str = "default"
    image: str | None = None
    dockerfile: str | None = None
    limits: dict[str, Any] = {}
    envs: dict[str, str] = {}
    url: str | None = None

    def __hash__(self) -> int:
        # Inspect keeps them in a dictionary, and a dictionary in them has no hash of its own.
        return hash(self.model_dump_json())


@sandboxenv(name="fumehood")
class FumehoodSandboxEnvironment(SandboxEnvironment):
    """One sandbox as Inspect sees it.

    Attributes:
        sandbox: The sandbox itself, for what Inspect has no verb for.
    """

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    @classmethod
    def config_files(cls) -> list[str]:
        """The files beside a task from which a sandbox without a configuration is made."""
        return [_DOCKERFILE]

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Build the image of a task, once for all of its samples."""
        await _origin_of(_read_config(config)).build_apart()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration back from a log."""
        return FumehoodSandboxConfig.model_validate(config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Make the sandbox of a sample; a `config` that is text names a template or a Dockerfile."""
        chosen = _read_config(config)
        kept = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        limits = Limits(**{"stdout_bytes": kept, "stderr_bytes": kept, **chosen.limits})
        sandbox = await AsyncSandbox.create(
            _origin_of(chosen).name,
            limits=limits,
            envs=chosen.envs,
            metadata={_LABEL: task_name},
            url=chosen.url,
        )
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Kill the sandbox of a sample."""
        for environment in environments.values():
            await environment.as_type(cls).sandbox.kill()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Kill sandboxes that evaluations have left at the server of FUMEHOOD_URL; an ended process leaves none."""
        for info in await AsyncSandbox.list():
            if _LABEL in info.metadata and id in (None, info.id):
                await (await AsyncSandbox.connect(info.id)).kill()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; a command that timed out is not repeated, since it may have done part of its work."""
        if user not in _USERS:
            raise SandboxUserUnsupportedError(f"a sandbox of fumehood has one user, and {user!r} is not it")

        try:
            result = await self.sandbox.commands.run(
                cmd,
                cwd=cwd,
                envs=env,
                stdin=False if input is None else input,
                timeout=_LONGEST_SECONDS if timeout is None else timeout,
            )
        except CommandExitError as failed:
            return _result(failed, is_cut=failed.is_truncated)
        except CommandStartError as failed:
            if failed.errno == errno.EACCES:
                raise PermissionError(errno.EACCES, failed.message) from failed

            return ExecResult(False, _NOT_FOUND, "", failed.message)
        except SandboxClosedError as gone:
            raise SandboxUnavailableError(gone.message) from gone

        return _result(result, is_cut=bool(result.truncated))

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file; an existing one only if its owner may write it."""
        if await self._is_read_only(file):
            raise PathPermissionError(path=file, operation="write", errno_value=errno.EACCES)

        await self.sandbox.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a file, as UTF-8 or as bytes."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE

        try:
            content = await self.sandbox.files.read(file, format="bytes", max_bytes=most)
        except FileTooLargeError as error:
            shown = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            raise OutputLimitExceededError(shown, truncated_output=None) from error

        return content.decode() if text else content

    def default_polling_interval(self) -> float:
        """The interval at which Inspect polls: a call costs less than a millisecond here."""
        return 0.2

    async def _is_read_only(self, file: str) -> bool:
        # Files are replaced whole, which their own mode does not hinder.
        try:
            return not (await self.sandbox.files.get_info(file)).mode & _OWNER_WRITES
        except PathNotFoundError:
            return False


def _read_config(config: BaseModel | str | None) -> FumehoodSandboxConfig:
    if isinstance(config, FumehoodSandboxConfig):
        return config

    if isinstance(config, str):
        if os.path.basename(config).lower().endswith(_DOCKERFILE.lower()):
            return FumehoodSandboxConfig(dockerfile=config)

        return FumehoodSandboxConfig(template=config)

    given: Mapping[str, object] = {} if config is None else config.model_dump()
    return FumehoodSandboxConfig.model_validate(given)


def _origin_of(chosen: FumehoodSandboxConfig) -> Origin:
    return Origin(template=chosen.template, image=chosen.image, dockerfile=chosen.dockerfile, url=chosen.url)


def _result(ended: CommandResult | CommandExitError, *, is_cut: bool) -> ExecResult[str]:
    if is_cut:
        shown = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
        raise OutputLimitExceededError(shown, truncated_output=ended.stdout)

    return ExecResult(ended.exit_code == 0, ended.exit_code, ended.stdout, ended.stderr)
