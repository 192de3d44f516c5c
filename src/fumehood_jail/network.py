"""Network: a namespace in which only the loopback device is up, with small bounds on its sockets.

Runs in the init of a sandbox, in its fresh network namespace, before capabilities are dropped. It must never add a
route or another device: traffic leaves the sandbox only through the egress proxy's socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

from fumehood_jail.errors import JailError

# include/uapi/linux/sockios.h, if.h
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_IFREQ = struct.Struct("=16sH22x")

_SYSCTLS = "/proc/sys/net"
# The kernel charges a connection's memory to the control group of the process that accepts it, and until then to none.
# So the backlog is short and each entry small: a receive buffer begins with 32 KiB, and grows as it is read.
MOST_WAITING = 128
FIRST_BUFFER_BYTES = 32_768
_BOUNDS = {
    "core/somaxconn": str(MOST_WAITING),
    # Memory for socket options, which is charged to no control group either.
    "core/optmem_max": "8192",
    "ipv4/tcp_max_syn_backlog": str(MOST_WAITING),
    "ipv4/tcp_max_tw_buckets": "1024",
    "ipv4/tcp_rmem": f"4096 {FIRST_BUFFER_BYTES} 4194304",
    "ipv4/tcp_wmem": "4096 16384 1048576",
}


def bound_sockets() -> None:
    """Bounds what the kernel holds for the sockets of this network namespace.

    Before: CAP_NET_ADMIN over the network namespace, with a /proc whose sysctls can be written. After: no process of
    the sandbox can raise the bounds.

    Raises:
        JailError: A bound cannot be written.
    """
    for name, value in _BOUNDS.items():
        try:
            fd = os.open(f"{_SYSCTLS}/{name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, value.encode("ascii"))
            finally:
                os.close(fd)
        except OSError as error:
            raise JailError("network", error.errno or 0, f"cannot bound net/{name}") from error


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
