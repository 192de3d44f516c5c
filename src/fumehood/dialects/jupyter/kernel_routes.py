"""The REST routes of kernels and kernel specs, and those that describe the server.

They answer as a Jupyter server does, within what the caller's key may do.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fumehood.dialects.jupyter.answers import answering
from fumehood.dialects.jupyter.auth import JupyterAuthenticator
from fumehood.dialects.jupyter.bodies import NewKernel, body_of
from fumehood.dialects.jupyter.kernel import Kernel
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.dialects.jupyter.messages import timestamp
from fumehood.dialects.jupyter.spec import DEFAULT_SPEC, LOGO, LOGO_NAME, all_specs, find_spec
from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import read_body
from fumehood.server.principal import Principal
from fumehood.server.services import Services

# The version of Jupyter Server whose API this is.
_API_VERSION = "2.17.0"


class KernelRoutes:
    """Answers `/api`, `/api/kernelspecs` and `/api/kernels`.

    Args:
        services: The services of the handlers.
        callers: Authenticates callers.
        kernels: The kernels.
    """

    def __init__(self, services: Services, callers: JupyterAuthenticator, kernels: Kernels) -> None:
        self._services = services
        self._callers = callers
        self._kernels = kernels

    def routes(self) -> list[Route]:
        """Returns the routes."""
        one = "/api/kernels/{kernel_id}"
        return [
            Route("/api", answering(self._version), methods=["GET"]),
            Route("/api/status", answering(self._status), methods=["GET"]),
            Route("/api/me", answering(self._me), methods=["GET"]),
            Route("/api/kernelspecs", answering(self._specs), methods=["GET"]),
            Route("/api/kernelspecs/{name}", answering(self._spec), methods=["GET"]),
            Route("/kernelspecs/{name}/{resource}", answering(self._resource), methods=["GET"]),
            Route("/api/kernels", answering(self._list), methods=["GET"]),
            Route("/api/kernels", answering(self._start), methods=["POST"]),
            Route(one, answering(self._describe), methods=["GET"]),
            Route(one, answering(self._end), methods=["DELETE"]),
            Route(f"{one}/interrupt", answering(self._interrupt), methods=["POST"]),
            Route(f"{one}/restart", answering(self._restart), methods=["POST"]),
        ]

    async def _version(self, request: Request) -> Response:
        # Open without a token, as with Jupyter: clients call it before they have one. A token in the address is
        # removed.
        self._callers.hide_token(request)
        return JSONResponse({"version": _API_VERSION})

    async def _status(self, request: Request) -> Response:
        kernels = await self._kernels.all_of(await self._callers.principal_of(request))
        started = self._kernels.started
        latest = max((kernel.last_activity for kernel in kernels), default=started)
        return JSONResponse(
            {
                "started": timestamp(started),
                "last_activity": timestamp(latest),
                "connections": sum(len(kernel.audience) for kernel in kernels),
                "kernels": len(kernels),
            }
        )

    async def _me(self, request: Request) -> Response:
        name = (await self._callers.principal_of(request)).key_id
        identity = {
            "username": name,
            "name": name,
            "display_name": name,
            "initials": name[:2].upper(),
            "avatar_url": None,
            "color": None,
        }
        return JSONResponse({"identity": identity, "permissions": {}})

    # -- specs

    async def _specs(self, request: Request) -> Response:
        await self._callers.principal_of(request)
        specs = await asyncio.to_thread(all_specs)
        models = {name: spec.model() for name, spec in specs.items()}
        return JSONResponse({"default": DEFAULT_SPEC, "kernelspecs": models})

    async def _spec(self, request: Request) -> Response:
        await self._callers.principal_of(request)
        try:
            spec = await asyncio.to_thread(find_spec, request.path_params["name"])
        except InvalidArgumentError as error:
            return JSONResponse({"message": error.message, "reason": "Not Found"}, 404)

        return JSONResponse(spec.model())

    async def _resource(self, request: Request) -> Response:
        await self._callers.principal_of(request)

        if request.path_params["resource"] != LOGO_NAME:
            return JSONResponse({"message": "no such resource", "reason": "Not Found"}, 404)

        return Response(LOGO, media_type="image/svg+xml")

    # -- kernels

    async def _list(self, request: Request) -> Response:
        kernels = await self._kernels.all_of(await self._callers.principal_of(request))
        return JSONResponse([kernel.model() for kernel in kernels])

    async def _start(self, request: Request) -> Response:
        caller = await self._callers.principal_of(request)
        wanted = read_body(NewKernel, await body_of(request))
        name = DEFAULT_SPEC if wanted.name is None else wanted.name
        kernel = await self._kernels.start(caller, name, wanted.envs or {})
        return JSONResponse(kernel.model(), 201, headers={"Location": f"/api/kernels/{kernel.id}"})

    async def _describe(self, request: Request) -> Response:
        _, kernel = await self._find(request)
        return JSONResponse(kernel.model())

    async def _end(self, request: Request) -> Response:
        caller, kernel = await self._find(request)
        await kernel.end(self._services.backend_for(caller))
        return Response(status_code=204)

    async def _interrupt(self, request: Request) -> Response:
        caller, kernel = await self._find(request)
        await kernel.interrupt(self._services.backend_for(caller))
        return Response(status_code=204)

    async def _restart(self, request: Request) -> Response:
        caller, kernel = await self._find(request)
        await kernel.restart(self._services.backend_for(caller))
        return JSONResponse(kernel.model())

    async def _find(self, request: Request) -> tuple[Principal, Kernel]:
        caller = await self._callers.principal_of(request)
        return caller, await self._kernels.find(caller, request.path_params["kernel_id"])
