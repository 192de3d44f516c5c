"""The process that keeps sandboxes ready for `fumehood run`: callers find it when it takes them, and not before."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fumehood.cli.warm_daemon import listen_at


def test_the_socket_has_its_name_when_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that finds the file is never refused, also after a process that was killed on the way."""
    path = str(tmp_path / "run.sock")
    seen_before: list[bool] = []
    listen = socket.socket.listen

    def watched(self: socket.socket) -> None:
        seen_before.append(os.path.exists(path))
        listen(self)

    monkeypatch.setattr(socket.socket, "listen", watched)

    for _ in range(2):
        with listen_at(path), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)

        # As after the end of a process that was killed.
        (tmp_path / "run.sock~").touch()
        os.unlink(path)

    assert seen_before == [False, False]
