"""Types of the callbacks that users pass: called with the events of a running call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from fumehood.values.events import Question
from fumehood.values.execution import Changes, ExecutionError
from fumehood.values.results import Result
from fumehood.values.security import SecurityEvent

TextCallback: TypeAlias = Callable[[str], object]
ResultCallback: TypeAlias = Callable[[Result], object]
ErrorCallback: TypeAlias = Callable[[ExecutionError], object]
CommitCallback: TypeAlias = Callable[[Changes], bool]
InputCallback: TypeAlias = Callable[[Question], str | None]
SecurityCallback: TypeAlias = Callable[[SecurityEvent], object]

AsyncTextCallback: TypeAlias = Callable[[str], Awaitable[object] | object]
AsyncResultCallback: TypeAlias = Callable[[Result], Awaitable[object] | object]
AsyncErrorCallback: TypeAlias = Callable[[ExecutionError], Awaitable[object] | object]
AsyncCommitCallback: TypeAlias = Callable[[Changes], Awaitable[bool] | bool]
AsyncInputCallback: TypeAlias = Callable[[Question], Awaitable[str | None] | str | None]
AsyncSecurityCallback: TypeAlias = Callable[[SecurityEvent], Awaitable[object] | object]
