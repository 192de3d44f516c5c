"""One kernel: a context of a sandbox as Jupyter's clients see it, with its queue, its state and its clients.

Requests of the shell channel are answered one after another, each between `busy` and `idle`; those of the control
channel at once. Each request to the sandbox is made as the client that sent it. The sandbox runs the code; nothing of
it is parsed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from fumehood.dialects.jupyter import shell
from fumehood.dialects.jupyter.audience import Audience, Client
from fumehood.dialects.jupyter.kernel_state import KernelBase, KernelRequest, RequestQueue
from fumehood.dialects.jupyter.messages import JupyterMessage
from fumehood.dialects.jupyter.outputs import Output
from fumehood.dialects.jupyter.spec import KernelSpec
from fumehood.errors import FumehoodError, InvalidArgumentError
from fumehood.log import events
from fumehood.port.backend import Backend
from fumehood.values.languages import PYTHON
from fumehood.values.requests import (
    DEFAULT_CONTEXT_ID,
    CreateContext,
    InputAnswer,
    ListContexts,
    RestartContext,
)

_MAX_URGENT = 64
_URGENT = frozenset({"interrupt_request", "shutdown_request", "debug_request"})
_NO_DEBUGGER = "there is no debugger in this kernel"


class Kernel(KernelBase):
    """One kernel: answers the requests of its clients, one at a time."""

    def __init__(
        self,
        kernel_id: str,
        sandbox_id: str,
        spec: KernelSpec,
        context_id: str = DEFAULT_CONTEXT_ID,
        audience: Audience | None = None,
    ) -> None:
        super().__init__(kernel_id, sandbox_id, spec, context_id, audience)
        self._queue = RequestQueue()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._work())

    # -- clients

    def accept(self, message: JupyterMessage, size_bytes: int, client: Client) -> None:
        """Takes a message of a client; aborts it if the queue is full."""
        request = KernelRequest(message, size_bytes, client.session, client.backend)
        self.last_activity = datetime.now(UTC)
        is_urgent = message.channel == "control" or message.msg_type in _URGENT

        if is_urgent or message.channel == "stdin":
            if len(self._tasks) < _MAX_URGENT:
                self._spawn(self._answer_at_once(request) if is_urgent else self._answer_input(request))
            else:
                self.abort(request)
        elif not self._queue.put(request):
            self.abort(request)

    # -- the whole kernel

    async def interrupt(self, backend: Backend) -> None:
        """Interrupts the running request; waiting ones are aborted as after any error."""
        await backend.interrupt(self.sandbox_id, self.context_id)

    async def restart(self, backend: Backend) -> None:
        """Restarts with a fresh context in the same sandbox; running code is killed, waiting requests are aborted."""
        # No request is begun meanwhile.
        async with self._restarting:
            self.abort_queued(everything=True)
            await backend.context_call(self.sandbox_id, RestartContext(context_id=self.context_id))
            await self._at_rest.wait()
            self.forget_state()
            self.publish_state("starting")
            self.publish_state("idle")

    async def end(self, backend: Backend) -> None:
        """Ends the sandbox, and with it the kernel."""
        await backend.kill(self.sandbox_id, wait=False)
        self.die()

    def die(self) -> None:
        """Reports the end of the sandbox to all clients, and closes their connections."""
        if self.state == "dead":
            return

        self.state = "dead"
        self.publish_state("dead")
        self.audience.close()
        current = asyncio.current_task()

        for task in self._tasks:
            if task is not current:
                task.cancel()

    def state_lost(self) -> None:
        """Reports a replaced context to front ends, as a kernel that died and was restarted."""
        self.forget_state()

        if not self._restarting.locked():
            for state in ("restarting", "starting", "idle"):
                self.publish_state(state)

    # -- the queue

    def abort_queued(self, *, everything: bool = False) -> None:
        """Aborts the waiting executions, or all waiting requests."""
        for request in self._queue.take_all():
            if everything or request.msg_type == "execute_request":
                self.abort(request)
            else:
                self._queue.put(request)

    def abort(self, request: KernelRequest) -> None:
        """Replies to a request that is not carried out."""
        self.publish_state("busy", request)
        self.reply(request, {"status": "aborted", "execution_count": self.execution_count})
        self.publish_state("idle", request)

    async def _work(self) -> None:
        while self.state != "dead":
            await self._queue.wait()

            # A restart under way comes first; the request may have been aborted since.
            async with self._restarting:
                request = self._queue.take()

                if request is not None:
                    self._at_rest.clear()

            if request is not None:
                await self._answer_in_turn(request)
                # Many requests are answered without a wait: others have their turn between two of them.
                await asyncio.sleep(0)

    async def _answer_in_turn(self, request: KernelRequest) -> None:
        self.state = "busy"
        self.publish_state("busy", request)
        try:
            outcome = await shell.answer(self, request)
        except FumehoodError as error:
            outcome = shell.refuse(self, request, error)
        except Exception as fault:  # noqa: BLE001 - a fault of ours ends one request, not the kernel
            events.KERNEL_REQUEST_FAILED.log(exc_info=fault, kernel_id=self.id)
            outcome = shell.refuse(self, request, fault)
        finally:
            self._question = None
            self._at_rest.set()

        self.last_activity = datetime.now(UTC)
        self.state = "idle"
        self.publish_state("idle", request)

        if outcome.state_lost:
            self.state_lost()

        if outcome.abort_queued:
            self.abort_queued()

        if outcome.is_dead:
            self.die()

    async def _answer_at_once(self, request: KernelRequest) -> None:
        self.publish_state("busy", request)
        try:
            content = await _control(self, request)
        except FumehoodError as error:
            content = shell.refusal(error)

        self.reply(request, content)
        self.publish_state("idle", request)

        if _ends_kernel(request):
            await self.end(request.backend)

    async def _answer_input(self, request: KernelRequest) -> None:
        if self._question is None or request.msg_type != "input_reply":
            return

        question, self._question = self._question, None
        value = request.content.get("value")
        text = value if isinstance(value, str) else None
        try:
            await request.backend.answer_input(
                self.sandbox_id, InputAnswer(execution_id=question[0], request_id=question[1], text=text)
            )
        except FumehoodError as error:
            events.KERNEL_INPUT_REFUSED.log(kernel_id=self.id, reason=error.code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def context_for(backend: Backend, sandbox_id: str, language: str) -> str:
    """Returns the context of a kernel's code: the default one, or one of the language."""
    if language == PYTHON.name:
        return DEFAULT_CONTEXT_ID

    for context in await backend.context_call(sandbox_id, ListContexts()):
        if context.language == language:
            return context.id

    (made,) = await backend.context_call(sandbox_id, CreateContext(language=language))
    return made.id


# -- the control channel, whose replies do not wait for running code


async def _control(kernel: Kernel, request: KernelRequest) -> dict[str, Any]:
    """Returns the content of the reply.

    Raises:
        InvalidArgumentError: The channel has no such request.
    """
    match request.msg_type:
        case "kernel_info_request":
            return await shell.kernel_info(kernel, request)
        case "interrupt_request":
            await kernel.interrupt(request.backend)
            return {"status": "ok"}
        case "shutdown_request":
            return await _shut_down(kernel, request)
        case "debug_request":
            return _refuse_to_debug(request)
        case other:
            raise InvalidArgumentError(
                field="msg_type on control",
                value=other,
                allowed=f"kernel_info_request, {', '.join(sorted(_URGENT))}",
            )


def _ends_kernel(request: KernelRequest) -> bool:
    """Returns whether the kernel ends after the reply to that request."""
    return request.msg_type == "shutdown_request" and request.content.get("restart") is not True


async def _shut_down(kernel: Kernel, request: KernelRequest) -> dict[str, Any]:
    restart = request.content.get("restart") is True

    if restart:
        await kernel.restart(request.backend)

    content = {"status": "ok", "restart": restart}
    # All clients get it, not only the one that asked.
    kernel.publish(Output("shutdown_reply", content), request)
    return content


def _refuse_to_debug(request: KernelRequest) -> dict[str, Any]:
    """Returns a refusal in the Debug Adapter Protocol, which the client expects."""
    return {
        "type": "response",
        "request_seq": request.content.get("seq"),
        "seq": 0,
        "command": request.content.get("command"),
        "success": False,
        "message": _NO_DEBUGGER,
        "body": {},
    }
