"""One piece of code in a sandbox of its own: `fumehood.run_code` and its async version.

Runs in the host process, over the public classes only. The sandbox is fresh for each call and killed before
the call returns, even if the call fails; two calls share no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from fumehood.api.async_sandbox import AsyncSandbox
from fumehood.api.callbacks import (
    AsyncErrorCallback,
    AsyncInputCallback,
    AsyncResultCallback,
    AsyncTextCallback,
    ErrorCallback,
    InputCallback,
    ResultCallback,
    TextCallback,
)
from fumehood.api.packages import install_command
from fumehood.api.tools import AsyncToolCallback, ToolCallback, Tools, relay_approval, relay_tools
from fumehood.errors import InvalidArgumentError
from fumehood.port.backend import Backend
from fumehood.portal import Turn
from fumehood.tracebacks import ending_at_caller
from fumehood.values.execution import Execution
from fumehood.values.languages import Language
from fumehood.values.limits import LimitFields, LimitsChoice
from fumehood.values.network import Network, NetworkChoice, read_network
from fumehood.values.sandbox import IsolationLevel
from fumehood.values.template import Template


@ending_at_caller
async def arun_code(
    code: str,
    *,
    language: Language | str = "python",
    template: str | Template = "default",
    limits: LimitsChoice | None = None,
    envs: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdin: str | None = None,
    files: Mapping[str, bytes | str] | None = None,
    strict: bool = False,
    isolation: IsolationLevel | None = None,
    network: NetworkChoice = "none",
    libraries: Sequence[str] = (),
    on_stdout: AsyncTextCallback | None = None,
    on_stderr: AsyncTextCallback | None = None,
    on_result: AsyncResultCallback | None = None,
    on_error: AsyncErrorCallback | None = None,
    on_input: AsyncInputCallback | None = None,
    tools: Tools | None = None,
    on_tool_call: AsyncToolCallback | None = None,
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
    **limit_fields: Unpack[LimitFields],
) -> Execution:
    """Run code in a sandbox of its own, which is killed afterwards.

    The arguments are those of `Sandbox` and of `Sandbox.run_code`, and two more: `files`, text or bytes by path, are
    written before the code runs, and `libraries`, names of packages such as `["polars"]`, are installed by pip. With
    `libraries` the sandbox may reach the package index in addition to `network`.
    """
    if libraries:
        install_command(libraries)

    if files is not None and not isinstance(files, Mapping):
        raise InvalidArgumentError(field="files", value=files, allowed="a mapping of paths to text or bytes")

    sandbox = await AsyncSandbox.create(
        template,
        limits=limits,
        envs=envs,
        strict=strict,
        isolation=isolation,
        network=_network_for(libraries, network),
        url=url,
        api_key=api_key,
        backend=backend,
        **limit_fields,
    )

    try:
        if libraries:
            await sandbox.install(*libraries)

        for path, content in (files or {}).items():
            await sandbox.files.write(path, content)

        return await sandbox.run_code(
            code,
            language=language,
            timeout=timeout,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_error=on_error,
            on_input=on_input,
            tools=tools,
            on_tool_call=on_tool_call,
        )
    finally:
        # Its end is certain; it need not wait until the kernel has freed everything.
        await sandbox.kill(wait=False)


def _network_for(libraries: Sequence[str], network: NetworkChoice) -> Network:
    asked = read_network(network)
    return asked if not libraries or asked.presets or asked.internet else replace(asked, presets=("pip",))


@ending_at_caller
def run_code(
    code: str,
    *,
    language: Language | str = "python",
    template: str | Template = "default",
    limits: LimitsChoice | None = None,
    envs: Mapping[str, str] | None = None,
    timeout: float | None = None,
    stdin: str | None = None,
    files: Mapping[str, bytes | str] | None = None,
    strict: bool = False,
    isolation: IsolationLevel | None = None,
    network: NetworkChoice = "none",
    libraries: Sequence[str] = (),
    on_stdout: TextCallback | None = None,
    on_stderr: TextCallback | None = None,
    on_result: ResultCallback | None = None,
    on_error: ErrorCallback | None = None,
    on_input: InputCallback | None = None,
    tools: Tools | None = None,
    on_tool_call: ToolCallback | None = None,
    url: str | None = None,
    api_key: str | None = None,
    backend: Backend | None = None,
    **limit_fields: Unpack[LimitFields],
) -> Execution:
    """Run code in a sandbox of its own, which is killed afterwards.

    The arguments are those of `Sandbox` and of `Sandbox.run_code`, and two more: `files`, text or bytes by path, are
    written before the code runs, and `libraries`, names of packages such as `["polars"]`, are installed by pip. With
    `libraries` the sandbox may reach the package index in addition to `network`.
    """
    turn = Turn()
    return turn.call(
        arun_code,
        code,
        language=language,
        template=template,
        limits=limits,
        envs=envs,
        timeout=timeout,
        stdin=stdin,
        files=files,
        strict=strict,
        isolation=isolation,
        network=network,
        libraries=libraries,
        on_stdout=turn.relay(on_stdout, "on_stdout"),
        on_stderr=turn.relay(on_stderr, "on_stderr"),
        on_result=turn.relay(on_result, "on_result"),
        on_error=turn.relay(on_error, "on_error"),
        on_input=turn.relay(on_input, "on_input"),
        tools=relay_tools(turn, tools),
        on_tool_call=relay_approval(turn, on_tool_call),
        url=url,
        api_key=api_key,
        backend=backend,
        **limit_fields,
    )
