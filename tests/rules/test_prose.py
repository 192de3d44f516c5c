"""Prose in the field's words: docstrings, comments and pages say what a task, process, thread or caller does.

Counted are words that hide the subject of a sentence (`_ODD`). Each package has a number in `prose.toml`, and it may
only fall: a change that adds such a word fails, and one that removes some lowers the number along with it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COUNTS = Path(__file__).with_name("prose.toml")
GLOSSARY = DOCS / "glossary.md"
MAX_GLOSSARY_ENTRIES = 40

_ODD = re.compile(
    r"\b(?:whoever|whomever|nobody|nobody's|somebody|somebody's|anybody|anybody's|everybody|whom)\b"
    # The word comes first, so that what stands before it is looked at where the word is, and nowhere else.
    r"|\bwho(?<!user who)(?<!users who)(?<!person who)(?<!people who)(?<!reader who)(?<!author who)"
    r"(?<!operator who)(?<!attacker who) (?!wrote\b)[a-z]+"
    r"|\b(?:is|are|was|were|be|been|being) told\b"
    r"|\bwhat c[ao]me(?:s|) of\b"
    r"|\bmak(?:es|e|ing) way\b"
    r"|\bin one go\b"
    r"|\b(?:says?|said|tells?) so\b"
    r"|\bthat (?:is|are) none\b"
    r"|\blets? go of\b"
    r"|\bsee(?:s|n|) off\b"
    r"|\b(?:founders?|keepers?|wardens?|heirs|epitaphs?|farewells?|tenures?)\b",
    re.IGNORECASE,
)
# An entry without its noun: the reader must look for what "It" or "Of" belongs to in the summary, or in the code.
_NOUNLESS = re.compile(
    r"^ +(?:\w*(?:Error|Exception): (?:It|They|One of them|There (?:is|are) no(?:ne| such))\b"
    r"|\w+: (?:Of|Those|Whose)\b).*",
    re.MULTILINE,
)
# A name in backquotes is no prose: `nobody` is a user of Unix.
_QUOTED = re.compile(r"``.*?``|`[^`\n]*`")
_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# Written by a tool, from text that is counted where it comes from.
_GENERATED = {
    ROOT / "src/fumehood/api/sandbox.py",
    DOCS / "http-reference.md",
    *DOCS.glob("reference*.md"),
}


def odd_words(text: str) -> int:
    return len(_ODD.findall(" ".join(_QUOTED.sub(" ", text).split())))


def _docstrings(source: str) -> list[str]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)
    ]


def _prose_of_source(path: Path) -> list[str]:
    """The docstrings of a module, and its comments."""
    source = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
    # Comments go on over several lines, so that a phrase may be cut in two.
    return [*_docstrings(source), " ".join(comments)]


def _package(path: Path) -> str:
    """The folder of a module that has a number of its own: that of `fumehood`, one below it."""
    parts = path.relative_to(ROOT / "src").parts[:-1]
    return ".".join(parts[:2] if parts[0] == "fumehood" else parts[:1])


def _counts() -> dict[str, int]:
    counts: Counter[str] = Counter()

    for path in sorted((ROOT / "src").rglob("*.py")):
        if path not in _GENERATED:
            counts[_package(path)] += sum(odd_words(text) for text in _prose_of_source(path))

    for page in sorted((*ROOT.glob("*.md"), *DOCS.rglob("*.md"))):
        if page not in _GENERATED:
            folder = page.parent.relative_to(ROOT).as_posix()
            counts["pages" if folder == "." else folder] += odd_words(
                _BLOCK.sub("", page.read_text(encoding="utf-8"))
            )

    return dict(counts)


def test_odd_words_become_fewer():
    """No package has more of them than is written down, and what is written down is what there is."""
    allowed = tomllib.loads(COUNTS.read_text(encoding="utf-8"))["odd_words"]
    counts = _counts()
    risen = [
        f"{name}: {counts.get(name, 0)} odd words, {allowed.get(name, 0)} allowed; reword the new ones"
        for name in sorted({*counts, *allowed})
        if counts.get(name, 0) > allowed.get(name, 0)
    ]
    fallen = [
        f'write `"{name}" = {counts.get(name, 0)}` into {COUNTS.relative_to(ROOT)}, in place of {allowed[name]}'
        for name in sorted(allowed)
        if counts.get(name, 0) < allowed[name]
    ]
    assert risen == []
    assert fallen == []


def test_entries_of_docstrings_name_their_subject():
    """`Raises` says "The file does not exist" and not "It is not there"; `Args` begins with a noun."""
    assert _NOUNLESS.findall(
        "    KeyError: There is none.\n    OSError: It is not there.\n    size: Of all files."
    )
    nounless = [
        f"{path.relative_to(ROOT)}: {entry.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for docstring in _docstrings(path.read_text(encoding="utf-8"))
        for entry in _NOUNLESS.findall(docstring)
    ]
    assert nounless == []


def _glossary() -> list[list[str]]:
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]


def test_the_glossary_is_short():
    """It maps our words to those of other projects, each in one row, and has few enough to be read."""
    rows = _glossary()
    assert 0 < len(rows) <= MAX_GLOSSARY_ENTRIES
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), key=str.lower)


def test_each_term_of_the_glossary_is_in_use():
    """A word that nothing uses any more leaves the glossary."""
    pages = [page for page in DOCS.rglob("*.md") if page not in _GENERATED | {GLOSSARY}]
    sources = [path for path in (ROOT / "src").rglob("*.py") if path not in _GENERATED]
    text = " ".join(path.read_text(encoding="utf-8").lower() for path in (*pages, *sources))
    terms = [term.strip().lower() for row in _glossary() for term in row[0].split(",")]
    assert [term for term in terms if not re.search(rf"\b{re.escape(term)}", text)] == []


if __name__ == "__main__":
    lines = [f'"{name}" = {count}\n' for name, count in sorted(_counts().items())]
    head = (
        "# Odd words of each package: `python tests/rules/test_prose.py` writes it anew. Numbers only fall.\n"
    )
    COUNTS.write_text(f"{head}[odd_words]\n{''.join(lines)}", encoding="utf-8")
