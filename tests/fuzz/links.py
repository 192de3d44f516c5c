"""What a hostile guest can say to the host, into the very objects that listen: contexts, init, checkpoints, packets.

Each takes the bytes of one mutant, as they would come through the socket, and says what became of them. The channel's
own reader is called directly, so that whatever it raises is seen.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable
from typing import Any

from tests.unit.wire.conftest import EXECUTION, VALUES

from fumehood.bounds import MIB
from fumehood.engine.channel import open_pair
from fumehood.engine.contexts.checkpoint_channel import CheckpointChannel
from fumehood.engine.contexts.connection import ContextConnection
from fumehood.engine.contexts.contexts import default_context
from fumehood.engine.init_client import InitClient, InitError, InitGoneError
from fumehood.runtimes.base import ContextLaunch, GuestContext
from fumehood.runtimes.namespaces.guest import LinuxGuest
from fumehood.runtimes.namespaces.spawner import LinuxSpawner
from fumehood.values.guest_paths import HOME_PATH
from fumehood.values.limits import Limits
from fumehood.values.questions import CheckComplete, CompleteCode, InspectCode, Question
from fumehood_jail import users
from fumehood_wire.frames import ProtocolError, encode, parse_json

_NAME = EXECUTION.rpartition("-")[0]
# A turn of the loop is short; here all that was said is read, also on a busy machine.
_SECONDS = 60.0
_READY = encode({"type": "status", "state": "ready", "pid": 2})
_BOUNDS = {"stdout_bytes": MIB, "stderr_bytes": MIB, "result_bytes": MIB, "result_count": 100}
_QUESTIONS: dict[str, Question] = {
    "complete_reply": CompleteCode(code="pri", cursor=3),
    "inspect_reply": InspectCode(code="print", cursor=3),
    "is_complete_reply": CheckComplete(code="if x:"),
}


def for_context(header: dict[str, Any]) -> dict[str, Any]:
    """Gives a recorded header the name of the execution that the link has begun."""
    return {**header, "id": EXECUTION} if "id" in header else header


async def feed_context(data: bytes, kind: str) -> str:
    """A context answers an execution or a question."""
    broken: list[ProtocolError] = []
    link = ContextConnection(_NAME, broken.append, MIB)
    guest = link._guest_end.dup()
    try:
        _say(guest, _READY)
        link._channel.receive(_SECONDS)

        if kind in _QUESTIONS:
            link.ask(_QUESTIONS[kind], {})
        elif kind == "checkpoint_reply":
            link.fork(guest.fileno())
        else:
            link.execute(
                {"type": "execute_request", **_BOUNDS, "allow_stdin": True, "silent": False}, b"1", _heard
            )

        for piece in _pieces(data):
            _say(guest, piece)
            link._channel.receive(_SECONDS)

        link.early_output()
    finally:
        guest.close()
        link.close()

    return broken[0].code if broken else "taken"


async def feed_init(data: bytes, _kind: str) -> str:
    """Init answers, or tells something."""
    near, far = open_pair()
    ends: list[ProtocolError | None] = []
    client = InitClient(near, lambda header, payload: None, ends.append)
    asking = [asyncio.ensure_future(client.ask(verb)) for verb in VALUES]
    await asyncio.sleep(0)
    try:
        for piece in _pieces(data):
            _say(far, piece)
            client.catch_up()
    finally:
        client.close()
        far.close()

    for answer in await asyncio.gather(*asking, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, InitError | InitGoneError):
            raise answer

    return ends[0].code if ends and ends[0] is not None else "taken"


async def feed_checkpoint(data: bytes, _kind: str) -> str:
    """A checkpoint tells of itself and of what it has made."""
    broken: list[ProtocolError] = []
    line = CheckpointChannel(broken.append, _kill, _send_signal, _Origin())
    guest = line._guest_end.dup()
    link = ContextConnection(_NAME, broken.append, MIB)
    line.close_guest_end()
    asked = asyncio.ensure_future(line.revive(link))
    await asyncio.sleep(0)
    try:
        for piece in _pieces(data):
            _say(guest, piece)
            line._channel.receive(_SECONDS)
    finally:
        guest.close()
        line.close()
        link.close()

    await asked
    return broken[0].code if broken else "taken"


class _Origin(GuestContext):
    """The context that a checkpoint was forked from."""

    def __init__(self) -> None:
        self.exited = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """Nothing is there to end."""


class Packets:
    """The jail init and the zygote of a template: a spawner that has asked them for a sandbox and two contexts."""

    def __init__(self) -> None:
        self._launcher = subprocess.Popen(["true"])
        self._launcher.wait()

    async def feed(self, data: bytes, kind: str) -> str:
        """A packet of one of the two."""
        pairs = [open_pair(), open_pair()]
        spawner = LinuxSpawner(
            jail_init=pairs[0][0],
            zygote=pairs[1][0],
            launcher=self._launcher,
            ids=users.IdPlan("single", [], [], 0, 1, []),
            cgroup_place=(None, ""),
            guest_envs={},
        )
        guest = LinuxGuest(spawner, 1, 0, Limits())
        spawner._guests[1] = guest
        launching = ContextLaunch(fds=(0, 1, 2), info=default_context(HOME_PATH), envs={})

        for _ in range(2):
            spawner.start_context(launching, Limits(), 0, [], [])

        says = spawner._on_jail_init_message if kind == "jail_init" else spawner._zygote_says
        outcome = "taken"
        try:
            says(parse_json(data))
        except (ProtocolError, KeyError, TypeError, ValueError):
            # What a packet socket takes for the end of the other side.
            outcome = "refused"
        finally:
            if spawner._ready.done():
                spawner._ready.exception()

            spawner._all_ended()
            spawner._jail_init.close()
            spawner._zygote.close()

            for _, far in pairs:
                far.close()

        return outcome


def _pieces(data: bytes) -> Iterable[bytes]:
    cut = len(data) // 2
    return (data[:cut], data[cut:]) if cut else (data,)


def _say(sock: Any, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        # The host has hung up.
        return


def _heard(_event: object) -> None:
    return


async def _send_signal(_pid: int, _number: int) -> None:
    """Nothing is there to hear of it."""


async def _kill(_pid: int) -> None:
    return
