"""How long kernels last: idle ones end, those that somebody listens to do not, and a new server finds both again."""

from __future__ import annotations

import asyncio

import pytest

from fumehood.dialects.jupyter import kernels as kernels_module
from fumehood.dialects.jupyter.audience import Client
from fumehood.dialects.jupyter.kernels import Kernels
from fumehood.errors import SandboxError
from fumehood.server.assembly import open_services
from fumehood.server.principal import Principal
from fumehood.server.settings import ServerSettings

SECONDS = 60
OWNER = Principal(key_id="owner")


@pytest.fixture
def settings(tmp_path) -> ServerSettings:
    return ServerSettings(state_folder=str(tmp_path / "state"), token="test-token-0123456789", pool_size=0)


def test_an_idle_kernel_ends_and_one_with_a_listener_does_not(settings, monkeypatch):
    monkeypatch.setattr(kernels_module, "IDLE_SECONDS", 1.0)
    monkeypatch.setattr(kernels_module, "_LOOK_SECONDS", 0.1)

    async def scene() -> None:
        async with open_services(settings) as services:
            kernels = Kernels(services)
            heard = await kernels.start(OWNER, None, {})
            heard.audience.join(Client("", services.backend_for(OWNER)))
            unheard = await kernels.start(OWNER, None, {})
            last = Client("", services.backend_for(OWNER))
            unheard.audience.join(last)
            unheard.audience.leave(last)

            async with asyncio.timeout(SECONDS):
                await asyncio.wait(kernels._watches, return_when=asyncio.FIRST_COMPLETED)

            assert unheard.state == "dead"

            with pytest.raises(SandboxError):
                await kernels.find(OWNER, unheard.id)

            # It was there before the other one, so it would have ended before.
            assert await kernels.find(OWNER, heard.id) is heard
            assert heard.state == "idle"

    asyncio.run(scene())


def test_another_server_process_finds_the_kernels_of_the_one_before(settings):
    async def scene() -> None:
        async with open_services(settings) as services:
            first = Kernels(services)
            python, bash = [await first.start(OWNER, name, {}) for name in ("python3", "bash")]
            found = await Kernels(services).all_of(OWNER)
            again = {kernel.id: kernel for kernel in found}

            assert set(again) == {python.id, bash.id}
            assert again[bash.id].spec == bash.spec
            assert again[bash.id].context_id == bash.context_id
            assert again[python.id].context_id == "default"

    asyncio.run(scene())
