"""Calls of the port other than running code, each written into the sandbox's audit record.

Runs in the host process, on the engine's loop, right behind the port: calls of the engine itself do not pass through
here. A command is recorded before it starts. Contents must never be recorded, only their size and, where that is cheap,
a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing

from fumehood.bounds import KIB
from fumehood.engine.audit_records import describe_network
from fumehood.engine.audit_trail import Fields, describe_code, listed, shown, small_digest
from fumehood.engine.sandbox import LiveSandbox
from fumehood.errors import FumehoodError
from fumehood.values.judging import CaseRun, JudgeRequest
from fumehood.values.network import Network
from fumehood.values.requests import (
    CheckpointCall,
    ContextCall,
    FileCall,
    ListCheckpoints,
    ListContexts,
    MakeDir,
    ProcessSpec,
    ReadFile,
    RemoveFile,
    RenameFile,
)
from fumehood.values.sandbox import CheckpointInfo, ContextInfo, FileInfo, ProcessInfo

# A digest of more than this would take too long.
_HASHED_BYTES = 256 * KIB


async def start_process(sandbox: LiveSandbox, spec: ProcessSpec) -> ProcessInfo:
    """Starts a command or a terminal."""
    kind = "command" if spec.pty is None else "pty"
    sandbox.audit.note(
        kind,
        {
            "argv": listed(spec.argv),
            "argv_sha256": small_digest("\0".join(spec.argv).encode("utf-8", "surrogatepass")),
            "cwd": None if spec.cwd is None else shown(spec.cwd),
        },
    )
    try:
        info = await sandbox.processes.start(spec)
    except FumehoodError as error:
        sandbox.audit.note("failed", {"kind": kind, "error": error.code})
        raise

    sandbox.security.note_program(spec.argv, info.pid)
    return info


async def read_file(sandbox: LiveSandbox, request: ReadFile) -> AsyncGenerator[bytes, None]:
    """Yields a file in chunks."""
    seen = _Seen()

    if request.share or request.volume:
        async with aclosing(_read_often(sandbox, request, seen)) as pieces:
            async for piece in pieces:
                yield piece

        return

    try:
        async with aclosing(sandbox.files.read(request)) as pieces:
            async for piece in pieces:
                seen.add(piece)
                yield piece
    except FumehoodError as error:
        sandbox.audit.note("failed", {"kind": "file_out", "path": shown(request.path), "error": error.code})
        raise
    finally:
        # Also when the reader stops early: this much was read.
        sandbox.audit.note(
            "file_out",
            {"path": shown(request.path), "offset_bytes": request.offset_bytes or None, **seen.fields()},
        )


async def _read_often(sandbox: LiveSandbox, request: ReadFile, seen: _Seen) -> AsyncGenerator[bytes, None]:
    """Yields a file to frequent readers, whose reads are recorded at a bounded rate, so that other entries are kept."""
    error_code: str | None = None
    try:
        async with aclosing(sandbox.files.read(request)) as pieces:
            async for piece in pieces:
                seen.add(piece)
                yield piece
    except FumehoodError as error:
        error_code = error.code
        raise
    finally:
        fields: Fields = {"path": shown(request.path), "error": error_code, **seen.fields()}

        if request.share:
            sandbox.audit.note_share_read({"share": shown(request.share), **fields})
        else:
            sandbox.audit.note_volume_read({"volume": shown(request.volume), **fields})


async def write_file(
    sandbox: LiveSandbox, path: str, chunks: AsyncIterator[bytes], metadata: Mapping[str, str] | None
) -> FileInfo:
    """Writes a file."""
    seen = _Seen()
    try:
        info = await sandbox.files.write(path, seen.through(chunks), metadata)
    except FumehoodError as error:
        sandbox.audit.note("failed", {"kind": "file_in", "path": shown(path), "error": error.code})
        raise

    sandbox.audit.note("file_in", {"path": shown(path), **seen.fields()})
    return info


async def call_files(sandbox: LiveSandbox, call: FileCall) -> tuple[FileInfo, ...]:
    """Describes, lists, makes, removes or renames files."""
    done = await sandbox.files.call(call)

    match call:
        case MakeDir(path=path) | RemoveFile(path=path):
            sandbox.audit.note("file_changed", {"verb": _verb(call), "path": shown(path)})
        case RenameFile(source=source, destination=destination):
            fields: Fields = {"verb": _verb(call), "path": shown(source), "destination": shown(destination)}
            sandbox.audit.note("file_changed", fields)

    return done


async def call_contexts(sandbox: LiveSandbox, call: ContextCall) -> tuple[ContextInfo, ...]:
    """Creates, lists, restarts or removes contexts."""
    done = await sandbox.context_call(call)

    if not isinstance(call, ListContexts):
        context_id = done[0].id if done else getattr(call, "context_id", "")
        sandbox.audit.note("context", {"verb": _verb(call), "context": shown(context_id)})

    return done


async def call_checkpoints(sandbox: LiveSandbox, call: CheckpointCall) -> tuple[CheckpointInfo, ...]:
    """Makes, lists, rolls back to or drops checkpoints."""
    if isinstance(call, ListCheckpoints):
        return await sandbox.checkpoint_call(call)

    fields: Fields = {"verb": _verb(call), "checkpoint": shown(getattr(call, "checkpoint_id", ""))}
    try:
        done = await sandbox.checkpoint_call(call)
    except asyncio.CancelledError:
        # It may have been carried out all the same.
        sandbox.audit.note("checkpoint", {**fields, "outcome": "given_up"})
        raise

    if done:
        fields["checkpoint"] = shown(done[0].id)

    sandbox.audit.note("checkpoint", fields)
    return done


async def judge(sandbox: LiveSandbox, request: JudgeRequest) -> tuple[CaseRun, ...]:
    """Runs a program for many inputs."""
    sandbox.audit.note(
        "judge",
        {
            **await describe_code(request.code),
            "cases": len(request.stdins),
        },
    )
    return await sandbox.judge(request)


async def set_network(sandbox: LiveSandbox, network: Network) -> None:
    """Changes the network of a sandbox."""
    await sandbox.set_network(network)
    sandbox.audit.note("network", describe_network(sandbox.egress.network))


class _Seen:
    """Counts the bytes of a transfer, and computes a digest of a small one."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, piece: bytes) -> None:
        """Counts a chunk."""
        self._size_bytes += len(piece)

        if self._size_bytes <= _HASHED_BYTES:
            self._hash.update(piece)

    async def through(self, chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yields the chunks, and counts each."""
        async for chunk in chunks:
            self.add(chunk)
            yield chunk

    def fields(self) -> Fields:
        """Returns the fields for the audit record."""
        is_small = self._size_bytes <= _HASHED_BYTES
        return {"size_bytes": self._size_bytes, "sha256": self._hash.hexdigest() if is_small else None}


def _verb(call: object) -> str:
    """Returns the name of a call's class as in audit records: `RollBack` becomes `roll_back`."""
    name = type(call).__name__
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
