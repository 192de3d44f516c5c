"""A code executor of AutoGen over a live sandbox: `CodeExecutorAgent("coder", code_executor=FumehoodCodeExecutor())`.

Runs in the user's process, on the loop of the agents. Blocks of Python share one namespace, blocks of bash one shell,
from call to call. It is a component: an agent that holds one can be saved as a configuration and loaded again. With an
image or a Dockerfile it replaces `DockerCommandLineCodeExecutor`, without Docker.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fumehood import AsyncSandbox, Execution, InvalidArgumentError, LanguageUnavailableError, Limits, Result
from fumehood.frameworks.images import DEFAULT_TEMPLATE, Origin
from fumehood.frameworks.needed import needed
from fumehood.values.languages import CONTEXT_LANGUAGES, find_language

with needed("autogen"):
    from autogen_core import CancellationToken, Component
    from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
    from pydantic import BaseModel

# AutoGen's own executors call bash so.
_SHELL = "shell"
# What AutoGen's own executors answer, as timeout(1) does.
_TIMED_OUT = 124


class FumehoodCodeExecutorConfig(BaseModel):
    """The configuration from which an executor can be made again.

    Attributes:
        template: The named template that its sandbox starts from.
        image: A container image in place of a template, as `build_template` takes it.
        dockerfile: The path of a Dockerfile that builds the image.
        limits: Fields of `fumehood.Limits`.
        timeout: Seconds of one block.
        url: The server that the sandbox lives at; its key is FUMEHOOD_API_KEY.
    """

    template: str = DEFAULT_TEMPLATE
    image: str | None = None
    dockerfile: str | None = None
    limits: dict[str, Any] = {}
    timeout: float | None = None
    url: str | None = None


@dataclass
class FumehoodCodeResult(CodeResult):
    """The result of the executed blocks.

    Attributes:
        results: The displayed and returned results, in order: figures, tables, values.
    """

    results: tuple[Result, ...] = ()


class FumehoodCodeExecutor(CodeExecutor, Component[FumehoodCodeExecutorConfig]):
    """Runs blocks of code in one sandbox.

    Args:
        sandbox: A living sandbox to use as it is. Without one, the first use makes a sandbox, which `stop` kills.
        limits: Fields of `fumehood.Limits` for a sandbox that is made here.
        timeout: Seconds of one block; `limits.wall_seconds` unless given.
        url: The server of the sandbox; None: the server of FUMEHOOD_URL, or else this process.
        origin: The base of that sandbox: *template*, the name of a template; or *image*, a container image as
            `build_template` takes it; or *dockerfile*, the path of a Dockerfile. An image is built once, by `start`.
    """

    component_config_schema = FumehoodCodeExecutorConfig
    component_provider_override = "fumehood.frameworks.autogen.FumehoodCodeExecutor"

    def __init__(
        self,
        sandbox: AsyncSandbox | None = None,
        *,
        limits: dict[str, Any] | None = None,
        timeout: float | None = None,
        url: str | None = None,
        **origin: Any,
    ) -> None:
        self._origin = Origin(url=url, **origin)
        self._config = FumehoodCodeExecutorConfig(limits=limits or {}, timeout=timeout, url=url, **origin)
        self._is_owner = sandbox is None
        self._sandbox = sandbox
        self._lock = asyncio.Lock()

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> FumehoodCodeResult:
        """Run blocks one after the other, up to the first that fails; cancelling interrupts the one that runs."""
        running = asyncio.ensure_future(self._run_all(code_blocks))
        cancellation_token.link_future(running)
        return await running

    async def start(self) -> None:
        """Make the sandbox now."""
        await self._begin()

    async def stop(self) -> None:
        """Kill the sandbox if it was made here."""
        if self._is_owner and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()

    async def restart(self) -> None:
        """Forget all variables; files stay."""
        sandbox = await self._begin()

        for context in await sandbox.list_code_contexts():
            await sandbox.restart_code_context(context)

    def _to_config(self) -> FumehoodCodeExecutorConfig:
        if not self._is_owner:
            raise InvalidArgumentError(
                field="sandbox",
                value=self._sandbox,
                allowed="None in a configuration: it cannot hold a living one",
            )

        return self._config

    @classmethod
    def _from_config(cls, config: FumehoodCodeExecutorConfig) -> FumehoodCodeExecutor:
        return cls(**dict(config))

    async def _begin(self) -> AsyncSandbox:
        async with self._lock:
            if self._sandbox is None:
                config = self._config
                template = await self._origin.build_apart()
                self._sandbox = await AsyncSandbox.create(
                    template, limits=Limits(**config.limits), url=config.url
                )

            return self._sandbox

    async def _run_all(self, blocks: list[CodeBlock]) -> FumehoodCodeResult:
        sandbox = await self._begin()
        outputs: list[str] = []
        results: list[Result] = []

        for block in blocks:
            name = block.language.strip().lower()
            language = find_language("bash" if name == _SHELL else name)

            if language is None:
                outputs.append(
                    f"Unsupported language {block.language}. Supported are {', '.join(CONTEXT_LANGUAGES)}."
                )
                return FumehoodCodeResult(1, "\n".join(outputs), tuple(results))

            try:
                execution = await sandbox.run_code(
                    block.code, language=language.name, timeout=self._config.timeout
                )
            except LanguageUnavailableError as error:
                # The model can write it in another language; its user cannot be asked to install this one.
                outputs.append(error.message)
                return FumehoodCodeResult(1, "\n".join(outputs), tuple(results))

            outputs.append(_text(execution))
            results += execution.results

            if execution.error is not None:
                code = _TIMED_OUT if execution.error.kind == "time_limit" else 1
                return FumehoodCodeResult(code, "\n".join(outputs), tuple(results))

        return FumehoodCodeResult(0, "\n".join(outputs), tuple(results))


def _text(execution: Execution) -> str:
    parts = (str(execution.logs), execution.text or "", str(execution.error or ""))
    return "\n".join(part.rstrip("\n") for part in parts if part)
