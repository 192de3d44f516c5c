"""Which runtime makes a sandbox: one that reaches the level asked for, or none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fumehood.engine.admission import AdmissionRules
from fumehood.engine.provisioner import EngineConfig
from fumehood.engine.supervisor import Supervisor
from fumehood.errors import IsolationUnavailableError
from fumehood.runtimes.landlock.runtime import LandlockRuntime
from fumehood.templates.store import TemplateStore
from fumehood.values.requests import SandboxSpec


def test_an_engine_whose_runtimes_are_weaker_starts_nothing(tmp_path: Path) -> None:
    """Landlock is no substitute for namespaces: the error names both levels."""

    async def ask() -> None:
        config = EngineConfig(runtime=LandlockRuntime(), pool_size=0, store=TemplateStore(str(tmp_path)))
        await Supervisor(config, AdmissionRules(max_sandboxes=1), "abcdef").create(
            SandboxSpec(isolation="namespaces")
        )

    with pytest.raises(IsolationUnavailableError, match="'landlock-only'") as refused:
        asyncio.run(ask())

    assert refused.value.layer == "namespaces"
