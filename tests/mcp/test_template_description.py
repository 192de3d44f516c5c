"""What a model learns of a template: its Python, well-known packages and languages, each with its version."""

from __future__ import annotations

import platform
from importlib.metadata import version

from mcp import Client

from fumehood.api.sandbox import Sandbox
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.mcp.caller import Caller
from fumehood.mcp.server import make_server
from fumehood.mcp.setup import Setup
from fumehood.mcp.toolbox import TOOL_NAMES
from fumehood.portal import Portal
from fumehood.values.template import Template

from .conftest import play, run, text_of

SPOKEN = {"python": "3.11.2", "javascript": "24.11", "cpp": "12.2.0", "unheard": "1"}
WORDS = "languages: Python 3.11.2, JavaScript 24.11; as commands: C++ 12.2.0, unheard 1"


def test_a_template_with_languages_is_described_where_a_sandbox_of_it_begins() -> None:
    """Once by run_code, whose later answers are not longer for it; by create_sandbox with packages, and in lists."""
    portal = Portal()

    async def scene() -> None:
        caller = Caller(backend=backend, keeps=True, setup=Setup(template="spoken"), tools=TOOL_NAMES)

        async with Client(make_server(caller)) as client:
            assert text_of(await run(client, "6 * 7")) == f"42\n[{WORDS}]"
            assert text_of(await run(client, "6 * 7")) == "42"

            made = await client.call_tool("create_sandbox", {})
            first, has = text_of(made).splitlines()
            assert first.endswith(f", {WORDS}")
            assert has.startswith(f"Python {platform.python_version()}. Installed packages: ")
            assert f"numpy {'.'.join(version('numpy').split('.')[:2])}, " in has
            assert made.structured_content["has"] == has
            assert made.structured_content["languages"] == SPOKEN

            lines = text_of(await client.call_tool("list_sandboxes", {})).splitlines()
            assert [line.endswith(f", {WORDS}") for line in lines] == [True, True]

            # Control: the default template was made ready for none; what it has is told all the same.
            plain = await client.call_tool("create_sandbox", {"template": "default"})
            assert "languages" not in text_of(plain)
            assert plain.structured_content["languages"] == {}
            assert plain.structured_content["has"] == has

    try:
        backend = make_backend(EngineSettings(pool_size=0, preload=()), portal)

        # A template is known by its name once a sandbox was made from it.
        with Sandbox(
            Template(name="spoken", preload=(), language_versions=SPOKEN), backend=backend
        ) as sandbox:
            assert sandbox.get_info().languages == SPOKEN

        play(scene)
    finally:
        portal.close()
