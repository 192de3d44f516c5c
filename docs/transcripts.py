"""Writes docs/transcripts.md: what a model reads of ten programs, beside what plain IPython shows of them.

Both run in a sandbox without a network. Tokens are those of cl100k_base, counted by the package js-tiktoken of the
tests' modules, which needs node and no network. Run by hand after a change of the texts for models:
tests/llm/test_transcripts.py holds the page to what models read, and tests/llm/test_text_bounds.py the bounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fumehood.llm import CodeInterpreter

_PAGE = Path(__file__).parent / "transcripts.md"
_MODULES = Path(__file__).parents[1] / "tests" / "external_clients"
_SHOWN_LINES, _LINE_CHARACTERS = 12, 110
_COUNT = """
const { getEncoding } = require("js-tiktoken");
const encoding = getEncoding("cl100k_base");
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => encoding.encode(text, [], []).length)));
"""
_PLAIN = ["python", "-m", "IPython", "--colors=NoColor", "--no-banner", "--no-confirm-exit", "-c"]
_TABLE = "import pandas as pd\ndf = pd.DataFrame({'name': ['x'], 'mass': [2]})\n"
PROGRAMS = {
    "An error": "x = 1\n1/0",
    "A column that is not there": f"{_TABLE}df['weight']",
    "A request without a network": "import requests\nrequests.get('https://example.com')",
    "An installation without a network": "!pip install polars",
    "Endless recursion": "def f(n):\n    return f(n + 1)\nf(0)",
    "A flood of output": "for i in range(100_000):\n    print(i)",
    "A module that is not there": "import nosuch",
    "A file of another name": "open('/mnt/data/penguin.csv')",
    "A hundred equal warnings": "import warnings\nwarnings.simplefilter('always')\nfor i in range(100):\n    warnings.warn(f'slow {i * 0}', stacklevel=1)",
    "A chart": "import matplotlib.pyplot as plt\nplt.hist([1, 2, 2, 3, 3, 3])",
}


def main() -> None:
    """Runs the programs and writes the page."""
    with opened() as interpreter:
        read = read_by_models(interpreter)
        plain = [_plain(interpreter, code) for code in PROGRAMS.values()]

    counts = count_tokens([*plain, *read])
    before, after = counts[: len(plain)], counts[len(plain) :]
    _PAGE.write_text(_page(plain, read, before, after), encoding="utf-8")


@contextmanager
def opened() -> Iterator[CodeInterpreter]:
    """Opens the sandbox in which the programs run."""
    with CodeInterpreter(network="none") as interpreter:
        interpreter.upload("penguins.csv", "species,mass\nAdelie,3700\n")
        yield interpreter


def read_by_models(interpreter: CodeInterpreter) -> list[str]:
    """Runs the programs and returns what a model reads of each."""
    return [interpreter.run(code).text for code in PROGRAMS.values()]


def _plain(interpreter: CodeInterpreter, code: str) -> str:
    """Returns what IPython writes of a program, as a sandbox shows its terminal."""
    done = interpreter.sandbox.run_code(
        "import subprocess\n"
        f"done = subprocess.run({[*_PLAIN, code]!r}, capture_output=True, text=True, cwd='/mnt/data')\n"
        "open('/tmp/shown', 'w').write(done.stdout + done.stderr)"
    )
    assert done.error is None, done.error
    return interpreter.sandbox.files.read("/tmp/shown").strip()


def count_tokens(texts: list[str]) -> list[int]:
    """Counts the tokens of each text."""
    done = subprocess.run(
        ["node", "-e", _COUNT],
        cwd=_MODULES,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))


def _page(plain: list[str], read: list[str], before: list[int], after: list[int]) -> str:
    rows = [f"| {name} | {old:,} | {new:,} |" for name, old, new in zip(PROGRAMS, before, after, strict=True)]
    table = "| program | IPython | fumehood |\n|---|---:|---:|\n" + "\n".join(rows)
    total = f"| **all ten** | **{sum(before):,}** | **{sum(after):,}** |"
    parts = [
        f"## {name}\n\n{as_block(code)}\nIPython, {old:,} tokens:\n\n{as_block(was)}\n"
        f"fumehood, {new:,} tokens:\n\n{as_block(now)}"
        for (name, code), was, now, old, new in zip(PROGRAMS.items(), plain, read, before, after, strict=True)
    ]
    return f"{_HEAD}\n{table}\n{total}\n\n" + "\n".join(parts)


_HEAD = """# Ten transcripts

What a model pays for what it reads. Ten small programs, each run in a sandbox without a network: as plain IPython shows
it, and as the [tool for models](guides/llm.md) does. Tokens are those of `cl100k_base`; long texts are cut on this page
and counted whole. Written by `docs/transcripts.py`; do not edit.
"""


def as_block(text: str) -> str:
    """Returns a text as a block, its middle left out where it is long."""
    lines = [
        textwrap.shorten(line, _LINE_CHARACTERS) if len(line) > _LINE_CHARACTERS else line
        for line in text.splitlines()
    ]

    if len(lines) > _SHOWN_LINES:
        half = _SHOWN_LINES // 2
        lines = [
            *lines[:half],
            f"[... {len(lines) - 2 * half:,} lines are left out here ...]",
            *lines[-half:],
        ]

    body = "\n".join(line.rstrip() for line in lines).replace("```", "'''")
    return f"<!-- not run: a transcript -->\n```text\n{body}\n```\n"


if __name__ == "__main__":
    if "--write" not in sys.argv:
        sys.exit("usage: python docs/transcripts.py --write")

    main()
