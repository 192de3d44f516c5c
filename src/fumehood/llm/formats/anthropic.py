"""Anthropic's Messages: tools, `tool_use` blocks with their results, and the blocks of the hosted code execution.

Translation. The bash and the text editor tool are Anthropic's own client tools: models know their arguments, so they
are named by type alone. A server that offers the Messages API can carry out `server_tool_use` blocks here: streams are
complete, within the sandbox's limits, as the hosted tool gives them; files are named by their path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fumehood import Execution, FumehoodError, InvalidArgumentError
from fumehood.llm.formats.calls import (
    CODE,
    Item,
    ModelCall,
    ToolWords,
    anthropic_image,
    plain_dict,
    read_arguments,
    text_of,
    text_without_images,
)
from fumehood.llm.readable_text import readable
from fumehood.llm.result import ToolResult
from fumehood.llm.text_editor import Edited
from fumehood.llm.workbench import NO_OPTIONS, Options, Workbench

BASH = "bash"
TEXT_EDITOR = "str_replace_based_edit_tool"
_BASH_TYPE = "bash_20250124"
_TEXT_EDITOR_TYPE = "text_editor_20250728"


def anthropic_tools(words: ToolWords, *, bash: bool, text_editor: bool) -> list[Item]:
    """Return the definitions for the field `tools` of a Messages request."""
    tools: list[Item] = [
        {"name": words.name, "description": words.description, "input_schema": words.schema()}
    ]

    if bash:
        tools.append({"type": _BASH_TYPE, "name": BASH})

    if text_editor:
        tools.append({"type": _TEXT_EDITOR_TYPE, "name": TEXT_EDITOR})

    return tools


def anthropic_calls(blocks: Iterable[Item]) -> list[ModelCall]:
    """Return the calls among the blocks of an assistant's message."""
    return [_call(block) for block in blocks if block.get("type") == "tool_use"]


def anthropic_answers(answered: Sequence[tuple[ModelCall, ToolResult]]) -> list[Item]:
    """Return a list of one user message with all tool results; empty without calls."""
    if not answered:
        return []

    return [{"role": "user", "content": [_answer(call, result) for call, result in answered]}]


def _call(block: Item) -> ModelCall:
    arguments, problem = read_arguments(block.get("input"))
    return ModelCall(
        id=text_of(block, "id"),
        name=text_of(block, "name"),
        form="anthropic",
        arguments=arguments,
        problem=problem,
    )


def _answer(call: ModelCall, result: ToolResult) -> Item:
    # In an error the API accepts only text.
    content: str | list[Item] = text_without_images(result) if result.is_error else result.text

    if result.images and not result.is_error:
        content = [{"type": "text", "text": result.text}, *map(anthropic_image, result.images)]

    answer: Item = {"type": "tool_result", "tool_use_id": call.id, "content": content}

    if result.is_error:
        answer["is_error"] = True

    return answer


# The message about an ended process names its code; that of a failed shell command is only its code.
_EXIT_CODE = re.compile(r"exit code (\d{1,3})")
_TIMED_OUT = ("time_limit", "cpu_limit")


async def run_code_execution(bench: Workbench, block: object, relayed: Options = NO_OPTIONS) -> Item:
    """Carry out a `server_tool_use` block and return its result block.

    Raises:
        InvalidArgumentError: The block is not a `server_tool_use` block.
    """
    use = plain_dict(block)
    name, given = text_of(use, "name"), plain_dict(use.get("input"))

    if name == "text_editor_code_execution":
        return await _edit(bench, use, given)

    if name not in ("code_execution", "bash_code_execution"):
        raise InvalidArgumentError(
            field="block.name",
            value=name,
            allowed="code_execution, bash_code_execution or text_editor_code_execution",
        )

    code = given.get(CODE if name == "code_execution" else "command")

    if given.get("restart") is True and name == "bash_code_execution":
        return code_execution_result(await bench.restart_bash(), text_of(use, "id"), name=name)

    if not isinstance(code, str) or not code.strip():
        return code_execution_error("invalid_tool_input", text_of(use, "id"), name=name)

    try:
        ran = bench.run_python(code, relayed) if name == "code_execution" else bench.run_bash(code)
        made = code_execution_result(await ran, text_of(use, "id"), name=name)
    except FumehoodError:
        return code_execution_error("unavailable", text_of(use, "id"), name=name)

    return {**made, "content": await _with_hook(bench, plain_dict(made["content"]), ("stdout", "stderr"))}


def code_execution_result(result: ToolResult, tool_use_id: str, *, name: str = "code_execution") -> Item:
    """Return the result block of a call.

    Args:
        result: Its result.
        tool_use_id: The block that it answers.
        name: code_execution or bash_code_execution.
    """
    execution = result.execution

    if execution is None:
        # The scan has refused it, or the sandbox has ended: the model reads why.
        return _block(
            name, tool_use_id, _content(name, "", result.text if result.is_error else "", result.is_error)
        )

    if execution.error is not None and execution.error.kind in _TIMED_OUT:
        return code_execution_error("execution_time_exceeded", tool_use_id, name=name)

    content = _content(name, _stdout(execution), _stderr(execution), _return_code(execution))
    content["content"] = [
        {"type": f"{name}_output", "file_id": file.url or _shown(file.path)} for file in result.files
    ]
    return _block(name, tool_use_id, content)


def code_execution_error(error_code: str, tool_use_id: str, *, name: str = "code_execution") -> Item:
    """Return the result block of a call without a result."""
    return _block(name, tool_use_id, {"type": f"{name}_tool_result_error", "error_code": error_code})


def text_editor_result(edited: Edited, tool_use_id: str) -> Item:
    """Return the result block of a command of the text editor."""
    name = "text_editor_code_execution"

    if edited.error:
        error = code_execution_error(edited.error, tool_use_id, name=name)
        return {**error, "content": {**plain_dict(error["content"]), "error_message": edited.text}}

    match edited.command:
        case "view":
            content: Item = {
                "type": f"{name}_view_result",
                "file_type": "text",
                "content": edited.content or edited.text,
                "num_lines": edited.content.count("\n") + 1,
                "start_line": edited.start_line,
                "total_lines": edited.total_lines,
            }
        case "create":
            content = {"type": f"{name}_create_result", "is_file_update": edited.is_update}
        case _:
            content = {
                "type": f"{name}_str_replace_result",
                "old_start": edited.start_line,
                "old_lines": len(edited.old),
                "new_start": edited.start_line,
                "new_lines": len(edited.new),
                "lines": [*(f"-{line}" for line in edited.old), *(f"+{line}" for line in edited.new)],
            }

    return _block(name, tool_use_id, content)


async def _edit(bench: Workbench, use: Item, given: Item) -> Item:
    try:
        edited, _ = await bench.edit(given)
    except FumehoodError:
        edited = None

    if edited is None:
        return code_execution_error("unavailable", text_of(use, "id"), name="text_editor_code_execution")

    made = text_editor_result(edited, text_of(use, "id"))
    return {**made, "content": await _with_hook(bench, plain_dict(made["content"]), ("content",))}


async def _with_hook(bench: Workbench, content: Item, names: Sequence[str]) -> Item:
    """Pass texts of a guest through the caller's `wrap_output`."""
    texts = {name: text for name in names if (text := text_of(content, name))}
    return {**content, **{name: await bench.wrap(text) for name, text in texts.items()}}


def _shown(path: str) -> str:
    """Return a path as text; bytes of a guest's path that are no text are escaped, as providers' APIs require."""
    return path.encode("utf-8", "backslashreplace").decode()


def _block(name: str, tool_use_id: str, content: Item) -> Item:
    return {"type": f"{name}_tool_result", "tool_use_id": tool_use_id, "content": content}


def _content(name: str, stdout: str, stderr: str, return_code: int) -> Item:
    return {
        "type": f"{name}_result",
        "stdout": stdout,
        "stderr": stderr,
        "return_code": int(return_code),
        "content": [],
    }


def _stdout(execution: Execution) -> str:
    shown = [readable("".join(execution.logs.stdout))]

    # The hosted tool runs a script: the value of a last expression stands where a print would have put it.
    if execution.text is not None:
        shown.append(f"{readable(execution.text)}\n")

    return "".join(shown)


def _stderr(execution: Execution) -> str:
    written = readable("".join(execution.logs.stderr))
    error = execution.error

    if error is None or error.name == "ExitCode":
        return written

    return f"{written}{readable(str(error))}"


def _return_code(execution: Execution) -> int:
    error = execution.error

    if error is None:
        return 0

    if error.name == "ExitCode" and error.value.isascii() and error.value.isdigit() and len(error.value) <= 3:
        return int(error.value)

    found = _EXIT_CODE.search(error.value)
    return int(found[1]) if found else 1
