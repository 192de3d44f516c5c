"""The words of providers: what we write is what the official SDKs define, and what they give is understood."""

from __future__ import annotations

import base64
import json
from typing import Any

import anthropic.types as anthropic_types
import openai.types.chat as chat_types
import openai.types.responses as response_types
import pytest
from openai.types.chat import chat_completion_user_message_param as user_message
from openai.types.chat.completion_create_params import Function as LegacyFunction
from pydantic import TypeAdapter

from fumehood import InvalidArgumentError
from fumehood.llm import (
    CodeInterpreter,
    ModelCall,
    ToolImage,
    ToolResult,
    code_interpreter_call,
    code_interpreter_events,
    read_calls,
    write_answers,
)

PNG = b"\x89PNG\r\n\x1a\n"
IMAGE = ToolImage(name="image-1.png", mime="image/png", data=PNG)
SHOWN = ToolResult(text="seen", images=(IMAGE,))
FAILED = ToolResult(text="no", is_error=True)
WORDS = CodeInterpreter()


def valid(kind: Any, value: object) -> None:
    """The SDK takes it as this type, and would send nothing else."""
    adapter = TypeAdapter(kind)
    checked = adapter.validate_python(value, strict=False)
    assert json.loads(adapter.dump_json(checked)) == value


def chat_message(*calls: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ],
    }


def completion(message: dict[str, Any]) -> chat_types.ChatCompletion:
    return chat_types.ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
        }
    )


def response(*items: dict[str, Any]) -> response_types.Response:
    return response_types.Response.model_validate(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 0,
            "model": "m",
            "output": items,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
    )


def anthropic_message(*blocks: dict[str, Any]) -> anthropic_types.Message:
    return anthropic_types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    )


def use(call_id: str, name: str, **given: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


CODE = '{"code": "1 + 1"}'
FUNCTION_CALL = {
    "type": "function_call",
    "id": "fc",
    "call_id": "c1",
    "name": "run_code",
    "arguments": CODE,
}
CUSTOM_CALL = {
    "type": "custom_tool_call",
    "id": "cu",
    "call_id": "c2",
    "name": "run_code",
    "input": "1 + 1",
}


@pytest.mark.parametrize(
    ("kind", "tools"),
    [
        (chat_types.ChatCompletionFunctionToolParam, WORDS.openai_tools()),
        (chat_types.ChatCompletionCustomToolParam, WORDS.openai_tools(custom=True)),
        (response_types.FunctionToolParam, WORDS.openai_tools(api="responses")),
        (response_types.CustomToolParam, WORDS.openai_tools(api="responses", custom=True)),
        (LegacyFunction, WORDS.openai_tools(api="functions")),
        (anthropic_types.ToolParam, WORDS.anthropic_tools()),
        (anthropic_types.ToolBash20250124Param, WORDS.anthropic_tools(bash=True)[1:]),
        (anthropic_types.ToolTextEditor20250728Param, WORDS.anthropic_tools(text_editor=True)[1:]),
    ],
)
def test_tools_are_what_the_sdks_define(kind: Any, tools: list[dict[str, Any]]) -> None:
    """One tool each, with one argument that is required."""
    assert len(tools) == 1
    valid(kind, tools[0])


def test_the_schema_is_strict() -> None:
    """As strict modes want it: all properties required, no others."""
    schema = WORDS.openai_tools()[0]["function"]["parameters"]

    assert schema["required"] == ["code"] == list(schema["properties"])
    assert schema["additionalProperties"] is False


def test_an_api_that_is_none_is_refused() -> None:
    """By name."""
    with pytest.raises(InvalidArgumentError, match="assistants"):
        WORDS.openai_tools(api="assistants")  # type: ignore[arg-type]


def both(made: Any) -> list[Any]:
    """A message as dicts and as the SDK's own object."""
    return [made, made.model_dump(mode="json"), made.model_dump(mode="python", exclude_none=True)]


def test_calls_are_read_from_each_provider() -> None:
    """From dicts, from the SDKs' objects, from the whole response and from its parts."""
    chat = completion(chat_message(("c1", "run_code", CODE), ("c2", "run_code", CODE)))
    custom = {"id": "c3", "type": "custom", "custom": {"name": "run_code", "input": "1 + 1"}}
    answer = response(FUNCTION_CALL, CUSTOM_CALL)
    message = anthropic_message({"type": "text", "text": "so"}, use("t1", "run_code", code="1 + 1"))

    for made in [*both(chat), *both(chat.choices[0].message)]:
        assert [(call.id, call.form) for call in read_calls(made)] == [("c1", "chat"), ("c2", "chat")]

    for made in [*both(answer), answer.output, [FUNCTION_CALL, CUSTOM_CALL]]:
        assert [(call.id, call.form) for call in read_calls(made)] == [("c1", "response"), ("c2", "custom")]

    for made in [*both(message), message.content, message.content[1], use("t1", "run_code", code="1 + 1")]:
        assert [(call.id, call.form) for call in read_calls(made)] == [("t1", "anthropic")]

    legacy = {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "run_code", "arguments": CODE},
    }
    found = [
        *read_calls(chat),
        *read_calls(answer),
        *read_calls(message),
        *read_calls(legacy),
        *read_calls({"role": "assistant", "tool_calls": [custom]}),
    ]
    assert [dict(call.arguments) for call in found] == [{"code": "1 + 1"}] * 7


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "hello"},
        {"role": "assistant", "content": "hello", "tool_calls": None, "function_call": None},
        {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
        completion({"role": "assistant", "content": "hello"}),
        anthropic_message({"type": "text", "text": "hello"}),
        response(),
        [],
        {},
        {"tool_calls": "x"},
        {"choices": [3]},
        {"output": "x", "object": "response"},
    ],
)
def test_a_message_without_calls_has_none(message: object) -> None:
    """Of any provider, and of none."""
    assert read_calls(message) == []
    assert write_answers([]) == []
    assert WORDS.handle(message) == []


@pytest.mark.parametrize("message", [None, 3, "run it"])
def test_what_is_no_message_is_a_mistake_of_the_program(message: object) -> None:
    """A model never sends these."""
    with pytest.raises(InvalidArgumentError):
        read_calls(message)


def test_answers_in_chat() -> None:
    """Text alone; pictures follow in a message of the user's role where they are wanted."""
    calls = read_calls(chat_message(("c1", "run_code", CODE), ("c2", "run_code", CODE)))
    answered = list(zip(calls, [SHOWN, FAILED], strict=True))

    plain = write_answers(answered)
    assert [message["tool_call_id"] for message in plain] == ["c1", "c2"]
    assert "Images cannot be shown to you here" in plain[0]["content"]

    with_images = write_answers(answered, with_images=True)
    assert [message["role"] for message in with_images] == ["tool", "tool", "user"]
    assert with_images[0]["content"] == "seen"
    assert (
        with_images[2]["content"][1]["image_url"]["url"]
        == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    )

    for message in [*plain, *with_images[:2]]:
        valid(chat_types.ChatCompletionToolMessageParam, message)

    user_message.ChatCompletionUserMessageParam(**with_images[2])
    for part in with_images[2]["content"]:
        valid(chat_types.ChatCompletionContentPartParam, part)


def test_answers_in_the_functions_of_before() -> None:
    """By the function's name."""
    call = ModelCall(id="", name="run_code", form="function")
    (message,) = write_answers([(call, SHOWN)])

    valid(chat_types.ChatCompletionFunctionMessageParam, message)
    assert message["name"] == "run_code"


def test_answers_in_responses() -> None:
    """Pictures are part of the output, and who called is handed back."""
    caller = {"type": "program", "caller_id": "p1"}
    calls = read_calls([{**FUNCTION_CALL, "caller": caller}, CUSTOM_CALL])
    first, second = write_answers(list(zip(calls, [SHOWN, FAILED], strict=True)))

    assert (first["type"], first["call_id"], first["caller"]) == ("function_call_output", "c1", caller)
    assert [part["type"] for part in first["output"]] == ["input_text", "input_image"]
    assert (second["type"], second["call_id"], second["output"]) == ("custom_tool_call_output", "c2", "no")
    valid(response_types.response_input_item_param.FunctionCallOutput, first)
    valid(response_types.ResponseCustomToolCallOutputParam, second)


def test_answers_in_messages() -> None:
    """One message for all calls; an error has text alone."""
    calls = read_calls(anthropic_message(use("t1", "run_code", code="1"), use("t2", "run_code", code="1")))
    (message,) = write_answers(list(zip(calls, [SHOWN, FAILED], strict=True)))

    assert [block["tool_use_id"] for block in message["content"]] == ["t1", "t2"]
    assert [block["type"] for block in message["content"][0]["content"]] == ["text", "image"]
    assert message["content"][1] == {
        "type": "tool_result",
        "tool_use_id": "t2",
        "content": "no",
        "is_error": True,
    }

    for block in message["content"]:
        TypeAdapter(anthropic_types.ToolResultBlockParam).validate_python(block)


def test_calls_are_carried_out_in_order(interpreter: CodeInterpreter) -> None:
    """All of one message, each with its own answer."""
    message = completion(
        chat_message(
            ("c1", "run_code", '{"code": "x = 1"}'),
            ("c2", "run_code", '{"code": "x += 1; 1/0"}'),
            ("c3", "run_code", '{"code": "x"}'),
        )
    )
    first, second, third = interpreter.handle(message)

    assert (first["tool_call_id"], third["tool_call_id"], third["content"]) == ("c1", "c3", "2")
    assert "ZeroDivisionError" in second["content"]


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        (
            "run_code",
            '{"code": "1',
            "the arguments are no JSON: Unterminated string starting at at character 9",
        ),
        ("run_code", "", "the arguments are empty"),
        ("run_code", "[1]", "the arguments are a JSON array, not an object"),
        ("run_code", "null", "the arguments are a JSON null, not an object"),
        ("run_code", "[" * 100_000, "the arguments are nested too deeply"),
        ("run_code", "{}", "the argument `code` must be a text"),
        ("run_code", '{"code": ["1"]}', "the argument `code` must be a text"),
        ("run_code", '{"code": "  "}', "the argument `code` must be a text"),
        ("run_code", '{"code": "\\udcff"}', "encodable as UTF-8"),
        ("python", CODE, "there is no tool `python`.\nHint: call `run_code`"),
        ("x\n\x1b[31m", CODE, "there is no tool `x\\n\\x1b[31m`"),
        ("", CODE, "there is no tool ``"),
    ],
)
def test_broken_calls_are_answered(
    interpreter: CodeInterpreter, name: str, arguments: str, told: str
) -> None:
    """With what is wrong and what to do; never an exception."""
    (answer,) = interpreter.handle(chat_message(("c1", name, arguments)))

    assert answer["content"].startswith("Nothing was run: ")
    assert told in answer["content"]
    assert "\nHint: " in answer["content"]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"code": "print(1)\nprint(2)"}',
        '{"code": "```python\\nprint(1)\\nprint(2)\\n```"}',
        '{"code": "print(1)\\nprint(2)", "x": 1}',
    ],
)
def test_what_is_clearly_meant_is_done(interpreter: CodeInterpreter, arguments: str) -> None:
    """Ends of lines that are not escaped, fences as in a message, arguments that nobody asked for."""
    (answer,) = interpreter.handle(chat_message(("c1", "run_code", arguments)))

    assert answer["content"] == "1\n2"


def test_calls_without_shape_are_answered(interpreter: CodeInterpreter) -> None:
    """A provider that leaves out half of a call."""
    (answer,) = interpreter.handle({"role": "assistant", "tool_calls": [{}]})
    assert answer["role"] == "tool"

    (answer,) = interpreter.handle([{"type": "tool_use", "id": "t", "name": "run_code"}])
    assert answer["content"][0]["is_error"] is True


def test_other_tools_can_be_left_to_the_caller(interpreter: CodeInterpreter) -> None:
    """Whose message has calls of its own tools as well."""
    message = chat_message(("c1", "search", "{}"), ("c2", "run_code", CODE))

    assert [answer["tool_call_id"] for answer in interpreter.handle(message, skip_unknown=True)] == ["c2"]
    assert [answer["tool_call_id"] for answer in interpreter.handle(message)] == ["c1", "c2"]


def test_a_shell_keeps_its_state(interpreter: CodeInterpreter) -> None:
    """Anthropic's bash tool: directory and variables stay, until it is restarted."""
    message = anthropic_message(
        use("t1", "bash", command="cd /mnt/data; A=5; echo hi > f.txt"),
        use("t2", "bash", command="pwd; echo $A; ls; false"),
        use("t3", "bash", restart=True),
        use("t4", "bash", command="echo [$A]"),
        use("t5", "bash"),
    )
    first, second, third, fourth, fifth = interpreter.handle(message)[0]["content"]

    assert first["content"] == "(no output; print a value, or end with an expression, to see it)\n" or (
        "[new file: /mnt/data/f.txt, 3 bytes]" in first["content"]
    )
    assert second["content"].startswith("/mnt/data\n5\nf.txt\n")
    assert second["is_error"] is True
    assert third["content"] == "The shell was restarted."
    assert fourth["content"] == "[]"
    assert "`command` must be a text" in fifth["content"]


def test_the_text_editor(interpreter: CodeInterpreter) -> None:
    """Anthropic's client tool: all commands, on files that Python sees."""
    tool, path = "str_replace_based_edit_tool", "/mnt/data/a/b.py"

    def ask(**given: object) -> dict[str, Any]:
        return interpreter.handle([use("t", tool, **given)])[0]["content"][0]

    assert "was created: 11 bytes" in ask(command="create", path=path, file_text="a = 1\nb = 2")["content"]
    assert ask(command="view", path=path)["content"] == "     1\ta = 1\n     2\tb = 2"
    assert ask(command="view", path=path, view_range=[2, -1])["content"] == "     2\tb = 2"
    assert (
        "     2\tb = 3\n     3\tc = 4"
        in ask(command="str_replace", path=path, old_str="b = 2", new_str="b = 3\nc = 4")["content"]
    )
    assert (
        "     1\t# top\n     2\ta = 1"
        in ask(command="insert", path=path, insert_line=0, insert_text="# top\n")["content"]
    )
    assert interpreter.run(f"print(open({path!r}).read())").text == "# top\na = 1\nb = 3\nc = 4"
    assert "/mnt/data/a/b.py" in ask(command="view", path="/mnt/data")["content"]
    assert "is_error" not in ask(command="str_replace", path=path, old_str="\nc = 4")
    assert interpreter.sandbox.files.read(path) == "# top\na = 1\nb = 3"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"command": "undo_edit"}, "`command` must be view, create, str_replace or insert"),
        ({}, "`command` must be"),
        ({"command": "view"}, "`path` must be given"),
        ({"command": "view", "path": "/mnt/data/no"}, "View its directory"),
        (
            {"command": "view", "path": "/mnt/data/t", "view_range": [3, 9]},
            "`view_range` must be [first, last]",
        ),
        ({"command": "view", "path": "/mnt/data/bytes"}, "no UTF-8 text"),
        ({"command": "view", "path": "/mnt/data/large"}, "more than 4 MiB"),
        ({"command": "view", "path": "a\0b"}, "Error: "),
        ({"command": "str_replace", "path": "/mnt/data/t", "old_str": "z"}, "`old_str` is not in the file"),
        ({"command": "str_replace", "path": "/mnt/data/t", "old_str": "x"}, "`old_str` occurs 2 times"),
        ({"command": "str_replace", "path": "/mnt/data/t", "old_str": ""}, "`old_str` must be given"),
        ({"command": "insert", "path": "/mnt/data/t", "insert_line": 9, "insert_text": "y"}, "from 0 to 2"),
        ({"command": "insert", "path": "/mnt/data/t", "insert_line": 0}, "`insert_text` must be given"),
        ({"command": "create", "path": "/etc/passwd", "file_text": "x"}, "Error: "),
    ],
)
def test_mistakes_in_the_editor_are_answered(
    interpreter: CodeInterpreter, given: dict[str, Any], told: str
) -> None:
    """With the way out."""
    interpreter.sandbox.files.write("/mnt/data/t", "x\nx")
    interpreter.sandbox.files.write("/mnt/data/bytes", b"\xff\xfe\x00")
    interpreter.run("open('/mnt/data/large', 'w').truncate(5 << 20);")
    answer = interpreter.handle([use("t", "str_replace_based_edit_tool", **given)])[0]["content"][0]

    assert answer["is_error"] is True
    assert told in answer["content"]


def test_the_hosted_code_interpreter_of_openai(interpreter: CodeInterpreter) -> None:
    """Our results in its words, as item and as the events of a stream."""
    item = interpreter.as_code_interpreter_call(
        "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\nprint('so')"
    )
    parsed = response_types.ResponseCodeInterpreterToolCall.model_validate(item)

    assert parsed.status == "completed"
    assert parsed.container_id == f"cntr_{interpreter.sandbox.id}"
    assert [output.type for output in parsed.outputs or []] == ["logs", "image"]
    assert parsed.outputs[0].logs.startswith("so\n")  # type: ignore[index, union-attr]

    for event in code_interpreter_events(item, output_index=0, first_number=3):
        TypeAdapter(response_types.ResponseStreamEvent).validate_python(event)

    assert (
        response_types.ResponseCodeInterpreterToolCall.model_validate(
            interpreter.as_code_interpreter_call("1/0")
        ).status
        == "completed"
    )


def test_the_status_of_what_was_stopped(interpreter: CodeInterpreter) -> None:
    """A call that ran out of time is incomplete, one that did not run has failed."""
    with CodeInterpreter(interpreter.sandbox, timeout=0.2) as made:
        assert made.as_code_interpreter_call("while True: pass")["status"] == "incomplete"

    assert interpreter.as_code_interpreter_call("import os; os._exit(1)")["status"] == "failed"
    assert code_interpreter_call(FAILED, "x", "cntr_x")["status"] == "failed"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "code_execution",
            {"code": "print('a')\n1 + 1"},
            {"stdout": "a\n2\n", "stderr": "", "return_code": 0},
        ),
        ("code_execution", {"code": "import os; os._exit(3)"}, {"stdout": "", "return_code": 3}),
        ("code_execution", {"code": "1/0"}, {"stdout": "", "return_code": 1}),
        (
            "bash_code_execution",
            {"command": "echo a; echo b >&2; (exit 7)"},
            {"stdout": "a\n", "stderr": "b\n", "return_code": 7},
        ),
        ("code_execution", {"code": 3}, {"error_code": "invalid_tool_input"}),
        ("bash_code_execution", {}, {"error_code": "invalid_tool_input"}),
    ],
)
def test_the_hosted_code_execution_of_anthropic(
    interpreter: CodeInterpreter, name: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Python and bash: result and error blocks as the SDK defines them."""
    block = anthropic_types.ServerToolUseBlock(id="s1", name=name, input=given, type="server_tool_use")  # type: ignore[arg-type]
    result = interpreter.as_code_execution(block)
    kind = {
        "code_execution": anthropic_types.CodeExecutionToolResultBlock,
        "bash_code_execution": anthropic_types.BashCodeExecutionToolResultBlock,
    }[name]

    assert kind.model_validate(result).tool_use_id == "s1"
    assert {key: result["content"].get(key) for key in expected} == expected


def test_files_and_time_in_hosted_code_execution(interpreter: CodeInterpreter) -> None:
    """New files are named; code that ran out of time is an error of its own."""
    interpreter.run("1")
    code = "open('/mnt/data/o.txt', 'w').close()"
    done = interpreter.as_code_execution(use("s", "code_execution", code=code))

    with CodeInterpreter(interpreter.sandbox, timeout=0.3) as made:
        late = made.as_code_execution(use("s", "code_execution", code="while True: pass"))

    parsed = anthropic_types.CodeExecutionToolResultBlock.model_validate(done)
    assert [output.file_id for output in parsed.content.content] == ["/mnt/data/o.txt"]  # type: ignore[union-attr]
    assert late["content"]["error_code"] == "execution_time_exceeded"


def test_the_hosted_text_editor_of_anthropic(interpreter: CodeInterpreter) -> None:
    """Each command has a result block of its own."""
    path = "/mnt/data/t.txt"

    def ask(**given: object) -> Any:
        block = interpreter.as_code_execution(use("s", "text_editor_code_execution", path=path, **given))
        return anthropic_types.TextEditorCodeExecutionToolResultBlock.model_validate(block).content

    missing = ask(command="view")
    assert (missing.type, missing.error_code) == (
        "text_editor_code_execution_tool_result_error",
        "file_not_found",
    )
    assert ask(command="create", file_text="a\nb\nc").is_file_update is False
    assert ask(command="create", file_text="a\nb\nc").is_file_update is True
    view = ask(command="view", view_range=[2, 3])
    assert (view.content, view.start_line, view.num_lines, view.total_lines) == ("b\nc", 2, 2, 3)
    changed = ask(command="str_replace", old_str="b", new_str="x\ny")
    assert (changed.lines, changed.old_start, changed.old_lines, changed.new_lines) == (
        ["-b", "+x", "+y"],
        2,
        1,
        2,
    )


def test_blocks_that_are_not_ours_are_refused(interpreter: CodeInterpreter) -> None:
    """Nobody's web search is answered here."""
    with pytest.raises(InvalidArgumentError, match="web_search"):
        interpreter.as_code_execution(use("s", "web_search", query="x"))
