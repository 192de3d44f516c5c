"""The files of a sandbox, as the host lists them: code decides how many there are, and how long their names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fumehood.engine.files import LiveFiles
from fumehood.errors import InvalidArgumentError
from fumehood.values.requests import ListFiles

ENTRY = {
    "type": "symlink",
    "size_bytes": 0,
    "mode": 0o777,
    "permissions": "rwxrwxrwx",
    "owner": "user",
    "group": "user",
    "modified_at": 0.0,
}


class Init:
    """Plays an init whose directory never ends."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.pages = 0

    async def ask(self, _verb: str, _payload: bytes = b"", **_: Any) -> tuple[Any, bytes]:
        self.pages += 1
        return {"entries": [{**ENTRY, **self.names}] * 100, "next": self.pages * 100}, b""


@pytest.mark.parametrize(
    ("names", "pages"),
    [
        ({"name": "x", "path": "/x"}, 1000),
        ({"name": "x" * 255, "path": "/" + "x" * 3745}, 168),
        ({"name": "x", "path": "/x", "symlink_target": "x" * 3997}, 168),
    ],
    ids=["many", "deep", "links"],
)
def test_a_directory_is_listed_as_far_as_it_is_not_much(names, pages):
    init = Init(**names)
    files = LiveFiles(init.ask, lambda _: None)

    with pytest.raises(InvalidArgumentError, match="list a part of it"):
        asyncio.run(files.call(ListFiles(path="/", depth=64)))

    assert init.pages == pages
