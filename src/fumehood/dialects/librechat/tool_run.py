"""One run of code that calls tools: its sandbox stays while a client runs the tools.

The broker's output comes from a guest: lines of bounded size, checked before anything of them is passed on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

from fumehood.bounds import MIB
from fumehood.dialects.librechat import guest_programs
from fumehood.dialects.librechat.broker_lines import BrokerLines, read_line
from fumehood.dialects.librechat.exec_code import OUT_OF_TIME, RUN_ENVS
from fumehood.dialects.librechat.shelf import Shelf, new_session_id
from fumehood.dialects.librechat.tool_bodies import ToolRunCall
from fumehood.dialects.librechat.workspace import DATA, Outcome, Workspace
from fumehood.server.principal import Principal
from fumehood.server.programs import Workbench, limits_within, open_workbench, pieces_of_bytes
from fumehood.server.services import Services
from fumehood.values.requests import ProcessEvent, ProcessOutput, ProcessSpec, SendStdin

WAIT_SECONDS = 300.0
_RUN_SECONDS = 15.0
_MAX_ROUNDS = 100
_LINE_BYTES = 15 * MIB
_MAX_CALLS = 500
_CODES = 256
_NO_RESULT = {"result": None, "is_error": True, "error_message": "no result was sent for this call"}
_BROKEN = "Execution failed or timed out"


@dataclass(frozen=True, slots=True)
class Calls:
    """The tools that the code waits for."""

    calls: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The fields of the answer, when the code has ended."""

    words: Mapping[str, Any]


class ToolRun:
    """A run, from its start until `close`.

    Attributes:
        session_id: The storage session of its files.
        owner: The key that owns the run.
    """

    def __init__(self, services: Services, principal: Principal, call: ToolRunCall) -> None:
        self.session_id = new_session_id()
        self.owner = principal.key_id
        self._services = services
        self._principal = principal
        self._call = call
        self._workspace = Workspace(Shelf(services, principal.key_id), self.session_id)
        self._limits = limits_within(
            principal, {"wall_seconds": call.seconds}, wall_seconds=_RUN_SECONDS, stdout_bytes=16 * MIB
        )
        self._stack = AsyncExitStack()
        self._asked: list[str] = []
        self._rounds = 0
        self._lines = BrokerLines()
        self._bench: Workbench
        self._events: AsyncGenerator[ProcessEvent, None]
        self._pid = 0

    async def start(self) -> Calls | Ended:
        """Starts the code and returns when it waits or has ended.

        Raises:
            FumehoodError: It could not be started.
        """
        files = await self._workspace.find(self._call.files, self._call.session_id)
        seconds = self._limits.wall_seconds + WAIT_SECONDS
        self._bench = await self._stack.enter_async_context(
            open_workbench(self._services, self._principal, self._limits, seconds)
        )
        await self._workspace.put_in(self._bench, files)
        await self._set_up()
        program = ("bash", f"{guest_programs.FOLDER}/main.sh")

        if not self._call.is_bash:
            program = ("python3", f"{guest_programs.FOLDER}/runner.py")

        process = await self._bench.backend.start_process(
            self._bench.sandbox_id,
            ProcessSpec(
                argv=("python3", f"{guest_programs.FOLDER}/broker.py", *program),
                cwd=DATA,
                envs={**RUN_ENVS, "BASH_ENV": f"{guest_programs.FOLDER}/tools.sh"},
                stdin=True,
            ),
        )
        self._pid = process.pid
        self._events = self._bench.backend.process_output(self._bench.sandbox_id, process.pid)
        await self._stack.enter_async_context(aclosing(self._events))
        return await self._next()

    async def go_on(self, results: Mapping[str, Mapping[str, Any]]) -> Calls | Ended:
        """Gives the results of the calls and returns when the code waits again or has ended."""
        backend, sandbox_id = self._bench.backend, self._bench.sandbox_id
        line = json.dumps({call_id: results.get(call_id, _NO_RESULT) for call_id in self._asked})
        # While the tools ran, its time went on; from here it has another round's.
        await backend.set_timeout(sandbox_id, self._limits.wall_seconds + 2 * WAIT_SECONDS)

        async def feed() -> None:
            async for piece in pieces_of_bytes(f"{line}\n".encode()):
                await backend.process_call(sandbox_id, SendStdin(pid=self._pid, data=piece))

        return await self._next(feed())

    async def close(self) -> None:
        """Kills the sandbox."""
        await self._stack.aclose()

    async def _set_up(self) -> None:
        call, folder = self._call, guest_programs.FOLDER
        functions = guest_programs.bash_functions(list(call.tools)) if call.is_bash else ""
        texts = {
            "broker.py": guest_programs.BROKER,
            "calling.py": guest_programs.CALLING,
            "runner.py": guest_programs.PYTHON_RUNNER,
            "call.py": guest_programs.BASH_CALL,
            "tools.sh": f"{functions}\n",
            "tools.json": json.dumps(dict(call.tools)),
            "main.sh" if call.is_bash else "main.py": call.code,
        }

        for name, text in texts.items():
            await self._bench.write(f"{folder}/{name}", text.encode("utf-8", "replace"))

    async def _next(self, before: Any = None) -> Calls | Ended:
        """Returns the broker's next message, within the time of one round."""
        try:
            async with asyncio.timeout(self._limits.wall_seconds):
                if before is not None:
                    await before

                said = await self._line()
        except TimeoutError:
            return self._failed(OUT_OF_TIME)

        self._rounds += 1

        if said is None:
            return self._failed(_BROKEN)

        calls = self._read_calls(said)

        if calls is not None and self._rounds <= _MAX_ROUNDS:
            return calls

        return await self._ended(said) if "exit" in said else self._failed(_BROKEN)

    async def _line(self) -> Mapping[str, Any] | None:
        while (line := self._lines.take()) is None:
            event = await anext(self._events, None)

            if not isinstance(event, ProcessOutput) or self._lines.held_bytes > _LINE_BYTES:
                return None

            if event.stream == "stdout":
                self._lines.add(event.data)

        return read_line(line)

    def _read_calls(self, said: Mapping[str, Any]) -> Calls | None:
        calls = said.get("calls")

        if not isinstance(calls, list) or not 0 < len(calls) <= _MAX_CALLS:
            return None

        names = set(self._call.tools.values())
        read: list[Mapping[str, Any]] = []

        for call in calls:
            if not isinstance(call, dict) or not all(
                isinstance(call.get(key), str) for key in ("id", "name")
            ):
                return None

            if call["name"] not in names:
                return None

            given = call.get("input")
            read.append({"id": call["id"], "name": call["name"], "input": given if given is not None else {}})

        self._asked = [str(call["id"]) for call in read]
        return Calls(tuple(read))

    async def _ended(self, said: Mapping[str, Any]) -> Ended:
        code = said["exit"] if type(said["exit"]) is int and -_CODES < said["exit"] < _CODES else 1
        stdout, stderr = str(said.get("stdout", "")), str(said.get("stderr", ""))
        self._bench.is_failed = code != 0
        outcome = Outcome() if code else await self._workspace.take_out(self._bench)
        words = {"stdout": stdout, "stderr": stderr, **outcome.words()}

        if code:
            return Ended({"status": "error", "error": f"Sandbox exited with code {code}", **words})

        return Ended({"status": "completed", **words})

    def _failed(self, error: str) -> Ended:
        self._bench.is_failed = True
        return Ended({"status": "error", "error": error, "stdout": "", "stderr": "", "files": []})
