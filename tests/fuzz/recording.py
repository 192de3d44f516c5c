"""Real traffic to begin from: what the guests of one sandbox say while it is used in every way."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from contextlib import suppress
from typing import Any

from fumehood import AsyncSandbox, FumehoodError, Network, Template
from fumehood_wire import frames

_PREFIX = struct.Struct("!II")
_CODE = """
import sys, os
from IPython.display import display, HTML, clear_output, update_display
print('out'); print('err', file=sys.stderr); os.write(1, b'raw')
handle = display(HTML('<b>x</b>'), display_id=True); handle.update(HTML('<i>y</i>')); clear_output()
display({'application/json': {'a': [1, 2.5, None]}, 'text/plain': 'é'}, raw=True)
{'a': 1}
"""

_REACH_OUT = ["python3", "-c", "import urllib.request as u; u.urlopen('http://10.0.0.1')"]

Message = tuple[dict[str, Any], bytes]


async def record() -> dict[str, list[Message]]:
    """Uses a sandbox, and returns what came from its contexts, its init and its checkpoints."""
    streams: dict[int, bytearray] = defaultdict(bytearray)
    kept: list[frames.Decoder] = []
    feed = frames.Decoder.feed

    def listening(decoder: frames.Decoder, data: bytes) -> Any:
        kept.append(decoder)
        streams[id(decoder)] += data
        return feed(decoder, data)

    frames.Decoder.feed = listening  # type: ignore[method-assign]
    try:
        await _use()
    finally:
        frames.Decoder.feed = feed  # type: ignore[method-assign]

    found: dict[str, list[Message]] = {"context": [], "init": [], "checkpoint": []}

    for stream in streams.values():
        for header, payload in _split(bytes(stream)):
            found[_speaker(header)].append((header, payload))

    return found


async def _use() -> None:
    template = Template(name="recorded", preload=())

    async with AsyncSandbox(template=template, network=Network(allow=["127.0.0.9"])) as sandbox:
        await sandbox.run_code(_CODE)
        await sandbox.run_code("1 / 0")
        await sandbox.run_code("input('name? ')", on_input=_answer)
        await sandbox.run_code("x = 1; _ = open('f', 'w').write('1')", transactional=True, changes=True)
        await sandbox.run_code("echo hi; ls /nowhere", language="bash")
        point = await sandbox.checkpoint()
        await sandbox.rollback(point)
        await sandbox.drop_checkpoint(point)
        await sandbox.files.write("a/b", b"x" * 5000)
        await sandbox.files.read("a/b")
        await sandbox.files.list(".")
        await sandbox.get_metrics()
        await sandbox.commands.run("echo hi; sleep 0", timeout=60)

        for refused in (sandbox.commands.run(_REACH_OUT, timeout=10), sandbox.files.read("nowhere")):
            with suppress(FumehoodError):
                await refused


async def _answer(_prompt: str) -> str:
    return "Ann"


def _split(stream: bytes) -> list[Message]:
    found = []
    at = 0

    while at + _PREFIX.size <= len(stream):
        sizes = _PREFIX.unpack_from(stream, at)
        at += _PREFIX.size
        header = json.loads(stream[at : at + sizes[0]])
        found.append((header, stream[at + sizes[0] : at + sum(sizes)]))
        at += sum(sizes)

    return found


def _speaker(header: dict[str, Any]) -> str:
    if header["type"] in ("kept", "revived", "revival_failed", "ended"):
        return "checkpoint"

    return "init" if header["type"] in ("reply", "event", "hello", "failed") else "context"
