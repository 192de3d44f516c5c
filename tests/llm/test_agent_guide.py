"""The guide of agents runs as it stands, with models that follow a script at the other end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.snippets import snippets
from tests.llm.scripted_server import Call, Reply, ScriptedServer

ROOT = Path(__file__).parents[2]
LOAD = "import pandas as pd\nframe = pd.read_csv('/mnt/data/penguins.csv')\nlen(frame)"
MEANS = "frame.groupby('species').mean(numeric_only=True).to_csv('/mnt/data/means.csv')"


def test_the_guide_runs(tmp_path):
    """Its blocks, in order, in a folder that has the data they name."""
    text = (ROOT / "docs" / "guides" / "agents.md").read_text(encoding="utf-8")
    blocks = [snippet.code for snippet in snippets(text) if not snippet.reason]
    shutil.copy(ROOT / "examples" / "data" / "penguins.csv", tmp_path)
    (tmp_path / "page.py").write_text("\n\n".join(blocks), encoding="utf-8")

    openai = (
        Reply(calls=[Call(LOAD)]),
        Reply(text="Gentoo."),
        Reply(text="I print.", calls=[Call("for number in range(3): print(number)\nnumber")]),
        Reply(text="Printed."),
        Reply(text="Hello."),
        Reply(text="Hello.", tokens=(1_000_000, 0)),
    )
    anthropic = (
        Reply(calls=[Call(LOAD)]),
        Reply(text="Loaded."),
        Reply(calls=[Call(MEANS)]),
        Reply(text="Written."),
    )

    with (
        ScriptedServer("openai", *openai, model="gpt-6.2-sol") as first,
        ScriptedServer("anthropic", *anthropic, model="claude-sonnet-5-5") as second,
    ):
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=os.environ
            | {
                "PYTHONWARNINGS": "error",
                "OPENAI_API_KEY": "scripted-key",
                "ANTHROPIC_API_KEY": "scripted-key",
            }
            | {"OPENAI_BASE_URL": first.base_url, "ANTHROPIC_BASE_URL": second.base_url},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    printed = done.stdout.splitlines()
    assert printed[:2] == ["Gentoo.", "answered"]
    assert any(line.startswith("/mnt/data/means.csv ") for line in printed)
    assert "--- runs" in printed
    assert float(printed[-1]) > 1.4
    assert (tmp_path / "talk.ipynb").exists()
