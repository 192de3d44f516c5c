"""The channel to one checkpoint: a waiting process of the guest, from which contexts are forked on request.

A checkpoint is as hostile as the context that it was forked from: its messages are checked by the wire's tables, and a
violation ends the sandbox. The end of a checkpoint is detected by the end of its channel, and nothing is undone before
the new context exists.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from fumehood.cancellation import keep, when_done
from fumehood.engine.channel import Channel, open_pair
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.loop_share import LoopShare
from fumehood.runtimes.base import GuestContext
from fumehood.values.questions import SeenVariables
from fumehood_wire import messages, payloads
from fumehood_wire.frames import ProtocolError

# How soon a checkpoint normally reports that a context made from it was killed.
_EXIT_SECONDS = 0.2
_LOOK_SECONDS = 2.0


class RevivedContext(GuestContext):
    """A context made from a checkpoint, as reported by it.

    Args:
        kill: Kills its process.
    """

    def __init__(
        self, pid: int, link: ContextConnection, kill: Callable[[RevivedContext], Any], origin: GuestContext
    ) -> None:
        self.exited = asyncio.get_running_loop().create_future()
        self.pid = pid
        self._origin = origin
        self._link = link
        self._kill = kill

    @property
    def origin(self) -> GuestContext:
        """The context that the runtime started and that this one is a fork of."""
        return self._origin

    def kill(self) -> None:
        """Ends the process."""
        if not self.exited.done():
            keep(self._kill(self))

    def note_exit(self, status: int | None) -> None:
        """Records its end, as reaped by the checkpoint, or with an unknown status."""
        if not self.exited.done():
            self.exited.set_result(status)

    def is_on_its_own(self) -> None:
        """Takes the end of the channel as the end of the context, because the checkpoint is gone."""
        when_done(self._link.gone, self._presume_end)

    def _presume_end(self) -> None:
        self.kill()
        self.note_exit(None)


class CheckpointChannel:
    """The channel to one checkpoint.

    Args:
        on_broken: Called when it violates the protocol.
        kill: Kills the process with a pid inside.
        send_signal: Signals the process with a pid inside.
        origin: The context of which it is a checkpoint.
        share: The sandbox's share of the loop; by default one of its own.
    """

    def __init__(
        self,
        on_broken: Callable[[ProtocolError], None],
        kill: Callable[[int], Awaitable[None]],
        send_signal: Callable[[int, int], Awaitable[None]],
        origin: GuestContext,
        share: LoopShare | None = None,
    ) -> None:
        self.origin = origin
        loop = asyncio.get_running_loop()
        host_end, self._guest_end = open_pair()
        self._on_broken = on_broken
        self._kill = kill
        self._send_signal = send_signal
        self._share = share
        self._channel = Channel(host_end, self._receive, self._closed, share=share)
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[ContextConnection, asyncio.Future[RevivedContext | None]]] = {}
        self._contexts: dict[int, RevivedContext] = {}
        self.pid: int | None = None
        self.left_behind: tuple[str, ...] = ()
        # Done when the checkpoint exists, or when it will never exist; `pid` distinguishes the two.
        self.kept: asyncio.Future[None] = loop.create_future()

    @property
    def lives(self) -> bool:
        """Whether the checkpoint has not ended."""
        return not self._channel.closed

    def guest_fd(self) -> int:
        """The guest's end of the channel; call `close_guest_end` once it was sent."""
        return self._guest_end.fileno()

    def close_guest_end(self) -> None:
        """Closes the host's copy of the guest's end."""
        self._guest_end.close()

    async def revive(self, link: ContextConnection) -> RevivedContext | None:
        """Makes a context that uses the link and waits for `ContextConnection.proceed`; None if that is impossible."""
        if not self.lives:
            return None

        number = next(self._numbers)
        made: asyncio.Future[RevivedContext | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = (link, made)
        self._channel.send({"type": "revive", "number": number}, fds=link.guest_fds())
        return await made

    def send_migrator(self, fd: int, *, reseed: bool, is_last: bool) -> None:
        """Forks a process that migrates into a forked sandbox and reports over the socket `fd`.

        Args:
            fd: The guest's end of that socket.
            reseed: Whether its random state is reseeded.
            is_last: Whether the checkpoint itself migrates, and ends as a checkpoint.
        """
        self._channel.send({"type": "move", "reseed": reseed, "last": is_last}, fds=[fd])

    async def look(self, name: str = "", *, marks: bool = False) -> SeenVariables | None:
        """Asks for the variables of its state, which the checkpoint describes without running user code.

        Args:
            name: The variable to describe in detail; if empty, all are listed.
            marks: Whether each variable gets a mark, which differs after a change.

        Returns:
            The variables; None if the checkpoint did not answer in time.
        """
        near, far = open_pair()
        answer: asyncio.Future[SeenVariables | None] = asyncio.get_running_loop().create_future()

        def receive(header: dict[str, Any], payload: bytes) -> None:
            messages.check(messages.CHECKPOINT_LOOK_TO_HOST, header, payload)
            seen = SeenVariables(count=header["count"], found=tuple(payloads.parse_variables(payload)))

            if answer.done():
                raise ProtocolError("order", "variables that are described twice")

            answer.set_result(seen)

        def closed(error: ProtocolError | None) -> None:
            if not answer.done():
                answer.set_result(None)

            if error is not None:
                self._on_broken(error)

        channel = Channel(near, receive, closed, share=self._share)
        try:
            self._channel.send({"type": "look", "marks": marks}, name.encode(), fds=[far.fileno()])
            far.close()
            await asyncio.wait([answer], timeout=_LOOK_SECONDS)
            return answer.result() if answer.done() else None
        finally:
            far.close()
            channel.close()

    def close(self) -> None:
        """Ends the checkpoint; contexts that were made from it live on."""
        self._guest_end.close()
        self._channel.close()

    def _receive(self, header: dict[str, Any], payload: bytes) -> None:
        messages.check(messages.CHECKPOINT_TO_HOST, header, payload)

        if header["type"] == "kept":
            self._note_kept(header)
        elif header["type"] == "ended":
            code = header.get("exit_code")
            self._context(header["number"]).note_exit(-header["signal"] if code is None else code)
            del self._contexts[header["number"]]
        else:
            self._note_revived(header)

    def _note_kept(self, header: dict[str, Any]) -> None:
        if self.pid is not None:
            raise ProtocolError("order", "a checkpoint that is kept twice")

        self.pid = header["pid"]
        self.left_behind = tuple(header["left_behind"])

        if not self.kept.done():
            self.kept.set_result(None)

    def _note_revived(self, header: dict[str, Any]) -> None:
        number = header["number"]
        link, made = self._asked.pop(number, (None, None))

        if link is None or made is None:
            raise ProtocolError("order", f"{header['type']}: number {number} was not asked for")

        context = None

        if header["type"] == "revived":
            context = self._contexts[number] = RevivedContext(header["pid"], link, self._end, self.origin)

        if not made.done():
            made.set_result(context)
        elif context is not None:
            context.kill()  # its caller was cancelled

    async def _end(self, context: RevivedContext) -> None:
        """Kills a context.

        Sends SIGCONT to a checkpoint that does not report the end, since code may have stopped it.
        """
        await self._kill(context.pid)
        await asyncio.wait([context.exited], timeout=_EXIT_SECONDS)

        if not context.exited.done() and self.pid is not None and self.lives:
            await self._send_signal(self.pid, signal.SIGCONT)

    def _context(self, number: int) -> RevivedContext:
        context = self._contexts.get(number)

        if context is None:
            raise ProtocolError("order", f"ended: number {number} does not live")

        return context

    def _closed(self, error: ProtocolError | None) -> None:
        if not self.kept.done():
            self.kept.set_result(None)

        for _, made in self._asked.values():
            if not made.done():
                made.set_result(None)

        for context in self._contexts.values():
            context.is_on_its_own()

        if error is not None:
            self._on_broken(error)
