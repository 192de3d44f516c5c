"""A backend that plays back what a test tells it, so that the faces can be tested without a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from fumehood import (
    Backend,
    ContextInfo,
    Event,
    Execution,
    ExecutionFinished,
    ExecutionStarted,
    FileChange,
    FileInfo,
    Isolation,
    Metrics,
    ProcessInfo,
    SandboxClosedError,
    SandboxInfo,
    StdoutEvent,
)
from fumehood.values.audit import AuditLog
from fumehood.values.looking import ListedSandbox, SandboxList
from fumehood.values.requests import ProcessExited, ProcessOutput
from fumehood.values.sandbox import Capacity, PortAddress
from fumehood.values.watching import WatchEvents


class ScriptedBackend(Backend):
    """Records what is asked, and answers from lists that a test fills."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.alive: dict[str, SandboxInfo] = {}
        self.events: list[Event] = [
            ExecutionStarted(execution_id="e1", context_id="default"),
            StdoutEvent(text="hello\n", at_seconds=0.1),
            ExecutionFinished(execution=Execution(id="e1", context_id="default")),
        ]
        self.output: list[ProcessOutput | ProcessExited] = [ProcessExited(exit_code=0)]
        self.files: dict[str, bytes] = {}
        self.closed_early: list[str] = []
        self.gate: Any = None
        self.seen: Any = None

    async def create(self, spec):
        self.asked.append(spec)
        info = SandboxInfo(
            id=f"s{len(self.alive)}",
            template=spec.template,
            state="running",
            started_at=datetime.now(UTC),
            ends_at=None,
            limits=spec.limits,
            isolation=Isolation(level="scripted"),
            metadata=spec.metadata,
        )
        self.alive[info.id] = info
        return info

    async def info(self, sandbox_id):
        if sandbox_id not in self.alive:
            raise SandboxClosedError(sandbox_id=sandbox_id, reason="killed")

        return self.alive[sandbox_id]

    async def list(self, owner=None):
        return tuple(info for info in self.alive.values() if owner in (None, info.owner))

    async def page(self, request):
        return SandboxList(items=tuple(ListedSandbox(info=info) for info in self.alive.values()))

    async def watch_events(self, sandbox_id, after=None):
        for event in self.seen:
            yield WatchEvents([event])

    async def watch_sandboxes(self, owner=None, after=None):
        for event in self.seen:
            yield WatchEvents([event])

    async def look(self, sandbox_id, request):
        self.asked.append(request)
        return self.seen

    async def capacity(self):
        return Capacity(
            sandboxes=len(self.alive),
            max_sandboxes=10,
            memory_available_bytes=1,
            memory_total_bytes=1,
            cpu_cores=1,
            load=0,
            host_id="aaaaaa",
            incarnation="bbbbbb",
            version="0",
        )

    async def pause(self, sandbox_id):
        self.asked.append("pause")
        return True

    async def resume(self, sandbox_id):
        self.asked.append("resume")
        return True

    async def kill(self, sandbox_id, *, wait=True):
        return self.alive.pop(sandbox_id, None) is not None

    async def set_labels(self, sandbox_id, changes):
        self.asked.append(changes)

    async def set_timeout(self, sandbox_id, timeout_seconds):
        self.asked.append(timeout_seconds)

    async def metrics(self, sandbox_id):
        return Metrics(
            cpu_seconds=0,
            memory_bytes=0,
            peak_memory_bytes=0,
            disk_used_bytes=0,
            disk_total_bytes=0,
            inodes_used=0,
            processes=0,
            uptime_seconds=0,
        )

    async def execute(self, sandbox_id, request) -> AsyncGenerator[Event, None]:
        self.asked.append(request)
        done = False

        try:
            for event in self.events:
                yield event

                if self.gate is not None and not isinstance(event, ExecutionStarted):
                    await self.gate()

            done = True
        finally:
            if not done and not isinstance(event, ExecutionFinished):
                self.closed_early.append("execute")

    async def answer_input(self, sandbox_id, answer):
        self.asked.append(answer)

    async def answer_tool(self, sandbox_id, answer):
        self.asked.append(answer)

    async def interrupt(self, sandbox_id, context_id):
        self.asked.append(context_id)
        return True

    async def context_call(self, sandbox_id, call):
        self.asked.append(call)
        return (ContextInfo(id="c1", language="python", cwd="/home/user"),)

    async def read(self, sandbox_id, request) -> AsyncGenerator[bytes, None]:
        content = self.files[request.path]

        for start in range(0, len(content), 10):
            yield content[start : start + 10]

    async def write(self, sandbox_id, path, chunks: AsyncIterator[bytes], *, metadata=None):
        pieces = [chunk async for chunk in chunks]
        self.asked.append([len(piece) for piece in pieces])
        self.files[path] = b"".join(pieces)
        return file_info(path, len(self.files[path]))

    async def file_call(self, sandbox_id, call):
        self.asked.append(call)
        return (file_info("/home/user/x", 1),)

    async def watch(self, sandbox_id, request):
        return self._changes()

    async def settle_watch(self, sandbox_id, name):
        return 1

    async def _changes(self) -> AsyncGenerator[FileChange, None]:
        yield FileChange(kind="create", name="a", path="/a")

    async def start_process(self, sandbox_id, spec):
        self.asked.append(spec)
        return ProcessInfo(pid=5, argv=spec.argv, cwd="/home/user")

    async def process_output(self, sandbox_id, pid, after_bytes=None):
        for event in self.output:
            yield event

    async def process_call(self, sandbox_id, call):
        self.asked.append(call)
        return ()

    async def record(self, sandbox_id, context_id):
        raise NotImplementedError

    async def set_network(self, sandbox_id, network):
        self.asked.append(network)

    async def egress_log(self, sandbox_id):
        return ()

    async def audit_log(self, sandbox_id):
        return AuditLog(sandbox_id=sandbox_id)

    async def security_events(self, sandbox_id):
        for event in ():
            yield event

    async def answer_commit(self, sandbox_id, answer):
        self.asked.append(answer)

    async def checkpoint_call(self, sandbox_id, call):
        self.asked.append(call)
        return ()

    async def fork(self, sandbox_id, request):
        raise NotImplementedError

    async def adopt(self, sandbox_id, child_id):
        raise NotImplementedError

    def save(self, sandbox_id):
        raise NotImplementedError

    async def load(self, request, archive):
        raise NotImplementedError

    async def judge(self, sandbox_id, request):
        self.asked.append(request)
        return ()

    async def ask(self, sandbox_id, question):
        raise NotImplementedError

    def send_comm(self, sandbox_id, message, context_id=None):
        raise NotImplementedError

    async def open_port(self, sandbox_id, port):
        raise NotImplementedError

    async def listen_port(self, sandbox_id, port):
        raise NotImplementedError

    async def accept_port(self, sandbox_id, port):
        raise NotImplementedError

    async def port_address(self, sandbox_id, port):
        return PortAddress(url=f"http://{sandbox_id}.test:{port}/", host=None)

    async def aclose(self):
        self.alive.clear()


def file_info(path: str, size_bytes: int, **changes: Any) -> FileInfo:
    values = {
        "name": path.rpartition("/")[2],
        "path": path,
        "type": "file",
        "size_bytes": size_bytes,
        "mode": 0o644,
        "permissions": "-rw-r--r--",
        "owner": "user",
        "group": "user",
        "modified_at": None,
    }
    return FileInfo(**{**values, **changes})


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend()


@pytest.fixture
def describe():
    return file_info
