"""The table of languages: what it says of itself, and what the guide for people says of it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.values.checks import check_language
from fumehood.values.languages import (
    ABSENT,
    CONTEXT_LANGUAGES,
    LANGUAGES,
    STATEFUL_LANGUAGES,
    ContextName,
    Language,
    StatefulName,
    find_language,
    language_of_file,
)

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "languages.md"


def test_the_types_of_callers_name_what_the_table_has():
    """A name that a type checker lets pass is one that runs."""
    names = [name for language in CONTEXT_LANGUAGES.values() for name in language.names]

    assert sorted(get_args(Language)) == sorted(names)
    assert list(get_args(ContextName)) == list(CONTEXT_LANGUAGES)
    assert list(get_args(StatefulName)) == list(STATEFUL_LANGUAGES)
    assert len(set(names)) == len(names)
    suffixes = [suffix for language in CONTEXT_LANGUAGES.values() for suffix in language.suffixes]
    assert len(set(suffixes)) == len(suffixes)


def test_a_language_is_found_by_each_of_its_names():
    """And by the name of a file; the port gets its one name."""
    assert check_language("js") == "javascript"
    assert find_language("py") is CONTEXT_LANGUAGES["python"]
    assert find_language("abap") is None
    assert find_language(None) is None
    assert language_of_file("a.b/main.ts") is CONTEXT_LANGUAGES["typescript"]
    assert language_of_file("main") is None

    with pytest.raises(InvalidArgumentError, match="abap"):
        check_language("abap")


def test_each_language_of_contexts_is_one_of_programs_too():
    """Under the same name; and what is absent is no language."""
    assert set(CONTEXT_LANGUAGES) <= set(LANGUAGES)
    assert not set(ABSENT) & set(CONTEXT_LANGUAGES)

    with pytest.raises(InvalidArgumentError, match="lean is not there: its packages are downloaded"):
        check_language("lean")


def test_the_guide_says_what_the_table_says():
    """Names, needs and abilities, row by row."""
    rows = [line for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    found = {
        cells[0]: cells[1:] for cells in ([cell.strip() for cell in row[2:-1].split("|")] for row in rows)
    }

    for language in CONTEXT_LANGUAGES.values():
        if not language.keeps_state:
            names, program, packages = found[language.title]
            assert names == ", ".join(f"`{name}`" for name in language.names)
            assert program == language.needs
            assert packages == (", ".join(f"`{one}`" for one in language.debian) or "none")
            continue

        names, needs, _, checkpoints, tools = found[language.title]

        assert names == ", ".join(f"`{name}`" for name in language.names)
        assert needs == (language.needs or "nothing")
        assert checkpoints == ("no" if language.why_no_checkpoints else "yes")
        assert tools == ("yes" if language.has_tools else "no")
