"""Runs the snippets of one page, in order, as its reader would; a program: `python snippets.py PAGE.md`.

Blocks of Python share one namespace and blocks of `sh` one folder. Ends with 1, and a line for each difference, when a
block fails or when what it prints is not what the page shows: the block of `text` right below it, or, behind a call of
`print`, the comment, which may go on with a colon and an explanation. `...` stands for any text, and any white space
for any other.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a reader can run. Anything else (json, toml, a picture of text) is read only.
LANGUAGES = ("python", "sh")
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?^```(?P<language>\w+)\n(?P<code>.*?)^```\n"
    r"(?:\n*^```text\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Snippet:
    """A block of a page that its reader can run.

    Attributes:
        language: One of `LANGUAGES`.
        code: What to run.
        line: The line of the page on which the code begins.
        reason: Why it is not run; empty for one that is.
        shown: What the page says that it prints; None where it says nothing.
    """

    language: str
    code: str
    line: int
    reason: str
    shown: str | None


def snippets(text: str) -> list[Snippet]:
    """The snippets of a page, in order."""
    found = []

    for block in _BLOCK.finditer(text):
        if block["language"] in LANGUAGES:
            line = text.count("\n", 0, block.start("code")) + 1
            found.append(
                Snippet(block["language"], block["code"], line, block["reason"] or "", block["shown"])
            )

    return found


def shown_behind_prints(code: str) -> dict[int, str]:
    """The comments behind calls of `print`, by the line of the call's end."""
    comments = {
        token.start[0]: token.string.lstrip("# ").rstrip()
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    ends = {
        call.end_lineno: call.lineno
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "print"
    }
    return {ends[line]: text for line, text in comments.items() if line in ends}


def is_as_shown(printed: str, shown: str) -> bool:
    """Whether a text is what a page shows."""
    pattern = ".*?".join(re.escape(part.strip()) for part in _on_one_line(shown).split("..."))
    return re.fullmatch(pattern, _on_one_line(printed)) is not None


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _differences_of_python(snippet: Snippet, namespace: dict[str, Any], name: str) -> Iterator[str]:
    printed: dict[int, list[str]] = {}
    output = io.StringIO()
    really_print = builtins.print

    def noting(*values: object, **options: Any) -> None:
        really_print(*values, **options)
        line = sys._getframe(1)

        if line.f_code.co_filename == name:
            printed.setdefault(line.f_lineno, []).append(" ".join(map(str, values)))

    namespace["print"] = noting

    with redirect_stdout(output):
        exec(compile(snippet.code, name, "exec"), namespace)

    if snippet.shown is not None and not is_as_shown(output.getvalue(), snippet.shown):
        yield f"prints\n{output.getvalue()}and the page shows\n{snippet.shown}"

    for line, shown in shown_behind_prints(snippet.code).items():
        text = ", ".join(printed.get(line, []))

        if not (is_as_shown(text, shown) or shown.startswith(f"{_on_one_line(text)}: ")):
            yield f"line {snippet.line + line - 1} prints {text!r}, and the page shows {shown!r}"


def _differences_of_shell(snippet: Snippet) -> Iterator[str]:
    envs = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", snippet.code],
        env=envs,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    if done.returncode != 0:
        yield f"line {snippet.line}: ends with {done.returncode}: {done.stdout}{done.stderr}"
    elif snippet.shown is not None and not is_as_shown(done.stdout, snippet.shown):
        yield f"prints\n{done.stdout}and the page shows\n{snippet.shown}"


def differences(page: Path) -> Iterator[str]:
    """Runs a page, and yields what differs from what it shows."""
    namespace: dict[str, Any] = {"__name__": "__main__"}

    for number, snippet in enumerate(snippets(page.read_text(encoding="utf-8")), start=1):
        if snippet.reason:
            continue

        if snippet.language == "sh":
            found = _differences_of_shell(snippet)
        else:
            found = _differences_of_python(snippet, namespace, f"{page.name}, snippet {number}")

        yield from (f"snippet {number} of {page.name}: {difference}" for difference in found)


if __name__ == "__main__":
    different = list(differences(Path(sys.argv[1])))
    print(*different, sep="\n")
    sys.exit(bool(different))
