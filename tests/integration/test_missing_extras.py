"""What the slim install does not bring is named, with the command that brings it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import fumehood.frameworks

COMMAND = "from fumehood.cli.main import main; sys.exit(main([{0!r}]))"
RAISED = "import fumehood.llm\ntry: {0}\nexcept fumehood.InvalidArgumentError as error: sys.exit(str(error))"

# The package that is not there, what needs it, what is said of it, and the extra that brings it.
CASES = {
    "serve": (
        "fastapi",
        COMMAND.format("serve"),
        "`fumehood serve` needs what is not installed: fastapi",
        "server",
    ),
    "mcp": ("mcp", COMMAND.format("mcp"), "`fumehood mcp` needs what is not installed: mcp", "mcp"),
    "chat": ("rich", COMMAND.format("chat"), "`fumehood chat` needs what is not installed: rich", "chat"),
    "kernel": (
        "zmq",
        "from fumehood.cli.main import main; sys.exit(main(['kernel', 'list']))",
        "`fumehood kernel list` needs what is not installed: zmq",
        "kernel",
    ),
    "url": (
        "httpx2",
        RAISED.format("fumehood.Sandbox(url='http://127.0.0.1:1')"),
        "url='http://127.0.0.1:1' needs httpx2, which is not installed",
        "client",
    ),
    "bucket": (
        "obstore",
        RAISED.format("fumehood.ArtifactStore('s3://bucket').put('x', b'x')"),
        "location='s3://bucket' needs obstore, which is not installed",
        "blobs",
    ),
    "model": (
        "anthropic",
        RAISED.format("fumehood.llm.ask('?', model='anthropic:some')"),
        "model='anthropic:some' needs anthropic, which is not installed",
        "anthropic",
    ),
    "provider": (
        "openai",
        RAISED.format("fumehood.llm.OpenAIResponses('some')"),
        "model='openai:some' needs openai, which is not installed",
        "openai",
    ),
    "secret": (
        "cryptography",
        RAISED.format(
            "fumehood.Sandbox(network=fumehood.Network(allow=['a.example'], secrets={'a.example': {'X': 'y'}}))"
        ),
        "network.secrets='a secret for https' needs cryptography, which is not installed",
        "egress",
    ),
}


# The adapter, the package that is not there, and the extra that brings it.
FRAMEWORKS = {
    "ag2": ("ag2", "ag2"),
    "autogen": ("autogen_core", "autogen"),
    "deepagents": ("deepagents", "deepagents"),
    "dspy": ("dspy", "dspy"),
    "google_adk": ("google", "google-adk"),
    "harbor": ("harbor", "harbor"),
    "inspect": ("inspect_ai", "inspect"),
    "langchain": ("langchain_core", "langchain"),
    "llama_index": ("llama_index", "llama-index"),
    "openai_agents": ("agents", "openai-agents"),
    "openai_agents_sandbox": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "pydantic_ai_toolset": ("pydantic_ai", "pydantic-ai"),
    "smolagents": ("smolagents", "smolagents"),
    "swerex": ("swerex", "swe-rex"),
}
# Modules of adapters that need no framework.
SHARED = {"archives", "host_functions", "images", "needed", "terminal_shell"}


def test_every_adapter_names_its_extra(tmp_path):
    """All in one process in which no framework can be imported; the error is one of an import, as programs expect."""
    program = f"""
import importlib, sys

for adapter, (package, extra) in {FRAMEWORKS!r}.items():
    sys.modules[package] = None

    try:
        importlib.import_module("fumehood.frameworks." + adapter)
    except ImportError as error:
        assert "is not installed" in str(error) and package in error.name, error
        assert f"hint: pip install 'fumehood[{{extra}}]'" in str(error), error
    else:
        raise AssertionError(adapter)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    adapters = {path.stem for path in Path(fumehood.frameworks.__path__[0]).glob("*.py")}
    assert adapters - {"__init__", *SHARED} == set(FRAMEWORKS)


@pytest.mark.parametrize("case", CASES)
def test_a_package_that_is_not_there(case, tmp_path):
    """In a process in which it cannot be imported."""
    package, program, said, extra = CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None\n{program}"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert said in done.stderr, done.stderr
    assert f"hint: pip install 'fumehood[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
