"""A code executor of Google ADK over live sandboxes: `LlmAgent(code_executor=FumehoodCodeExecutor())`.

Runs in the user's process, in the worker thread that ADK gives each execution. Each session has a sandbox of its own,
so that the users of an agent share neither variables nor files. Figures, and files that the code wrote, become
artifacts of the session.
"""

from __future__ import annotations

import base64
import binascii
import threading
from typing import Any

from fumehood import FileError
from fumehood.frameworks.needed import needed
from fumehood.llm import CodeInterpreter, ToolFile, ToolResult

with needed("google-adk"):
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
    from google.adk.code_executors.code_execution_utils import CodeExecutionInput, CodeExecutionResult, File
    from pydantic import Field, PrivateAttr

_TIMED_OUT = 124


class _Session:
    """The interpreter of one session, and the files that it was given."""

    def __init__(self, interpreter: CodeInterpreter) -> None:
        self.interpreter = interpreter
        self.given: dict[str, bytes] = {}
        self.lock = threading.Lock()


class FumehoodCodeExecutor(BaseCodeExecutor):
    """Runs the code of an agent in sandboxes.

    Attributes:
        stateful: Whether the executions of a session share a sandbox, with its variables and files. Otherwise each
            execution has a sandbox of its own.
        options: Arguments of `fumehood.llm.CodeInterpreter`, such as *template*, *limits*, *url*, or *sandbox* to use
            one of yours for all sessions.
        max_sessions: How many sessions may have a sandbox. A further session ends the sandbox of the least recently
            used one.
        max_file_bytes: The largest file of the sandbox that becomes an artifact.
    """

    stateful: bool = True
    options: dict[str, Any] = Field(default_factory=dict)
    max_sessions: int = Field(default=100, ge=1)
    max_file_bytes: int = 10 * 1024 * 1024

    _sessions: dict[str, _Session] = PrivateAttr(default_factory=dict)
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run code, with the input files beside it."""
        name = code_execution_input.execution_id if self.stateful else None

        if name is None:
            with self._interpreter() as interpreter:
                return self._run(_Session(interpreter), code_execution_input)

        session = self._session(name)

        with session.lock:
            return self._run(session, code_execution_input)

    def close_session(self, execution_id: str) -> None:
        """Kill the sandbox of one session, whose id is that of ADK's session."""
        with self._lock:
            session = self._sessions.pop(execution_id, None)

        if session is not None:
            session.interpreter.close()

    def close(self) -> None:
        """Kill all sandboxes that were made here."""
        for name in [*self._sessions]:
            self.close_session(name)

    def __enter__(self) -> FumehoodCodeExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _session(self, name: str) -> _Session:
        with self._lock:
            # The one that was used last stands last.
            session = self._sessions.pop(name, None) or _Session(self._interpreter())
            self._sessions[name] = session
            too_many = [*self._sessions][: -self.max_sessions]

        for other in too_many:
            self.close_session(other)

        return session

    def _interpreter(self) -> CodeInterpreter:
        return CodeInterpreter(**{"timeout": self.timeout_seconds, **self.options})

    def _run(self, session: _Session, asked: CodeExecutionInput) -> CodeExecutionResult:
        for file in asked.input_files:
            self._give(session, file)

        result = session.interpreter.run(asked.code)
        error = result.execution.error if result.execution is not None else None
        late = error is not None and error.kind == "time_limit"
        return CodeExecutionResult(
            # ADK shows a model the one or the other, and takes whatever is in `stderr` for a failure.
            stdout="" if result.is_error else result.text,
            stderr=result.text if result.is_error else "",
            output_files=self._files(session, result),
            exit_code=_TIMED_OUT if late else int(result.is_error),
        )

    def _give(self, session: _Session, file: File) -> None:
        content = _decode(file.content)

        # ADK sends all files with every execution, and the code may have changed its own.
        if session.given.get(file.name) != content:
            info = session.interpreter.sandbox.files.write(file.name, content)
            session.given |= {file.name: content, info.path: content}

    def _files(self, session: _Session, result: ToolResult) -> list[File]:
        pictures = [File(image.name, image.data, image.mime) for image in result.images]
        written = [
            self._read(session, file) for file in result.files if file.size_bytes <= self.max_file_bytes
        ]
        return pictures + [file for file in written if file is not None]

    def _read(self, session: _Session, file: ToolFile) -> File | None:
        try:
            content = session.interpreter.sandbox.files.read(
                file.path, format="bytes", max_bytes=self.max_file_bytes
            )
        except FileError:
            # Gone, or grown, since it was listed.
            return None

        return None if session.given.get(file.path) == content else File(file.name, content, file.mime)


def _decode(content: str | bytes) -> bytes:
    """Return the bytes of a file that was given as bytes or as base64 text."""
    if isinstance(content, bytes):
        return content

    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        return content.encode()
