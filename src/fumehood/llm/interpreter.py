"""`AsyncCodeInterpreter` and `CodeInterpreter`: one live sandbox as a tool that a model can call.

The workbench carries out calls, the formats translate them. Code that fails, a sandbox that has died and broken
arguments give results and no exceptions. Each method of the synchronous class is one line over the asynchronous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Literal, TypeAlias

from fumehood import (
    ArtifactStore,
    AsyncSandbox,
    HostTool,
    InvalidArgumentError,
    Result,
    Sandbox,
    Template,
)
from fumehood.api.tools import relay_approval, relay_tools
from fumehood.llm.execution_text import Shape
from fumehood.llm.file_links import Publisher, publisher_of
from fumehood.llm.formats.anthropic import anthropic_tools, run_code_execution
from fumehood.llm.formats.calls import Item, ModelCall, ToolWords, describe_tool
from fumehood.llm.formats.chat import chat_tools, functions
from fumehood.llm.formats.exchange import read_calls, write_answers
from fumehood.llm.formats.responses import code_interpreter_call, container_id_of, response_tools
from fumehood.llm.images import ImageBounds
from fumehood.llm.result import ToolResult
from fumehood.llm.system_prompt import SandboxFacts, look_inside, write_prompt
from fumehood.llm.tool_dispatch import answer_call
from fumehood.llm.workbench import (
    NO_OPTIONS,
    Options,
    Rules,
    SandboxHolder,
    Scan,
    Workbench,
    WrapOutput,
    sync_face,
)
from fumehood.portal import Turn, call
from fumehood.tracebacks import PlainErrors
from fumehood.values.checks import check_language
from fumehood.values.languages import Language, known_language, names_with
from fumehood.values.limits import LimitsChoice, check_seconds
from fumehood.values.network import NetworkChoice

OpenAIApi: TypeAlias = Literal["chat", "responses", "functions"]
Items: TypeAlias = list[Item]
FileContent: TypeAlias = str | bytes | IO[bytes]
Tools: TypeAlias = Mapping[str, Callable[..., object] | HostTool]


class AsyncCodeInterpreter(PlainErrors):
    """A code interpreter for a model, for asyncio; described at `CodeInterpreter`."""

    def __init__(
        self,
        sandbox: AsyncSandbox | Sandbox | None = None,
        *,
        template: str | Template | None = None,
        limits: LimitsChoice | None = None,
        envs: Mapping[str, str] | None = None,
        network: NetworkChoice | None = None,
        url: str | None = None,
        api_key: str | None = None,
        lifetime: float | None = None,
        idle_timeout: float | None = None,
        timeout: float | None = None,
        tools: Tools | None = None,
        approve: Callable[..., Any] | None = None,
        tool_name: str = "run_code",
        max_text_chars: int = 6_000,
        max_images: int = 4,
        max_image_bytes: int = 1 << 20,
        transactional: bool = False,
        languages: Sequence[Language] = (),
        scan: Scan | None = None,
        wrap_output: WrapOutput | None = None,
        publish: Publisher | ArtifactStore | None = None,
    ) -> None:
        made_with: dict[str, object] = {
            "template": template,
            "limits": limits,
            "envs": envs,
            "network": network,
        }
        made_with |= {"url": url, "api_key": api_key, "lifetime": lifetime, "idle_timeout": idle_timeout}
        self._holder = SandboxHolder(sandbox, made_with)
        options = {
            "timeout": timeout,
            "tools": tools,
            "on_tool_call": approve,
            "transactional": transactional or None,
        }
        image_bounds = ImageBounds(
            _at_least("max_images", max_images, 0), _at_least("max_image_bytes", max_image_bytes, 0)
        )
        self._rules = Rules(
            shape=Shape(_at_least("max_text_chars", max_text_chars, 500), image_bounds),
            options=_run_options(options),
            scan=scan,
            wrap_output=wrap_output,
            publisher=publisher_of(publish),
        )
        self._bench = Workbench(self._holder, self._rules)
        spoken = _spoken(languages, is_transactional=transactional)
        description = describe_tool(is_transactional=transactional, languages=spoken)
        self._words = ToolWords(_tool_name(tool_name), description, spoken)
        self._inside: tuple[str, SandboxFacts] | None = None

    @property
    def sandbox(self) -> AsyncSandbox:
        """The current sandbox; another one after it has died and was replaced."""
        return self._holder.current

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model may write in, Python first."""
        return self._words.languages

    async def __aenter__(self) -> AsyncCodeInterpreter:
        await self._holder.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Kill the sandbox if it was made here."""
        await self._bench.close()

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> ToolResult:
        """Run code as one call of the tool; the callbacks are called with each event as it happens."""
        callbacks = {"on_stdout": on_stdout, "on_stderr": on_stderr, "on_result": on_result}
        return await self._bench.run_code(code, check_language(language), {**callbacks, **_seconds(timeout)})

    async def upload(self, path: str, content: FileContent) -> str:
        """Write a file of the user."""
        return await self._bench.upload(_in_data(path), content)

    async def system_prompt(self) -> str:
        """Return the description of the tool's abilities."""
        sandbox = await self._holder.begin()

        if self._inside is None or self._inside[0] != sandbox.id:
            self._inside = (sandbox.id, await look_inside(sandbox))

        options = self._rules.options
        return await write_prompt(
            sandbox,
            self._inside[1],
            words=self._words,
            timeout=options.get("timeout"),
            tools=options.get("tools", {}),
            is_transactional="transactional" in options,
        )

    def openai_tools(self, *, api: OpenAIApi = "chat", custom: bool = False) -> Items:
        """Return the tool in OpenAI's format."""
        match api:
            case "chat":
                return chat_tools(self._words, custom=custom)
            case "responses":
                return response_tools(self._words, custom=custom)
            case "functions":
                return functions(self._words)
            case _:
                raise InvalidArgumentError(field="api", value=api, allowed="chat, responses or functions")

    def anthropic_tools(self, *, bash: bool = False, text_editor: bool = False) -> Items:
        """Return the tool in Anthropic's format."""
        return anthropic_tools(self._words, bash=bash, text_editor=text_editor)

    async def handle(
        self, message: object, *, chat_images: bool = False, skip_unknown: bool = False
    ) -> Items:
        """Carry out the calls in a model's message."""
        return await self._handle(message, chat_images, skip_unknown)

    async def answer(self, model_call: ModelCall) -> ToolResult:
        """Carry out one call of a tool."""
        return await self._answer(model_call)

    async def as_code_interpreter_call(self, code: str) -> Item:
        """Run code, and return the result in the format of OpenAI's own code interpreter."""
        return await self._as_code_interpreter_call(code)

    async def as_code_execution(self, block: object) -> Item:
        """Carry out a `server_tool_use` block; return the result in the format of Anthropic's hosted tool."""
        return await run_code_execution(self._bench, block)

    async def _handle(
        self, message: object, chat_images: bool, skip_unknown: bool, options: Options = NO_OPTIONS
    ) -> Items:
        calls = read_calls(message)

        if skip_unknown:
            calls = [call for call in calls if call.name in self._tool_names]

        answered = [(call, await self._answer(call, options)) for call in calls]
        return write_answers(answered, with_images=chat_images)

    async def _answer(self, model_call: ModelCall, options: Options = NO_OPTIONS) -> ToolResult:
        return await answer_call(self._bench, model_call, self._words, options)

    async def _as_code_interpreter_call(self, code: str, options: Options = NO_OPTIONS) -> Item:
        result = await self._bench.run_python(code, options)
        sandbox_id = self._holder.current.id if self._holder.is_begun else "lost"
        return code_interpreter_call(result, code, container_id_of(sandbox_id))

    @property
    def _tool_names(self) -> tuple[str, ...]:
        return (self._words.name, "bash", "str_replace_based_edit_tool")


class CodeInterpreter(PlainErrors):
    """A code interpreter for a model: one live sandbox, and answers that a model can act on.

    Args:
        sandbox: A sandbox of yours, which is not killed; without it one is made at first use and killed by `close()`.
        template: The template of a sandbox that is made here; the next seven arguments also apply only to it.
        limits: Its limits.
        envs: Environment of everything that runs in it.
        network: The network that it may reach.
        url: Address of a server that hosts it.
        api_key: A key of that server.
        lifetime: Seconds until it is killed; None: it lives until `close()`, or as long as the server gives.
        idle_timeout: Seconds without a call after which it is killed; None: never for that reason.
        timeout: Seconds of one call; `limits.wall_seconds` unless given.
        tools: Functions of yours that the code may call, by name.
        approve: Called before each call of one of them; False or a text denies it.
        tool_name: The name of the tool in models' calls.
        max_text_chars: Characters of the text of one call.
        max_images: Pictures of one call.
        max_image_bytes: Bytes of one picture.
        transactional: Undo the effects of a call when it fails.
        languages: The languages beside Python that the model may write in.
        scan: Checks code before it runs and returns a verdict with `blocks` and `reason`. Code that it blocks, or
            fails at, is not run.
        wrap_output: Makes the last change to the text of a call.
        publish: Publishes new files for the user.
    """

    def __init__(
        self,
        sandbox: Sandbox | AsyncSandbox | None = None,
        *,
        template: str | Template | None = None,
        limits: LimitsChoice | None = None,
        envs: Mapping[str, str] | None = None,
        network: NetworkChoice | None = None,
        url: str | None = None,
        api_key: str | None = None,
        lifetime: float | None = None,
        idle_timeout: float | None = None,
        timeout: float | None = None,
        tools: Tools | None = None,
        approve: Callable[..., Any] | None = None,
        tool_name: str = "run_code",
        max_text_chars: int = 6_000,
        max_images: int = 4,
        max_image_bytes: int = 1 << 20,
        transactional: bool = False,
        languages: Sequence[Language] = (),
        scan: Scan | None = None,
        wrap_output: WrapOutput | None = None,
        publish: Publisher | ArtifactStore | None = None,
    ) -> None:
        self._async = AsyncCodeInterpreter(
            sandbox,
            template=template,
            limits=limits,
            envs=envs,
            network=network,
            url=url,
            api_key=api_key,
            lifetime=lifetime,
            idle_timeout=idle_timeout,
            timeout=timeout,
            tools=tools,
            approve=approve,
            tool_name=tool_name,
            max_text_chars=max_text_chars,
            max_images=max_images,
            max_image_bytes=max_image_bytes,
            transactional=transactional,
            languages=languages,
            scan=scan,
            wrap_output=wrap_output,
            publish=publish,
        )

    @property
    def sandbox(self) -> Sandbox:
        """The current sandbox, made if there is none yet; another one after it has died and was replaced."""
        return sync_face(call(self._async._holder.begin))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that the model may write in, Python first."""
        return self._async.languages

    def __enter__(self) -> CodeInterpreter:
        call(self._async.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the sandbox if it was made here."""
        call(self._async.close)

    def run(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[Result], object] | None = None,
    ) -> ToolResult:
        """Run code as one call of the tool; its variables are there in the next call.

        Code that fails, or that the scan refuses, and a sandbox that has died give a result with `is_error`. The
        callbacks are called as those of `Sandbox.run_code`; `timeout` is the seconds of this call, those of the
        interpreter unless given.

        Raises:
            SandboxStartError: No sandbox can be made.
            LanguageUnavailableError: The template lacks the language.
        """
        turn = Turn()
        callbacks = {
            "on_stdout": turn.relay(on_stdout, "on_stdout"),
            "on_stderr": turn.relay(on_stderr, "on_stderr"),
            "on_result": turn.relay(on_result, "on_result"),
        }
        options = {**callbacks, **_seconds(timeout), **self._relayed(turn)}
        return turn.call(self._async._bench.run_code, code, check_language(language), options)

    def upload(self, path: str, content: FileContent) -> str:
        """Write a file of the user, and return its path; a relative one is below /mnt/data.

        It is not reported as a new file in the next call.
        """
        return call(self._async.upload, path, content)

    def system_prompt(self) -> str:
        """Return the description of the tool's abilities, read from the sandbox at this moment."""
        return call(self._async.system_prompt)

    def openai_tools(self, *, api: OpenAIApi = "chat", custom: bool = False) -> Items:
        """Return the tool as OpenAI's APIs take it.

        Args:
            api: chat (Chat Completions, `tools`), responses (`tools`), or functions (the deprecated `functions`).
            custom: A tool that takes the code as plain text and not as JSON.
        """
        return self._async.openai_tools(api=api, custom=custom)

    def anthropic_tools(self, *, bash: bool = False, text_editor: bool = False) -> Items:
        """Return the tool as Anthropic's Messages take it, with Anthropic's bash and text editor tools if wanted."""
        return self._async.anthropic_tools(bash=bash, text_editor=text_editor)

    def handle(self, message: object, *, chat_images: bool = False, skip_unknown: bool = False) -> Items:
        """Carry out the calls in a model's message, in order; return the messages to append to the conversation.

        Each call is answered, also one with broken arguments. A message without calls gives an empty list.

        Args:
            message: A message or response of OpenAI or Anthropic, as dicts or as the SDK's own objects.
            chat_images: Let pictures follow in a message of the user's role where tool messages take text alone.
            skip_unknown: Leave calls of other tools to you; otherwise they are answered as mistakes.

        Raises:
            InvalidArgumentError: The value is not a message of a provider.
        """
        turn = Turn()
        return turn.call(self._async._handle, message, chat_images, skip_unknown, self._relayed(turn))

    def answer(self, model_call: ModelCall) -> ToolResult:
        """Carry out one call of a tool, such as one from `read_calls`."""
        turn = Turn()
        return turn.call(self._async._answer, model_call, self._relayed(turn))

    def as_code_interpreter_call(self, code: str) -> Item:
        """Run code and return the `code_interpreter_call` item that OpenAI's own tool would return."""
        turn = Turn()
        return turn.call(self._async._as_code_interpreter_call, code, self._relayed(turn))

    def as_code_execution(self, block: object) -> Item:
        """Carry out a `server_tool_use` block and return the result block of Anthropic's own code execution.

        Args:
            block: A use of `code_execution`, `bash_code_execution` or `text_editor_code_execution`.
        """
        turn = Turn()
        return turn.call(run_code_execution, self._async._bench, block, self._relayed(turn))

    def _relayed(self, turn: Turn) -> Options:
        """Return options with the caller's tools, to be called in the caller's thread."""
        options = self._async._rules.options
        relayed = {
            "tools": relay_tools(turn, options.get("tools")),
            "on_tool_call": relay_approval(turn, options.get("on_tool_call")),
        }
        return {name: value for name, value in relayed.items() if value is not None}


def _run_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of each call, checked; a wrong one is the program's mistake, and raised before any call."""
    given = {name: value for name, value in options.items() if value is not None}
    timeout, tools = given.get("timeout"), given.get("tools", {})

    if timeout is not None and (not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf):
        raise InvalidArgumentError(
            field="timeout", value=timeout, allowed="a number of seconds above 0, or None"
        )

    if not isinstance(tools, Mapping):
        raise InvalidArgumentError(field="tools", value=tools, allowed="a mapping of names to functions")

    for name, tool in tools.items():
        if not isinstance(tool, HostTool) and not callable(tool):
            raise InvalidArgumentError(
                field=f"tools[{name!r}]", value=tool, allowed="a function or a HostTool"
            )

    return given


def _spoken(languages: Sequence[Language], *, is_transactional: bool) -> tuple[str, ...]:
    """Return the names of the languages, Python first."""
    if isinstance(languages, str):
        raise InvalidArgumentError(field="languages", value=languages, allowed="a list of languages")

    found = [known_language(check_language(one)) for one in languages]

    for language in found:
        if is_transactional and language.why_no_checkpoints:
            raise InvalidArgumentError(
                field="languages",
                value=language.name,
                allowed=f"{names_with(checkpoints=True)} with transactional=True",
            )

    return tuple(dict.fromkeys(["python", *(language.name for language in found)]))


def _tool_name(name: str) -> str:
    # The characters that both OpenAI and Anthropic allow.
    if not (0 < len(name) <= 64 and name.isascii() and name.replace("_", "").replace("-", "").isalnum()):
        raise InvalidArgumentError(
            field="tool_name", value=name, allowed="1 to 64 letters, digits, hyphens and underscores"
        )

    return name


def _in_data(path: str) -> str:
    return path if path.startswith("/") else f"/mnt/data/{path}"


def _at_least(field: str, value: object, low: int) -> int:
    if type(value) is not int or value < low:
        raise InvalidArgumentError(field=field, value=value, allowed=f"a whole number from {low:,}")

    return value


def _seconds(timeout: float | None) -> dict[str, float]:
    """Return the option for the time of one call; nothing leaves that of the interpreter."""
    check_seconds("timeout", timeout)
    return {} if timeout is None else {"timeout": timeout}
