"""Carries out a model's tool call: checks its arguments and calls the tool, or returns a correction for the model.

Every call gets an answer: also an unknown tool, broken arguments, a sandbox that cannot be made. Only a mistake of the
calling program is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fumehood import (
    FumehoodError,
    InvalidArgumentError,
    LanguageUnavailableError,
    SandboxNotStartedError,
    WrongProcessError,
)
from fumehood.llm.formats.anthropic import BASH, TEXT_EDITOR
from fumehood.llm.formats.calls import CODE, LANGUAGE, PYTHON_ALONE, ModelCall, ToolWords, quoted
from fumehood.llm.result import ToolResult
from fumehood.llm.workbench import NO_OPTIONS, Options, Workbench
from fumehood.values.languages import find_language

_MISTAKES = (SandboxNotStartedError, WrongProcessError)


async def answer_call(
    bench: Workbench, call: ModelCall, words: ToolWords, options: Options = NO_OPTIONS
) -> ToolResult:
    """Carry out a tool call and return its result; a mistake of the model gives a result, not an exception."""
    if call.name not in (words.name, BASH, TEXT_EDITOR):
        return _refused(
            f"there is no tool {quoted(call.name)}", f"call {quoted(words.name)} with the argument `{CODE}`"
        )

    if call.problem:
        return _refused(call.problem, f"send the arguments as one JSON object, such as {_example(call.name)}")

    try:
        return await _carry_out(bench, call, words, options)
    except _MISTAKES:
        raise
    except LanguageUnavailableError as error:
        return _refused(error.message, f"write it in {_listed(bench.languages_left(words.languages))}")
    except InvalidArgumentError as error:
        return _refused(error.message, error.hint)
    except FumehoodError as error:
        unsure = " It is not known how much of this call was carried out." if error.outcome_unknown else ""
        return ToolResult(
            text=f"The tool cannot be used now: {error.message}.{unsure}\n"
            "Hint: try once more, then go on without it.",
            is_error=True,
        )


async def _carry_out(bench: Workbench, call: ModelCall, words: ToolWords, options: Options) -> ToolResult:
    if call.name == words.name:
        return await _code(bench, call.arguments, words.languages, options)

    if call.name == BASH:
        return await _bash(bench, call.arguments)

    return (await bench.edit(call.arguments))[1]


async def _code(
    bench: Workbench, arguments: Mapping[str, object], languages: tuple[str, ...], options: Options
) -> ToolResult:
    code = arguments.get(CODE)
    # A tool for Python alone has no such argument, and a model may make one up.
    given = "python" if languages == PYTHON_ALONE else arguments.get(LANGUAGE, "python")
    language = find_language(given)

    if language is None or language.name not in languages:
        return _refused(
            f"the argument `{LANGUAGE}` is {quoted(str(given))}", f"send one of {_listed(languages)}"
        )

    if not isinstance(code, str) or not code.strip():
        return _refused(
            f"the argument `{CODE}` must be a text with {language.title} code", f"send {_example('')}"
        )

    return await bench.run_code(code, language.name, options)


async def _bash(bench: Workbench, arguments: Mapping[str, object]) -> ToolResult:
    if arguments.get("restart") is True:
        return await bench.restart_bash()

    command = arguments.get("command")

    if not isinstance(command, str) or not command.strip():
        return _refused("the argument `command` must be a text with a command", f"send {_example(BASH)}")

    return await bench.run_bash(command)


def _listed(languages: Sequence[str]) -> str:
    *first, last = languages
    return f"{', '.join(first)} or {last}" if first else last


def _refused(problem: str, way_out: str) -> ToolResult:
    return ToolResult(text=f"Nothing was run: {problem}.\nHint: {way_out}.", is_error=True)


def _example(tool: str) -> str:
    match tool:
        case "bash":
            return '{"command": "ls /mnt/data"}'
        case "str_replace_based_edit_tool":
            return '{"command": "view", "path": "/mnt/data"}'
        case _:
            return '{"code": "print(1 + 1)"}'
