"""Each command that a page shows exists, with the options and the number of words that it is shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from fumehood.cli.main import root

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "guides").glob("*.md"),
    *(ROOT / "docs" / "tutorials").glob("*.md"),
]
# What a shell would do before or behind a command.
_ENDS = {"|", ">", ">>", "&&", "||", ";", "&", "2>", "<"}


def _commands(page: Path) -> list[str]:
    """The lines of a page that begin with `fumehood`, in a block or between backquotes, as a reader would type them."""
    text = page.read_text(encoding="utf-8")
    blocks = [block[1] for block in re.finditer(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    blocks += re.findall(r"^    (.+)$", text, re.MULTILINE)
    typed = r"^(?:\$ )?((?:[A-Z_]+=\S+ )*fumehood [a-z].*)$"
    lines = [
        line for block in blocks for line in re.findall(typed, re.sub(r"\\\n *", "", block), re.MULTILINE)
    ]
    return lines + re.findall(r"`(fumehood [a-z][^`\n]*)`", text)


def _fault(line: str) -> str:
    """What is wrong with a command; empty for one that can be typed."""
    words = shlex.split(line, comments=True)
    words = words[words.index("fumehood") + 1 :]
    words = words[: next((at for at, word in enumerate(words) if word in _ENDS), len(words))]
    command: click.Command = root()
    context = click.Context(command)

    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words[0])

        if found is None:
            return f"there is no command {words[0]!r}"

        command, words = found, words[1:]
        context = click.Context(command)

    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {
        "--help"
    }

    for word in words:
        if word == "--" or (command.name == "run" and not word.startswith("-")):
            # From here on the words are the program's.
            break

        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in known:
            return f"`{command.name}` has no option {word!r}"

    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    """A name or an option that was changed is changed on the pages too."""
    faults = {line: fault for line in _commands(page) if (fault := _fault(line))}
    assert faults == {}


def test_the_pages_show_commands() -> None:
    """What is looked for is found: some hundred lines."""
    assert sum(len(_commands(page)) for page in PAGES) > 150
