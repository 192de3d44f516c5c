"""Pairs of sockets whose one end goes to a guest.

Runs in the host process. The host reads bytes from its end and nothing else. A descriptor that a guest attaches to
them is still carried over by the kernel and closed there, in the host's time, which a hostile one can make long;
so the kernel is told, where it can be (Linux 6.16), to refuse it to the sender.
"""

from __future__ import annotations

import socket

# include/uapi/asm-generic/socket.h
_SO_PASSRIGHTS = 83


def open_pair() -> tuple[socket.socket, socket.socket]:
    """Makes two connected sockets: the host's end, which never blocks and takes no descriptors, and the guest's."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    refuse_descriptors(near)
    return near, far


def refuse_descriptors(sock: socket.socket) -> None:
    """Lets no descriptor through to this end, if the kernel can do that."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
    except OSError:
        return  # older than Linux 6.16: the policy of the sandbox keeps away those whose closing takes time
