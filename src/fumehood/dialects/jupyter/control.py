"""What is asked on the control channel, and of any channel what cannot wait: interrupt, shut down, debug.

Answers do not wait for the code that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fumehood.dialects.jupyter.outputs import Output
from fumehood.dialects.jupyter.shell import kernel_info
from fumehood.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fumehood.dialects.jupyter.kernel import Kernel
    from fumehood.dialects.jupyter.requests import KernelRequest

URGENT = frozenset({"interrupt_request", "shutdown_request", "debug_request"})
_NO_DEBUGGER = "there is no debugger in this kernel"


async def answer(kernel: Kernel, request: KernelRequest) -> dict[str, Any]:
    """Returns the content of the reply.

    Raises:
        InvalidArgumentError: Nothing of this name is answered here.
    """
    match request.msg_type:
        case "kernel_info_request":
            return await kernel_info(kernel, request)
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
                allowed=f"kernel_info_request, {', '.join(sorted(URGENT))}",
            )


def ends_kernel(request: KernelRequest) -> bool:
    """Whether the kernel is to be ended when that request has been answered."""
    return request.msg_type == "shutdown_request" and request.content.get("restart") is not True


async def _shut_down(kernel: Kernel, request: KernelRequest) -> dict[str, Any]:
    restart = request.content.get("restart") is True

    if restart:
        await kernel.restart(request.backend)

    content = {"status": "ok", "restart": restart}
    # Everybody is told, not only who asked.
    kernel.publish(Output("shutdown_reply", content), request)
    return content


def _refuse_to_debug(request: KernelRequest) -> dict[str, Any]:
    """An answer in the words of the Debug Adapter Protocol, which is what the asker reads."""
    return {
        "type": "response",
        "request_seq": request.content.get("seq"),
        "seq": 0,
        "command": request.content.get("command"),
        "success": False,
        "message": _NO_DEBUGGER,
        "body": {},
    }
