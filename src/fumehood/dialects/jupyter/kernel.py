"""One kernel: a context of a sandbox as Jupyter's clients see it, with its queue, its state and its clients.

Requests of the shell channel are answered one after another, each between `busy` and `idle`; those of the control
channel at once. What is asked of the sandbox is asked as the client that sent the request. The code itself is run by
the sandbox; nothing of it is looked at here.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from fumehood.dialects.jupyter import control, shell
from fumehood.dialects.jupyter.audience import Audience, Client
from fumehood.dialects.jupyter.comms import OpenComms
from fumehood.dialects.jupyter.history import History
from fumehood.dialects.jupyter.messages import JupyterMessage, compose, timestamp
from fumehood.dialects.jupyter.outputs import Output
from fumehood.dialects.jupyter.requests import KernelRequest, RequestQueue
from fumehood.dialects.jupyter.spec import KernelSpec
from fumehood.errors import FumehoodError
from fumehood.port.backend import Backend
from fumehood.values.events import InputRequestEvent
from fumehood.values.requests import DEFAULT_CONTEXT_ID, InputAnswer, RestartContext

KernelState = Literal["starting", "idle", "busy", "dead"]
_MAX_URGENT = 64
_LOG = logging.getLogger("fumehood.server")


class Kernel:
    """One kernel.

    Args:
        kernel_id: Its name in every call.
        sandbox_id: The sandbox that it is.
        spec: What it was started as.
        context_id: The context in which its code runs.
    """

    def __init__(
        self, kernel_id: str, sandbox_id: str, spec: KernelSpec, context_id: str = DEFAULT_CONTEXT_ID
    ) -> None:
        self.id = kernel_id
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.context_id = context_id
        self.state: KernelState = "idle"
        self.last_activity = datetime.now(UTC)
        self.execution_count = 0
        self.comms = OpenComms()
        self.history = History()
        self.audience = Audience()
        self._session = uuid.uuid4().hex
        self._queue = RequestQueue()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._question: tuple[str, str] | None = None
        self._restarting = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawn(self._work())

    def model(self) -> dict[str, Any]:
        """Returns what the REST API says of it."""
        return {
            "id": self.id,
            "name": self.spec.name,
            "last_activity": timestamp(self.last_activity),
            "execution_state": self.state,
            "connections": len(self.audience),
        }

    # -- clients

    def accept(self, message: JupyterMessage, size_bytes: int, client: Client) -> None:
        """Takes a message of a client; one for which there is no room is answered as aborted."""
        request = KernelRequest(message, size_bytes, client.session, client.backend)
        self.last_activity = datetime.now(UTC)
        is_urgent = message.channel == "control" or message.msg_type in control.URGENT

        if is_urgent or message.channel == "stdin":
            if len(self._tasks) < _MAX_URGENT:
                self._spawn(self._answer_at_once(request) if is_urgent else self._answer_input(request))
            else:
                self.abort(request)
        elif not self._queue.put(request):
            self.abort(request)

    def publish(self, output: Output, parent: KernelRequest | None = None) -> None:
        """Tells everybody something, on iopub."""
        message = self._compose("iopub", output.msg_type, output.content, parent)
        self.audience.broadcast(replace(message, metadata=output.metadata, buffers=output.buffers))

    def reply(self, request: KernelRequest, content: Mapping[str, Any]) -> None:
        """Answers a request, on the channel on which it came; what is no request has no answer."""
        if not request.msg_type.endswith("_request"):
            return

        msg_type = request.msg_type.removesuffix("_request") + "_reply"
        message = self._compose(request.message.channel, msg_type, content, request)
        self.audience.reply(request.session, message)

    def publish_state(self, state: str, parent: KernelRequest | None = None) -> None:
        """Tells everybody what the kernel does now."""
        self.publish(Output("status", {"execution_state": state}), parent)

    def ask(self, request: KernelRequest, event: InputRequestEvent) -> None:
        """Asks the client of a request for a line of input."""
        self._question = (event.execution_id, event.request_id)
        content = {"prompt": event.prompt, "password": event.is_password}
        self.audience.reply(request.session, self._compose("stdin", "input_request", content, request))

    # -- what is done with the whole kernel

    async def interrupt(self, backend: Backend) -> None:
        """Interrupts what runs; what waits is aborted as after any error."""
        await backend.interrupt(self.sandbox_id, self.context_id)

    async def restart(self, backend: Backend) -> None:
        """Begins anew with a fresh context in the same sandbox; what ran is killed, what waited is aborted."""
        # Nothing that comes meanwhile is begun.
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
        """The sandbox has ended: tells everybody, and closes their connections."""
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
        """The context had to be replaced: front ends are told as of a kernel that died and was started again."""
        self.forget_state()

        if not self._restarting.locked():
            for state in ("restarting", "starting", "idle"):
                self.publish_state(state)

    def forget_state(self) -> None:
        """What was known of the context is true no longer."""
        self.execution_count = 0
        self.comms.clear()
        self.history.begin_session()

    # -- the queue

    def abort_queued(self, *, everything: bool = False) -> None:
        """Aborts the executions that wait, or all that waits."""
        for request in self._queue.take_all():
            if everything or request.msg_type == "execute_request":
                self.abort(request)
            else:
                self._queue.put(request)

    def abort(self, request: KernelRequest) -> None:
        """Answers a request that is not carried out."""
        self.publish_state("busy", request)
        self.reply(request, {"status": "aborted", "execution_count": self.execution_count})
        self.publish_state("idle", request)

    async def _work(self) -> None:
        while self.state != "dead":
            await self._queue.wait()

            # A restart that is under way comes first; what waited may have been aborted since.
            async with self._restarting:
                request = self._queue.take()

                if request is not None:
                    self._at_rest.clear()

            if request is not None:
                await self._answer_in_turn(request)

    async def _answer_in_turn(self, request: KernelRequest) -> None:
        self.state = "busy"
        self.publish_state("busy", request)
        try:
            outcome = await shell.answer(self, request)
        except FumehoodError as error:
            outcome = shell.refuse(self, request, error)
        except Exception as fault:  # noqa: BLE001 - a fault of ours ends one request, not the kernel
            _LOG.exception("a request of kernel %s failed", self.id)
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
            content = await control.answer(self, request)
        except FumehoodError as error:
            content = shell.refusal(error)

        self.reply(request, content)
        self.publish_state("idle", request)

        if control.ends_kernel(request):
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
            _LOG.info("the input for kernel %s was not taken: %s", self.id, error.code)

    def _compose(
        self, channel: str, msg_type: str, content: Mapping[str, Any], parent: KernelRequest | None
    ) -> JupyterMessage:
        message = compose(channel, msg_type, content, session=self._session)
        return message if parent is None else replace(message, parent_header=parent.message.header)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
