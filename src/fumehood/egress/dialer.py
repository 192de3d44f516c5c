"""Resolves names, once, and connects to exactly the addresses that were checked.

Runs in the host process, on the engine's loop; lookups wait in threads of their own, since the system's resolver cannot
be interrupted. It decides nothing: its caller has checked the name with the policy, and checks each address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fumehood.cancellation import wait_shared
from fumehood.values.domain_names import Address

LOOKUP_SECONDS = 10.0
DIAL_SECONDS = 6.0
_THREADS = 64
# The number of addresses of one name that are tried.
_MAX_TRIED = 4
_MAX_LOOKUPS_OF_ONE = 3


class UnreachableError(Exception):
    """The name does not exist, or no address of it answers.

    Attributes:
        reason: The reason, in words that the guest may read.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Resolver:
    """Resolves names for one sandbox, a few at a time, so that it cannot take all threads from the others."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(_MAX_LOOKUPS_OF_ONE)

    async def look_up(self, name: str) -> list[Address]:
        """Returns all addresses of a name, in the order in which to try them.

        Raises:
            UnreachableError: The name has no addresses, or the resolver does not answer in time.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await self._room.acquire()
                # A waiting thread cannot be cancelled: its place is free when it ends.
                asked = loop.run_in_executor(_threads(), _ask_the_system, name)
                asked.add_done_callback(self._done)
                found = await wait_shared(asked)
        except TimeoutError:
            raise UnreachableError(f"no name server gave an address of {name} in time") from None
        except OSError:
            raise UnreachableError(f"{name} has no address") from None

        if not found:
            raise UnreachableError(f"{name} has no address")

        return found

    def _done(self, asked: asyncio.Future[list[Address]]) -> None:
        self._room.release()

        if not asked.cancelled():
            # Retrieved once: the waiting task may have been cancelled.
            asked.exception()


async def dial(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address]:
    """Connects to the first of these addresses that answers.

    Raises:
        UnreachableError: No address answers.
    """
    reason = "no address"

    for address in addresses[:_MAX_TRIED]:
        try:
            return await _connect(address, port), address
        except TimeoutError:
            reason = "no answer in time"
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else type(error).__name__

    raise UnreachableError(f"no connection to {addresses[0]} port {port}: {reason}")


async def _connect(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            # A numeric address, for which asyncio makes no lookup.
            await asyncio.get_running_loop().sock_connect(sock, (str(address), port))

        if ipaddress.ip_address(sock.getpeername()[0]) != address:
            raise OSError("connected elsewhere")

        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise

    return sock


def _ask_the_system(name: str) -> list[Address]:
    # The dot at the end keeps the resolver from trying the name below this machine's search domains.
    asked = f"{name}." if "." in name else name
    found = socket.getaddrinfo(asked, None, type=socket.SOCK_STREAM)
    addresses: list[Address] = []

    for *_, place in found:
        # A zone makes it another address than the one that is checked; only link-local ones have one, and those are
        # refused.
        address = ipaddress.ip_address(str(place[0]).partition("%")[0])

        if address not in addresses:
            addresses.append(address)

    return addresses


_executor: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _executor

    if _executor is None:
        _executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="fumehood-names")

    return _executor


def _forget_in_child() -> None:
    """Returns the thread pool of this process; a forked child makes its own, since threads do not survive a fork."""
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_forget_in_child)
