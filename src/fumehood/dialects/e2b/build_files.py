"""Archives that E2B's clients upload for the COPY steps of templates, kept for a day.

Clients upload each one to an address that is signed for it, as at E2B, since they send no key there. The archives are
hostile: this module does not read them; a jailed process unpacks them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.bounds import GIB
from fumehood.cancellation import complete
from fumehood.dialects.e2b.answers import control_answer, plain_answer
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.dialects.e2b.build_steps import FILES_HASH
from fumehood.errors import ForbiddenError, FumehoodError, InvalidArgumentError, RequestTooLargeError
from fumehood.server.admission import admit_caller
from fumehood.server.principal import OWNER_ID
from fumehood.server.services import Services
from fumehood.server.state_files import derive, server_secret
from fumehood.server.uploads import pieces_of
from fumehood.storage.files import StoredFile, discard_file, new_file_id

_KIND = "templates"
_KEPT_SECONDS = 86_400.0
_LINK_SECONDS = 3600
_MAX_BYTES = 20 * GIB
_PATH = "/template-files/{template}/{hash}/content"


@dataclass(frozen=True, slots=True)
class _Link:
    """The right to upload one archive of one template, until a time."""

    template: str
    files_hash: str
    expires: int

    def signature(self, secret: bytes) -> str:
        message = f"{len(self.template)}:{self.template}:{self.files_hash}:{self.expires}"
        return hmac.new(secret, message.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


class BuildFiles:
    """The archives of a server.

    Args:
        services: The services of the server.
    """

    path = _PATH

    def __init__(self, services: Services) -> None:
        self._files = services.stored_files
        self._blobs = services.blobs
        self._max_bytes = services.settings.max_upload_bytes
        self._secret = derive(server_secret(services.state), "uploads of e2b templates")

    async def link(self, request: Request, _caller: ControlCaller) -> Response:
        """Returns whether an archive is stored here, and the address to upload it to."""
        template, files_hash = request.path_params["template_id"], request.path_params["hash"]

        if not FILES_HASH.fullmatch(files_hash):
            raise InvalidArgumentError(field="hash", value=files_hash, allowed="64 hexadecimal digits")

        is_present = await self._find(template, files_hash) is not None
        link = _Link(template, files_hash, int(time.time()) + _LINK_SECONDS)
        path = _PATH.format(template=template, hash=files_hash)
        query = f"expires={link.expires}&signature={link.signature(self._secret)}"
        url = str(request.url.replace(path=path, query=query, fragment=""))
        return JSONResponse({"present": is_present, "url": url}, 201)

    async def upload(self, request: Request) -> Response:
        """Stores an archive, in place of an earlier one of the same name."""
        try:
            return await self._upload(request)
        except FumehoodError as error:
            return control_answer(error)

    async def _upload(self, request: Request) -> Response:
        link = self._checked(request)
        admit_caller()
        kept = await self._files.kept_by(OWNER_ID, kind=_KIND)

        if kept.size_bytes > _MAX_BYTES:
            raise RequestTooLargeError(what="archives of templates of this day", maximum=_MAX_BYTES)

        blob = await self._blobs.put(pieces_of(request), kind=_KIND, max_bytes=self._max_bytes)
        older = await self._find(link.template, link.files_hash)
        try:
            await self._files.add(
                StoredFile(
                    id=new_file_id(),
                    session_id=_session(link.template, link.files_hash),
                    owner=OWNER_ID,
                    name=link.files_hash,
                    size_bytes=blob.size_bytes,
                    content_type="application/x-tar",
                    blob=blob.name,
                    expires_at=time.time() + _KEPT_SECONDS,
                )
            )
        except BaseException:
            await complete(self._blobs.delete(blob.name))
            raise

        if older is not None:
            await discard_file(self._files, self._blobs, older)

        return plain_answer(200, "it is stored")

    def _checked(self, request: Request) -> _Link:
        """Returns the upload link of a request.

        Raises:
            ForbiddenError: The link is not one of ours, or has expired.
        """
        expires, query = request.query_params.get("expires", ""), request.query_params
        is_time = expires.isascii() and expires.isdigit() and len(expires) <= 12
        link = _Link(
            request.path_params["template"], request.path_params["hash"], int(expires) if is_time else 0
        )
        given = query.get("signature", "").encode("utf-8", "surrogatepass")

        if not hmac.compare_digest(link.signature(self._secret).encode(), given):
            raise ForbiddenError(reason="the signature does not match this address")

        if link.expires < time.time():
            raise ForbiddenError(reason="the address for this upload has expired")

        return link

    async def fetch(self, template: str, files_hash: str, folder: str) -> str:
        """Writes an archive into a folder and returns its path.

        Raises:
            InvalidArgumentError: The archive was not uploaded, or more than a day ago.
        """
        found = await self._find(template, files_hash)

        if found is None:
            allowed = "files that were uploaded, a day ago at most: upload them again (force_upload)"
            raise InvalidArgumentError(field="filesHash", value=files_hash, allowed=allowed)

        path = os.path.join(folder, files_hash)
        reading = await self._blobs.get(found.blob)

        with open(path, "wb") as file:
            async for piece in reading.chunks:
                await asyncio.to_thread(file.write, piece)

        return path

    async def _find(self, template: str, files_hash: str) -> StoredFile | None:
        known = await self._files.list(_session(template, files_hash), owner=OWNER_ID)
        return known[-1] if known else None


def _session(template: str, files_hash: str) -> str:
    """Returns the name under which the archives of one hash of one template are kept."""
    digest = hashlib.sha256(f"{template}/{files_hash}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"e2b-template-{digest}"
