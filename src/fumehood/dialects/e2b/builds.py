"""Template builds for E2B's clients: starts a build, returns its state and logs, and publishes it under its tags.

Only the owner of the server builds, and only where its setting allows it. A build runs in a process of its own
(`server.template_builds`); this module keeps its state and the last log entries, until the server ends.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import AliasChoices, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fumehood.assemble import template_store
from fumehood.bounds import BOUNDS, MIB
from fumehood.cancellation import cancel_and_wait, consume_result
from fumehood.dialects.e2b.answers import plain_answer
from fumehood.dialects.e2b.auth import ControlCaller
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.build_files import BuildFiles
from fumehood.dialects.e2b.build_steps import BASE_STEP, LAST_STEP, BuildBody, BuildOrder, read_build
from fumehood.dialects.e2b.messages import ClientMessage, Texts
from fumehood.dialects.e2b.sandboxes import is_default_template
from fumehood.errors import ForbiddenError, FumehoodError, InvalidArgumentError, OverloadedError
from fumehood.log import events
from fumehood.server.json_bodies import Text
from fumehood.server.services import Services
from fumehood.server.template_builds import build_lines
from fumehood.templates.images.reference import read_reference
from fumehood.templates.recipe import is_store_name
from fumehood.templates.store import TemplateRecord

DEFAULT_TAG = "default"
# Of all templates of all servers, so that a build has the same id wherever it is asked for.
_BUILDS = uuid.UUID("4f6f6e86-6e35-4f0c-9a5e-7a1d2d3c1b60")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_AT_ONCE = 2
_MOST_WAITING = 20
_MOST_KEPT = 200
_MOST_ENTRIES = 2000
_MOST_TAGS = 20
_PAGE = 100
_RETRY_SECONDS = 5.0
_MOST_CHARACTERS = 2000
# As the builder reports the line that an error is of: the number of its step.
_LAST = "starting a sandbox"
_FAILED_STEP = re.compile(r"steps:(\d+): ")

Handler = Callable[[Request, ControlCaller], Awaitable[Response]]
Status = Literal["waiting", "building", "ready", "error"]


@dataclass(slots=True, kw_only=True)
class Build:
    """One build.

    Attributes:
        id: Its id.
        template: The name of its template, without a tag.
        tags: The tags under which the build will be published.
        limits: The limits of its sandboxes, by name.
        status: The state of the build.
        entries: The last entries of its log.
        dropped: How many earlier entries were dropped.
        reason: Why it failed, and at which step.
        step: The current step, which is known exactly only when one fails; otherwise the base, or the last step.
        task: The task that carries out the build; None before its start.
    """

    id: str
    template: str
    tags: tuple[str, ...]
    limits: Mapping[str, float]
    status: Status = "waiting"
    entries: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=_MOST_ENTRIES))
    dropped: int = 0
    reason: dict[str, str] | None = None
    step: str = BASE_STEP
    task: asyncio.Task[None] | None = None

    def log(self, message: str, level: str = "info") -> None:
        """Adds a line to its logs."""
        self.dropped += len(self.entries) == _MOST_ENTRIES
        moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        self.entries.append({"timestamp": moment, "level": level, "message": message[:_MOST_CHARACTERS]})

    def note(self, line: Mapping[str, Any]) -> None:
        """Adds a line of the builder to its logs."""
        if line["type"] == "finished":
            info = line["template"]
            events.TEMPLATE_BUILT.log(template=info["name"], size_bytes=info["size_bytes"])
            return

        text = str(line["text"])
        self.log(text)

        if text.startswith(_LAST):
            self.step = LAST_STEP

    def fail(self, message: str, step: str) -> None:
        """Ends the build with an error."""
        self.status = "error"
        self.reason = {"message": message, "step": step}
        self.log(message, "error")

    def page(self, offset: int, limit: int) -> list[dict[str, str]]:
        """Returns the entries from a number on."""
        begin = max(0, offset - self.dropped)
        return [self.entries[place] for place in range(begin, min(begin + limit, len(self.entries)))]

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in ("ready", "error")


class _NewTemplate(ClientMessage):
    name: Text = ""
    alias: Text = ""
    tags: Texts = ()
    cpu_count: Any = None
    memory_mb: Any = Field(default=None, validation_alias="memoryMB")
    min_free_disk_mb: Any = Field(
        default=None, validation_alias=AliasChoices("minFreeDiskMb", "minFreeDiskMB")
    )


class Builds:
    """The builds of a server.

    Args:
        services: The services of the server.
        files: The archives that were uploaded.
    """

    def __init__(self, services: Services, files: BuildFiles) -> None:
        self._services = services
        self._files = files
        self._all: dict[str, Build] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        services.at_end.push_async_callback(self.close)

    async def request(self, request: Request, caller: ControlCaller) -> Response:
        """Registers a future build: its template and tags."""
        self.check_builder(caller)
        body = await json_body(request, _NewTemplate)
        template, tag = split_name(body.name or body.alias)
        tags = tuple(dict.fromkeys(filter(None, (tag, *body.tags)))) or (DEFAULT_TAG,)

        for one in tags:
            stored_name(template, one)

        if len(tags) > _MOST_TAGS:
            raise InvalidArgumentError(field="tags", value=len(tags), allowed=f"at most {_MOST_TAGS}")

        self._make_room()
        build = Build(id=str(uuid.uuid4()), template=template, tags=tags, limits=_limits(body))
        self._all[build.id] = build

        if body.min_free_disk_mb is not None:
            build.log("the disk's size is not kept: sandboxes have that of their key", "warn")

        data = {
            "templateID": template,
            "buildID": build.id,
            "public": True,
            "names": [template],
            "aliases": [template],
            "tags": list(tags),
        }
        return JSONResponse(data, 202)

    async def start(self, request: Request, caller: ControlCaller) -> Response:
        """Starts a build."""
        self.check_builder(caller)
        build = self._found(request)

        if build is None:
            return _unknown(request)

        if build.task is not None:
            return plain_answer(409, f"build {build.id} was started already")

        order = read_build(await json_body(request, BuildBody))

        for line in order.notes:
            build.log(line, "warn")

        build.status = "building"
        build.task = asyncio.create_task(self._carry_out(build, order))
        consume_result(build.task)
        return JSONResponse({}, 202)

    async def status(self, request: Request, caller: ControlCaller) -> Response:
        """Describes a build, with its logs from an offset on."""
        self.check_builder(caller)
        build = self._found(request)

        if build is None:
            return _unknown(request)

        query = request.query_params
        entries = build.page(
            _number(query.get("logsOffset"), 0), min(_number(query.get("limit"), _PAGE), _PAGE)
        )
        data: dict[str, Any] = {
            "templateID": build.template,
            "buildID": build.id,
            "status": build.status,
            "logs": [],
            "logEntries": entries,
        }

        if build.reason is not None:
            data["reason"] = {**build.reason, "logEntries": []}

        return JSONResponse(data)

    async def logs(self, request: Request, caller: ControlCaller) -> Response:
        """Returns the logs of a build."""
        self.check_builder(caller)
        build = self._found(request)
        return _unknown(request) if build is None else JSONResponse({"logs": list(build.entries)})

    async def link(self, request: Request, caller: ControlCaller) -> Response:
        """Returns the address to which an archive of a template can be uploaded."""
        self.check_builder(caller)
        split_name(request.path_params["template_id"])
        return await self._files.link(request, caller)

    async def resolve(self, template: str) -> str:
        """Returns the name in the store of `name:build_id`; other names unchanged."""
        name, _, build_id = template.partition(":")

        if not _ID.fullmatch(build_id):
            return template

        build = self._all.get(build_id)

        if build is not None and build.template == name and build.status == "ready":
            return stored_name(name, build.tags[0])

        return await asyncio.to_thread(_name_of_build, name, build_id) or template

    async def close(self) -> None:
        """Ends the running builds."""
        await cancel_and_wait(*(build.task for build in self._all.values() if build.task is not None))

    def check_builder(self, caller: ControlCaller) -> None:
        """Checks that a caller may change templates.

        Raises:
            ForbiddenError: The caller may not change templates.
        """
        if not caller.principal.is_owner:
            raise ForbiddenError(reason="templates are built and changed with the owner's token")

        if not self._services.settings.template_builds:
            raise ForbiddenError(
                reason="this server builds no templates over HTTP; its setting template_builds allows it"
            )

    def guarded(self, handler: Handler) -> Handler:
        """Returns a handler that refuses callers that may not change templates."""

        async def handle(request: Request, caller: ControlCaller) -> Response:
            self.check_builder(caller)
            return await handler(request, caller)

        return handle

    # -- inside

    def _make_room(self) -> None:
        waiting = sum(not build.is_over for build in self._all.values())

        if waiting >= _MOST_WAITING:
            # One that was asked for and never started makes room.
            idle = next((build for build in self._all.values() if build.task is None), None)

            if idle is None:
                reason = f"{waiting} builds of templates are under way"
                raise OverloadedError(reason=reason, retry_after_seconds=_RETRY_SECONDS)

            del self._all[idle.id]

        while len(self._all) >= _MOST_KEPT:
            del self._all[next(build.id for build in self._all.values() if build.is_over)]

    def _found(self, request: Request) -> Build | None:
        build = self._all.get(request.path_params["build_id"])
        return build if build is not None and build.template == request.path_params["template_id"] else None

    async def _carry_out(self, build: Build, order: BuildOrder) -> None:
        try:
            async with self._places:
                with tempfile.TemporaryDirectory(dir=self._services.state) as folder:
                    await self._build(build, order, folder)

            await self._tag(build)
        except FumehoodError as error:
            found = _FAILED_STEP.search(error.message)
            build.fail(error.message, found[1] if found and found[1] != "0" else build.step)
        except BaseException:
            build.fail("the server has ended the build", build.step)
            raise
        else:
            build.status = "ready"

    async def _build(self, build: Build, order: BuildOrder, folder: str) -> None:
        uploads = {one: await self._files.fetch(build.template, one, folder) for one in order.hashes}

        async with aclosing(build_lines(_arguments(build, order, uploads))) as lines:
            async for line in lines:
                build.note(line)

    async def _tag(self, build: Build) -> None:
        first, *others = (stored_name(build.template, tag) for tag in build.tags)

        for name in others:
            await asyncio.to_thread(template_store().copy, first, name)


def _limits(body: _NewTemplate) -> dict[str, float]:
    """Returns the sizes that a body orders, as limits of sandboxes.

    Raises:
        InvalidArgumentError: A value is not a size.
    """
    found: dict[str, float] = {}

    for field_name, limit, value, unit, factor in (
        ("cpuCount", "cpu_cores", body.cpu_count, "cores", 1),
        ("memoryMB", "memory_bytes", body.memory_mb, "MB", MIB),
    ):
        if value is None:
            continue

        # JSON does not tell whole numbers from others: 512.0 is 512.
        number = int(value) if type(value) is float and value.is_integer() else value
        size = number * factor if type(number) is int else number
        bound = BOUNDS[limit]

        if not bound.allows(size):
            scaled = replace(
                bound, low=bound.low / factor, high=bound.high / factor, unit=unit, optional=False
            )
            raise InvalidArgumentError(field=field_name, value=value, allowed=scaled.describe())

        found[limit] = size

    return found


def _name_of_build(template: str, build_id: str) -> str | None:
    store = template_store()

    for name in store.names():
        if (
            name.partition(":")[0] == template
            and (record := store.record(name))
            and id_of(record) == build_id
        ):
            return name

    return None


def _arguments(build: Build, order: BuildOrder, uploads: dict[str, str]) -> dict[str, Any]:
    return {
        "name": stored_name(build.template, build.tags[0]),
        "image": order.image,
        "base": None if order.base is None else stored_name(*split_name(order.base)),
        "instructions": list(order.instructions),
        "uploads": uploads,
        "start": list(order.start),
        "limits": dict(build.limits),
        "logins": _logins(order),
        "force": order.force,
    }


def _logins(order: BuildOrder) -> str:
    """Returns the login of the order's registry as Docker's configuration has it; empty for the server's own logins."""
    if order.login is None or order.image is None:
        return ""

    registry = read_reference(order.image).place
    return json.dumps({"auths": {registry: {"username": order.login[0], "password": order.login[1]}}})


def id_of(record: TemplateRecord) -> str:
    """Returns the id of a build of the store."""
    return str(uuid.uuid5(_BUILDS, record.build))


def split_name(text: str) -> tuple[str, str]:
    """Returns the name and the tag in `name:tag`; the tag is empty where none is named.

    Raises:
        InvalidArgumentError: The text is not a valid template name.
    """
    name, _, tag = text.partition(":")

    if not is_store_name(name) or is_default_template(name):
        raise InvalidArgumentError(
            field="name",
            value=text[:200],
            allowed="1 to 64 letters, digits, '.', '_' and '-', with a tag behind a colon if wanted; no name of "
            "E2B's own templates",
        )

    return name, tag


def stored_name(name: str, tag: str) -> str:
    """Returns the name in the store of a template with a tag.

    Raises:
        InvalidArgumentError: The tag is not valid.
    """
    found = name if tag in ("", DEFAULT_TAG) else f"{name}:{tag}"

    if not is_store_name(found):
        raise InvalidArgumentError(field="tags", value=tag[:200], allowed="letters, digits, '.', '_' and '-'")

    return found


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else default


def _unknown(request: Request) -> Response:
    build, template = request.path_params["build_id"], request.path_params["template_id"]
    return plain_answer(
        404, f"there is no build {build[:100]!r} of {template[:100]!r}", {"Should-Retry": "false"}
    )
