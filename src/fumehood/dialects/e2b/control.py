"""The control plane: creates, lists, pauses and ends sandboxes, in both generations of E2B's API.

A caller sees only the sandboxes of its key.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fumehood.dialects.e2b import sandboxes, templates
from fumehood.dialects.e2b.answers import GuestJSON, NotOfferedError, answered, control_answer, plain_answer
from fumehood.dialects.e2b.auth import ControlCaller, E2BAuthenticator, SandboxTokens
from fumehood.dialects.e2b.bodies import json_body
from fumehood.dialects.e2b.build_files import BuildFiles
from fumehood.dialects.e2b.builds import Builds
from fumehood.dialects.e2b.creation import DEFAULT_SECONDS, Creation, NetworkRules, read_network
from fumehood.dialects.e2b.inside import InsideInterpreters
from fumehood.dialects.e2b.logs import logs_data, logs_data_of_v2
from fumehood.dialects.e2b.messages import ClientMessage, Flag, Number, Seconds, Whole
from fumehood.dialects.e2b.sandboxes import measures_data
from fumehood.dialects.e2b.snapshots import SnapshotService
from fumehood.dialects.e2b.volume_content import VolumeContent
from fumehood.dialects.e2b.volumes import Volumes
from fumehood.errors import FumehoodError, SandboxNotFoundError
from fumehood.server.allowance import most_network
from fumehood.server.services import Services
from fumehood.values.requests import ForkRequest
from fumehood.values.sandbox import SandboxInfo

Answer = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request, ControlCaller], Awaitable[Response]]
Authenticate = Callable[[Request], Awaitable[ControlCaller]]

# Paths of E2B that exist here only to refuse by name what this server does not have.
_MISSING = {
    "templates": "templates through the API of E2B",
    "v2/templates": "templates through the API of E2B",
    "v3/templates": "templates through the API of E2B",
    "secrets": "secrets",
    "events": "events and webhooks",
}
_INSTEAD = {
    "templates through the API of E2B": "build, list, tag and delete them",
}
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class _Lifetime(ClientMessage):
    timeout: Seconds | None = None


class _Resume(_Lifetime):
    memory: Flag = True


class _Pause(ClientMessage):
    memory: Flag = True


class _Refresh(ClientMessage):
    duration: Number | None = None


class _Fork(_Lifetime):
    count: Whole = 1


class _NetworkUpdate(NetworkRules):
    allow_internet_access: Flag | None = None


class Control:
    """The control plane of a server.

    Args:
        services: The services of the server.
        callers: Authenticates callers.
        tokens: The sandboxes' tokens.
        inside: The interpreters inside sandboxes.
    """

    def __init__(
        self, services: Services, callers: E2BAuthenticator, tokens: SandboxTokens, inside: InsideInterpreters
    ) -> None:
        self._inside = inside
        self._callers = callers
        self._tokens = tokens
        self._settings = services.settings
        self._domain = services.settings.domain
        self._snapshots = SnapshotService(services)
        self._build_files = BuildFiles(services)
        self._builds = Builds(services, self._build_files)
        self._volumes = Volumes(services, callers)
        self._creation = Creation(
            services.idempotency,
            tokens,
            services.settings,
            (self._snapshots, self._volumes),
            self._builds.resolve,
            inside,
        )

    def routes(self) -> list[Route]:
        """Returns its routes."""
        one = "/sandboxes/{sandbox_id}"
        return [
            *self._both("/sandboxes", "POST", self._creation.create),
            *self._both("/sandboxes", "GET", self._list),
            *self._both(one, "GET", self._detail),
            *self._both(one, "DELETE", self._kill),
            *self._both(f"{one}/connect", "POST", self._connect),
            *self._both(f"{one}/resume", "POST", self._connect),
            *self._both(f"{one}/timeout", "POST", self._set_timeout),
            *self._both(f"{one}/refreshes", "POST", self._refresh),
            *self._both(f"{one}/pause", "POST", self._pause),
            *self._both(f"{one}/metrics", "GET", self._metrics),
            *self._both(f"{one}/network", "PUT", self._network),
            *self._both(f"{one}/fork", "POST", self._fork),
            *self._both(f"{one}/snapshots", "POST", self._snapshots.create),
            *self._both("/snapshots", "GET", self._snapshots.list),
            *self._both("/templates", "GET", templates.list_templates),
            *self._both("/templates/aliases/{alias:path}", "GET", templates.find_alias),
            *self._both("/templates/{template_id}", "GET", templates.describe_template),
            *self._both("/templates/{template_id}/tags", "GET", templates.list_tags),
            *_builder(self._builds, self._build_files, self._both, self._answering),
            *_volumes(self._volumes, self._settings.max_upload_bytes, self._both, self._answering),
            # E2B's clients delete snapshots by this path.
            *self._both("/templates/{snapshot_id:path}", "DELETE", self._delete),
            Route(f"{one}/logs", self._answering(self._logs), methods=["GET"]),
            Route(f"/v2{one}/logs", self._answering(self._logs_of_v2), methods=["GET"]),
            *self._missing(),
        ]

    def _both(self, path: str, method: str, handler: Handler) -> list[Route]:
        answer = self._answering(handler)
        return [Route(f"{prefix}{path}", answer, methods=[method]) for prefix in ("", "/v2")]

    def _missing(self) -> list[Route]:
        return [
            Route(path, self._answering(self._refused(what)), methods=list(_METHODS))
            for prefix, what in _MISSING.items()
            for path in (f"/{prefix}", f"/{prefix}/{{rest:path}}")
        ]

    def _answering(self, handler: Handler, authenticate: Authenticate | None = None) -> ASGIApp:
        authenticate = authenticate or self._callers.of_key

        async def answer(request: Request) -> Response:
            try:
                return await handler(request, await authenticate(request))
            except FumehoodError as error:
                return control_answer(error)

        return Endpoint(answer)

    def _refused(self, what: str) -> Handler:
        async def refuse(_request: Request, _caller: ControlCaller) -> Response:
            raise NotOfferedError(what=what, instead=_INSTEAD.get(what, ""))

        return refuse

    # -- handlers

    async def _delete(self, request: Request, caller: ControlCaller) -> Response:
        name = request.path_params["snapshot_id"]

        if await self._snapshots.find(name, caller) is None and await templates.is_there(name):
            self._builds.check_builder(caller)
            await templates.delete_template(name)
            return Response(status_code=204)

        return await self._snapshots.delete(request, caller)

    async def _list(self, request: Request, caller: ControlCaller) -> Response:
        query = sandboxes.read_query(request.query_params)
        infos = await caller.backend.list(caller.principal.key_id)
        page, token = sandboxes.page_of(infos, query)
        cores = (await caller.backend.capacity()).cpu_cores
        running = sum(info.state == "running" for info in infos)
        return JSONResponse(
            [sandboxes.listed_data(info, cores) for info in page],
            headers={**sandboxes.token_headers(token), "x-total-running": str(running)},
        )

    async def _detail(self, request: Request, caller: ControlCaller) -> Response:
        info = await self._found(request, caller)
        cores = (await caller.backend.capacity()).cpu_cores
        data = sandboxes.detail_data(
            info,
            self._tokens,
            self._domain,
            cores,
            are_ports_public=bool(self._domain) and self._settings.public_ports,
        )
        return JSONResponse({**data, "volumeMounts": self._volumes.held_by(info.id)})

    async def _kill(self, request: Request, caller: ControlCaller) -> Response:
        sandbox_id = request.path_params["sandbox_id"]
        await self._volumes.settle(sandbox_id, caller)

        if not await caller.backend.kill(sandbox_id):
            raise SandboxNotFoundError(sandbox_id=sandbox_id)

        return Response(status_code=204)

    async def _connect(self, request: Request, caller: ControlCaller) -> Response:
        """Resumes a paused sandbox for the given time; never shortens the time of a running one."""
        body = await json_body(request, _Resume)
        seconds = body.timeout or DEFAULT_SECONDS
        files_only = not body.memory
        info = await self._found(request, caller)
        was_paused = info.state == "paused" and await caller.backend.resume(info.id, files_only=files_only)

        if was_paused or _ends_before(info, seconds):
            await caller.backend.set_timeout(info.id, seconds)

        await self._inside.ensure(await self._found(request, caller) if was_paused else info, request.app)
        data = sandboxes.sandbox_data(info, self._tokens, self._domain)
        return JSONResponse(data, 201 if was_paused else 200)

    async def _set_timeout(self, request: Request, caller: ControlCaller) -> Response:
        seconds = (await json_body(request, _Lifetime)).timeout
        info = await self._found(request, caller)

        if seconds:
            await caller.backend.set_timeout(info.id, seconds)
        elif seconds is not None:
            await self._time_over(info, caller)

        return Response(status_code=204)

    async def _time_over(self, info: SandboxInfo, caller: ControlCaller) -> None:
        await self._volumes.settle(info.id, caller)

        if info.on_timeout == "kill":
            await caller.backend.kill(info.id)
        else:
            await caller.backend.pause(info.id, files_only=info.on_timeout == "pause_files")

    async def _refresh(self, request: Request, caller: ControlCaller) -> Response:
        """Extends the life of a sandbox, as clients of the first generation do."""
        seconds = (await json_body(request, _Refresh)).duration or DEFAULT_SECONDS
        info = await self._found(request, caller)

        if _ends_before(info, seconds):
            await caller.backend.set_timeout(info.id, seconds)

        return Response(status_code=204)

    async def _pause(self, request: Request, caller: ControlCaller) -> Response:
        files_only = not (await json_body(request, _Pause)).memory
        info = await self._found(request, caller)
        await self._volumes.settle(info.id, caller)

        if not await caller.backend.pause(info.id, files_only=files_only):
            return plain_answer(409, f"sandbox {info.id!r} is paused already", {"Should-Retry": "false"})

        return Response(status_code=204)

    async def _fork(self, request: Request, caller: ControlCaller) -> Response:
        """Makes all forks or none, so that none of the results is an error."""
        body = await json_body(request, _Fork)
        info = await self._found(request, caller)
        wish = ForkRequest(count=body.count, timeout_seconds=body.timeout or DEFAULT_SECONDS)
        forked = await caller.backend.fork(info.id, wish)

        for item in forked.items:
            await self._inside.ensure(item, request.app)

        made = [sandboxes.sandbox_data(item, self._tokens, self._domain) for item in forked.items]
        return JSONResponse([{"sandbox": data} for data in made], 201)

    async def _metrics(self, request: Request, caller: ControlCaller) -> Response:
        """Returns the current metrics; a window of time without the present is empty."""
        info = await self._found(request, caller)
        end = request.query_params.get("end", "")

        if end.isascii() and end.isdigit() and int(end[:15]) < int(time.time()) - 1:
            return JSONResponse([])

        return JSONResponse([await measures_data(caller.backend, info.id)])

    async def _logs(self, request: Request, caller: ControlCaller) -> Response:
        """Returns the sandbox's audit record, also for a while after its end."""
        log = await caller.backend.audit_log(request.path_params["sandbox_id"])
        return GuestJSON(logs_data(log.entries, request.query_params))

    async def _logs_of_v2(self, request: Request, caller: ControlCaller) -> Response:
        log = await caller.backend.audit_log(request.path_params["sandbox_id"])
        return GuestJSON(logs_data_of_v2(log.entries, request.query_params))

    async def _network(self, request: Request, caller: ControlCaller) -> Response:
        """Replaces the whole network of a sandbox."""
        body = await json_body(request, _NetworkUpdate)
        info = await self._found(request, caller)
        most = most_network(self._settings, caller.principal.policy)
        network = read_network(body, body.allow_internet_access, most)
        await caller.backend.set_network(info.id, network)
        return Response(status_code=204)

    async def _found(self, request: Request, caller: ControlCaller) -> SandboxInfo:
        info = await caller.backend.info(request.path_params["sandbox_id"])

        if info.state == "ending":
            raise SandboxNotFoundError(sandbox_id=info.id)

        return info


def _builder(
    builds: Builds,
    files: BuildFiles,
    both: Callable[..., list[Route]],
    answering: Callable[[Handler], ASGIApp],
) -> list[Route]:
    """Returns the routes by which E2B's clients build templates."""
    one = "/templates/{template_id}/builds/{build_id}"
    return [
        *both("/templates/tags", "POST", builds.guarded(templates.assign_tags)),
        *both("/templates/tags", "DELETE", builds.guarded(templates.remove_tags)),
        *both("/templates", "POST", builds.request),
        Route("/v3/templates", answering(builds.request), methods=["POST"]),
        *both("/templates/{template_id}/files/{hash}", "GET", builds.link),
        *both(one, "POST", builds.start),
        *both(f"{one}/status", "GET", builds.status),
        *both(f"{one}/logs", "GET", builds.logs),
        Route(BuildFiles.path, Endpoint(files.upload), methods=["PUT"]),
    ]


def _volumes(
    volumes: Volumes,
    max_upload_bytes: int,
    both: Callable[..., list[Route]],
    answering: Callable[..., ASGIApp],
) -> list[Route]:
    """Returns the routes of volumes and of their files."""
    one, content = "/volumes/{volume_id}", VolumeContent(volumes, max_upload_bytes)
    of_content: list[tuple[str, str, Handler]] = [
        ("path", "GET", content.stat),
        ("path", "PATCH", content.refuse_metadata),
        ("path", "DELETE", content.remove),
        ("dir", "GET", content.list_folder),
        ("dir", "POST", content.make_folder),
        ("file", "GET", content.read_file),
        ("file", "PUT", content.write_file),
    ]
    return [
        *both("/volumes", "POST", volumes.create),
        *both("/volumes", "GET", volumes.list),
        *both(one, "GET", volumes.describe),
        *both(one, "DELETE", volumes.delete),
        *(
            Route(
                f"/volumecontent/{{volume_id}}/{name}",
                answering(handler, volumes.of_content),
                methods=[method],
            )
            for name, method, handler in of_content
        ),
    ]


class Endpoint:
    """An ASGI app that answers requests, and turns errors into E2B's form.

    Args:
        answer: Returns the response to a request.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await answered(scope, receive, send, self._answer)


def _ends_before(info: SandboxInfo, seconds: float) -> bool:
    return info.ends_at is not None and info.ends_at.timestamp() < time.time() + seconds
