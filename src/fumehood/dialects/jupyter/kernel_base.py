"""The part of a kernel that its clients see: its names, its state, and the messages to them.

No request goes to the sandbox here: `kernel` and `shell` make those, and decide their order.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from fumehood.dialects.jupyter.audience import Audience
from fumehood.dialects.jupyter.comms import OpenComms
from fumehood.dialects.jupyter.history import History
from fumehood.dialects.jupyter.messages import JupyterMessage, compose, timestamp
from fumehood.dialects.jupyter.outputs import Output
from fumehood.dialects.jupyter.requests import KernelRequest
from fumehood.dialects.jupyter.spec import KernelSpec
from fumehood.values.events import InputRequestEvent
from fumehood.values.requests import DEFAULT_CONTEXT_ID

KernelState = Literal["starting", "idle", "busy", "dead"]


class KernelBase:
    """One kernel, without its requests.

    Args:
        kernel_id: Its name in every call.
        sandbox_id: Its sandbox.
        spec: Its kernel spec.
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
        # The last `input_request`: its execution, and its own id.
        self._question: tuple[str, str] | None = None
        self._session = uuid.uuid4().hex

    def model(self) -> dict[str, Any]:
        """Returns its model in the REST API."""
        return {
            "id": self.id,
            "name": self.spec.name,
            "last_activity": timestamp(self.last_activity),
            "execution_state": self.state,
            "connections": len(self.audience),
        }

    def publish(self, output: Output, parent: KernelRequest | None = None) -> None:
        """Broadcasts a message to all clients, on iopub."""
        message = self._compose("iopub", output.msg_type, output.content, parent)
        self.audience.broadcast(replace(message, metadata=output.metadata, buffers=output.buffers))

    def reply(self, request: KernelRequest, content: Mapping[str, Any]) -> None:
        """Replies to a request, on its channel; a message that is no request has no reply."""
        if not request.msg_type.endswith("_request"):
            return

        msg_type = request.msg_type.removesuffix("_request") + "_reply"
        message = self._compose(request.message.channel, msg_type, content, request)
        self.audience.reply(request.session, message)

    def publish_state(self, state: str, parent: KernelRequest | None = None) -> None:
        """Broadcasts the state of the kernel to all clients."""
        self.publish(Output("status", {"execution_state": state}), parent)

    def ask(self, request: KernelRequest, event: InputRequestEvent) -> None:
        """Asks the client of a request for a line of input."""
        self._question = (event.execution_id, event.request_id)
        content = {"prompt": event.prompt, "password": event.is_password}
        self.audience.reply(request.session, self._compose("stdin", "input_request", content, request))

    def forget_state(self) -> None:
        """Forgets the state of the context, which was replaced."""
        self.execution_count = 0
        self.comms.clear()
        self.history.begin_session()

    def _compose(
        self, channel: str, msg_type: str, content: Mapping[str, Any], parent: KernelRequest | None
    ) -> JupyterMessage:
        message = compose(channel, msg_type, content, session=self._session)
        return message if parent is None else replace(message, parent_header=parent.message.header)
