"""Sandboxes by the unmodified SDKs of E2B, on a real server, told where it is by E2B's own variables alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from e2b_code_interpreter import Sandbox

SECONDS = 30


@pytest.fixture(scope="module", autouse=True)
def addresses(server) -> Iterator[dict[str, str]]:
    """The variables that a user of E2B sets; nothing else of the SDKs is changed."""
    names = ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL")
    variables = {**dict.fromkeys(names, server.url), "E2B_API_KEY": server.token}

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)

        yield variables


@pytest.fixture(scope="module")
def shared(addresses) -> Iterator[Sandbox]:
    """One sandbox for the tests of a module that leave it as it was."""
    sandbox = Sandbox.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """A sandbox for one test."""
    sandbox = Sandbox.create(timeout=600)
    yield sandbox
    sandbox.kill()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    """Requests that no SDK would send."""
    with httpx.Client(base_url=server.url, timeout=SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def new_key(server, http) -> Callable[..., str]:
    """Makes keys, and returns their tokens."""

    def make(**policy: Any) -> str:
        body = {"name": "a tenant", "scopes": ["sandboxes", "execute"], "policy": policy}
        answer = http.post("/v1/keys", json=body, headers=server.headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    return make


@pytest.fixture(scope="session")
def headers_of() -> Callable[..., dict[str, str]]:
    """The headers by which the SDKs reach a sandbox."""

    def make(sandbox: Sandbox, port: int = 49983, **others: str) -> dict[str, str]:
        return {
            "E2b-Sandbox-Id": sandbox.sandbox_id,
            "E2b-Sandbox-Port": str(port),
            "X-Access-Token": sandbox._envd_access_token or "",
            **others,
        }

    return make


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """Waits until a condition holds, and returns what it returned."""

    def wait(condition: Callable[[], Any]) -> Any:
        end = time.monotonic() + SECONDS

        while not (found := condition()):
            assert time.monotonic() < end, "it never came"
            time.sleep(0.02)

        return found

    return wait
