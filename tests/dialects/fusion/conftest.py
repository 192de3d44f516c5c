"""Unmodified clients of SandboxFusion: verl's own function and ByteDance's SDK, each installed without its needs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests

PACKAGES = Path(__file__).parents[2] / "external_clients" / "packages"
SECONDS = 60


def load(name: str, path: Path) -> ModuleType:
    """Import one package of the folder under its name, whatever else that folder has."""
    if not path.is_file():
        pytest.skip(f"needs {name} in tests/external_clients: `make test` installs it")

    places = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def verl() -> ModuleType:
    """verl's module of rewards by SandboxFusion."""
    return load(
        "verl_sandbox_fusion", PACKAGES / "verl" / "utils" / "reward_score" / "sandbox_fusion" / "__init__.py"
    )


@pytest.fixture(scope="session")
def sdk() -> ModuleType:
    """ByteDance's SDK."""
    load("tenacity", PACKAGES / "tenacity" / "__init__.py")
    return load("sandbox_fusion", PACKAGES / "sandbox_fusion" / "__init__.py")


@pytest.fixture(scope="session")
def address(server: Any) -> str:
    """Where verl is told to find the service: the token is in the address."""
    return str(server.url).replace("http://", f"http://verl:{server.token}@") + "/run_code"


@pytest.fixture
def call(server: Any) -> Callable[..., dict[str, Any]]:
    """Posts to `/run_code`, or to `path`, and gives the answer's body."""

    def post(path: str = "/run_code", **body: Any) -> dict[str, Any]:
        answer = requests.post(f"{server.url}{path}", json=body, headers=server.headers, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    return post
