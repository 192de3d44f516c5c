"""A client of code-exec, for programs that were written with `replit-code-exec`: same calls, no dependencies.

Runs in the caller's process. It sends code to one address and returns the text of the response; it never runs code
itself.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

_NAME = "code_exec"
_SECONDS = 120.0
_DESCRIPTION = """\
Evaluates an arbitrary snippet of Python code. This is useful for questions that can be answered by a standalone \
Python program that prints the answer to standard output.

Give the code as the contents of a file called main.py, without code fences; it is run as `python3 main.py`.

- {files}
- Make sure that the code is fast. Memoize where it helps.
- {printing}
- There is no network.

Bad: ```python\\n1 + 1\\n```
Good: print(1 + 1)"""
_NO_FILES = "There are no other files in the current directory: an attempt to open() one fails."
_PRINTING = "Always call print() with the final result: nothing else is shown."
_ECHOING = "The value of each expression statement is shown, as at Python's prompt."


def code_exec(
    url: str,
    bearer_token: str,
    code: str,
    files: Mapping[str, str] | None = None,
    strace: bool = False,
    interpreter_mode: bool = False,
) -> str:
    """Runs code on a server and returns its standard output and standard error.

    Args:
        url: The server's route, such as `http://127.0.0.1:8765/replit`.
        bearer_token: The token of one of the server's keys.
        code: Python, as the contents of `main.py`.
        files: Texts by path, written into the working directory before the run.
        strace: Not available in a sandbox; True is refused.
        interpreter_mode: Whether to show the values of expressions, as Python's prompt does.

    Raises:
        RuntimeError: The server refused; its text is the message.
    """
    body: dict[str, Any] = {"code": code}

    if files is not None:
        body["files"] = dict(files)

    if strace:
        body["strace"] = True

    if interpreter_mode:
        body["interpreter_mode"] = True

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url={url!r} is refused: it must begin with http:// or https://")

    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {bearer_token}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310
            text: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            said = error.read().decode("utf-8", "replace").strip()

        raise RuntimeError(f"the server answered {error.code}: {said}") from None

    return text.decode("utf-8", "replace")


class CodeExec:
    """Code execution as a function that a model may call; `build_code_exec` makes one.

    Attributes:
        openai_schema: Its description for `functions=[...]`.
        tool: Its description for `tools=[...]` of Chat Completions.
    """

    def __init__(
        self,
        url: str,
        bearer_token: str,
        files: Mapping[str, str] | None,
        strace: bool,
        interpreter_mode: bool,
    ) -> None:
        self._url = url
        self._token = bearer_token
        self._files = files
        self._strace = strace
        self._is_interpreted = interpreter_mode
        listed = _NO_FILES if not files else f"These files are in the current directory: {', '.join(files)}."
        self.openai_schema: dict[str, Any] = {
            "name": _NAME,
            "description": _DESCRIPTION.format(
                files=listed, printing=_ECHOING if interpreter_mode else _PRINTING
            ),
            "parameters": {
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The contents of main.py."}},
                "required": ["code"],
                "additionalProperties": False,
            },
        }
        self.tool: dict[str, Any] = {"type": "function", "function": self.openai_schema}

    def __call__(self, code: str) -> str:
        """Runs code and returns its output; removes one code fence around it."""
        return code_exec(
            self._url, self._token, strip_fence(code), self._files, self._strace, self._is_interpreted
        )

    def from_response(self, completion: Any, *, strict: bool = True) -> str:
        """Runs the code in a model's answer, and returns its output.

        Args:
            completion: A chat completion, as the object of a client or as a dict: with `function_call`, or with
                `tool_calls`, of which the first call of this function is used.
            strict: Whether to refuse arguments that JSON does not allow, such as bare newlines in text.

        Raises:
            ValueError: The answer has no call of this function, or its arguments do not match the schema.
        """
        arguments = _arguments(completion)

        try:
            given = json.loads(arguments, strict=strict)
        except (ValueError, TypeError):
            raise ValueError(f"the arguments of {_NAME} are no JSON: {str(arguments)[:200]!r}") from None

        if not isinstance(given, dict) or set(given) != {"code"} or not isinstance(given["code"], str):
            raise ValueError(f"the arguments of {_NAME} must be {{'code': text}}, not {str(given)[:200]}")

        return self(given["code"])


def build_code_exec(
    url: str,
    bearer_token: str,
    files: Mapping[str, str] | None = None,
    strace: bool = False,
    interpreter_mode: bool = False,
) -> CodeExec:
    """Makes a function that a model may call; the arguments are those of `code_exec`.

    The result is callable with code, has `.openai_schema` for `functions=[...]` (its name is `code_exec`) and
    `.tool` for `tools=[...]`, and `.from_response(completion)` runs the call in a model's answer.
    """
    return CodeExec(url, bearer_token, files, strace, interpreter_mode)


def strip_fence(code: str) -> str:
    """Returns code without the one Markdown fence that models put around it."""
    stripped = code.strip()
    lines = stripped.split("\n")

    if len(lines) < 2 or not lines[0].startswith("```") or lines[-1].strip() != "```":
        return code

    return "\n".join(lines[1:-1])


def _arguments(completion: Any) -> Any:
    """Returns the arguments of the first call of this function, as the model wrote them."""
    choices = _get(completion, "choices") or []
    message = _get(choices[0], "message") if choices else completion
    calls = [_get(call, "function") for call in _get(message, "tool_calls") or []]

    if (legacy := _get(message, "function_call")) is not None:
        calls.insert(0, legacy)

    names = [_get(call, "name") for call in calls]

    if _NAME not in names:
        raise ValueError(f"the answer calls {names or 'nothing'}, not {_NAME}")

    return _get(calls[names.index(_NAME)], "arguments")


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
