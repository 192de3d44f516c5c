"""What the slim install does not bring is named, with the command that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = "from fumehood.cli.main import main; sys.exit(main([{0!r}]))"
RAISED = "import fumehood.llm\ntry: {0}\nexcept fumehood.InvalidArgumentError as error: sys.exit(str(error))"

# The package that is not there, what needs it, what is said of it, and the extra that brings it.
CASES = {
    "serve": (
        "fastapi",
        COMMAND.format("serve"),
        "command='serve' needs what is not installed: fastapi",
        "server",
    ),
    "mcp": ("mcp", COMMAND.format("mcp"), "command='mcp' needs what is not installed: mcp", "mcp"),
    "chat": ("rich", COMMAND.format("chat"), "command='chat' needs what is not installed: rich", "chat"),
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
    "secret": (
        "cryptography",
        RAISED.format(
            "fumehood.Sandbox(network=fumehood.Network(allow=['a.example'], secrets={'a.example': {'X': 'y'}}))"
        ),
        "network.secrets='a secret for https' needs cryptography, which is not installed",
        "egress",
    ),
}


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
