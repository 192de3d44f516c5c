"""Saving and loading in the words of a server's routes.

Runs in the process that asks one. The saved state itself passes through in pieces, either way.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from os import PathLike
from typing import Any, cast

from fumehood.backends.http_connection import HttpConnection, query_of
from fumehood.backends.http_paths import sandbox_path
from fumehood.backends.save_requests import Loaded, LoadRequest
from fumehood.errors import TemplateError
from fumehood.save_errors import LoadError
from fumehood.serialise import as_data

_PIECE_BYTES = 1 << 20


class HttpStateVerbs:
    """`StateVerbs`, one request each, for `HttpBackend`."""

    _connection: HttpConnection

    def save(self, sandbox_id: str) -> AsyncGenerator[bytes, None]:
        """Give what of a sandbox lasts; see the port."""

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with self._connection.stream("POST", sandbox_path(sandbox_id, "save")) as answer:
                async for piece in answer.aiter_bytes(_PIECE_BYTES):
                    yield piece

        async def begin() -> AsyncGenerator[bytes, None]:
            return pieces()

        # What both are to a backend is said in its own class.
        backend = cast(Any, self)
        return cast("AsyncGenerator[bytes, None]", backend._items(begin))

    async def load(self, request: LoadRequest, archive: str | PathLike[str]) -> Loaded:
        """Make a sandbox of a saved state; see the port."""
        spec = request.spec

        if not isinstance(spec.template, str):
            raise TemplateError(
                template=spec.template.name,
                reason="a server knows templates only by name",
                hint="build it there with `fumehood template build`, and give its name",
            )

        wish = as_data(spec)
        assert isinstance(wish, dict)
        del wish["owner"], wish["chosen_limits"]
        wish["limits"] = as_data(spec.limits_asked)
        wish["keep_template"] = request.keep_template
        wish["files_only"] = request.files_only
        try:
            file = open(archive, "rb")  # noqa: SIM115 - closed below
        except OSError as error:
            raise LoadError(reason=f"{archive}: {error.strerror}") from None

        with file:
            form: dict[str, Any] = {
                "data": {"options": json.dumps(wish)},
                "files": {"state": ("state", file)},
            }
            backend = cast(Any, self)
            owner = spec.owner if backend._on_behalf else None
            answer = await backend._ask(
                "POST", "/v1/sandboxes/load", params=query_of(owner=owner or None), **form
            )
            return cast(Loaded, backend._read(Loaded, answer))
