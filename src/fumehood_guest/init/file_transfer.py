"""File transfer: sends the writable files of a snapshot to the init of a forked sandbox.

Runs in init, on both sides of a socket that the host has made. It sends descriptors to read from, never paths: the
receiver copies. The sender waits for the copies, because a file under a lease must not change before. The receiver runs
no user code yet, and decides itself how to use the files.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

from fumehood_guest.init.restore import Restoration
from fumehood_guest.shared.writable_files import SnapshotContent, SnapshotEntry, SnapshotError, nameless_copy
from fumehood_wire.frames import Decoder, encode

# The kernel passes at most 253 descriptors at once.
_BATCH = 128
_RECEIVE_BYTES = 1 << 18
_PATIENCE_SECONDS = 60
_DONE = b"!"


def send(sock: socket.socket, taken: Dict[str, SnapshotEntry]) -> None:
    """Sends the files of a snapshot; returns when they have been copied.

    Raises:
        OSError: A file is missing from the snapshot, or the receiver has ended.
    """
    sock.settimeout(_PATIENCE_SECONDS)
    entries = list(taken.values())

    for start in range(0, len(entries), _BATCH):
        fds: List[int] = []
        try:
            described = [_describe(entry, fds) for entry in entries[start : start + _BATCH]]

            for header in described[:-1]:
                sock.sendall(encode(header))

            frame = encode(described[-1])
            sent = socket.send_fds(sock, [frame], fds) if fds else 0
            sock.sendall(frame[sent:])
        finally:
            for fd in fds:
                os.close(fd)

    sock.sendall(encode({"type": "all"}))

    if sock.recv(1) != _DONE:
        raise SnapshotError(0, "the files could not be copied")


def receive(sock: socket.socket) -> int:
    """Replaces this sandbox's files by those received; returns how many files there were."""
    sock.settimeout(_PATIENCE_SECONDS)
    decoder = Decoder()
    headers: List[Dict[str, Any]] = []
    fds: List[int] = []
    try:
        while not headers or headers[-1]["type"] != "all":
            data, more, _, _ = socket.recv_fds(sock, _RECEIVE_BYTES, _BATCH)

            if not data:
                raise SnapshotError(0, "the files did not come")

            fds.extend(more)
            headers.extend(header for header, _ in decoder.feed(data))

        contents = iter(fds)
        taken = {header["path"]: _entry(header, contents) for header in headers[:-1]}
        Restoration(taken, lambda *_: False, lambda _: None).carry_out()
    finally:
        for fd in fds:
            os.close(fd)

    sock.sendall(_DONE)
    return sum(entry.content is not None for entry in taken.values())


def _describe(entry: SnapshotEntry, fds: List[int]) -> Dict[str, Any]:
    """Returns an entry's description, and reopens its content: a lease lasts until the last duplicate is closed."""
    if entry.content is not None:
        if entry.content.fd is None:
            raise SnapshotError(0, f"there was no room to keep the content of {entry.path}")

        fds.append(_opened_anew(entry.content.fd))

    return {
        "type": "entry",
        "path": entry.path,
        "mode": entry.mode,
        "modified_ns": entry.modified_ns,
        "size_bytes": entry.size_bytes,
        "inode": entry.inode,
        "links": entry.links,
        "target": entry.target,
        "has_content": entry.content is not None,
    }


def _opened_anew(fd: int) -> int:
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return nameless_copy(fd)  # the file's mode denies its owner access


def _entry(header: Dict[str, Any], contents: Any) -> SnapshotEntry:
    return SnapshotEntry(
        header["path"],
        header["mode"],
        header["modified_ns"],
        header["size_bytes"],
        header["inode"],
        header["links"],
        SnapshotContent(next(contents)) if header["has_content"] else None,
        header["target"],
    )
