"""Network: a namespace of its own in which only the loopback device is up.

Runs in the init of a sandbox, in its fresh network namespace, before capabilities are dropped. It must
never add a route or another device: what leaves the sandbox leaves through the egress proxy's socket.
"""

from __future__ import annotations

import fcntl
import socket
import struct

from fumehood_jail.errors import JailError

# include/uapi/linux/sockios.h, if.h
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("=16sH22x")


def loopback_up() -> None:
    """Brings up the loopback device, which gives 127.0.0.1 and ::1.

    Before: CAP_NET_ADMIN over the network namespace. After: processes of the sandbox reach one another
    by TCP.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            request = fcntl.ioctl(control, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
            _, flags = _IFREQ.unpack(request)
            fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))
    except OSError as error:
        raise JailError("network", error.errno or 0, "cannot bring up the loopback device") from error
