"""Splits a cell of IPython into Python code and shell commands.

IPython's own transformer looks at the whole cell again for every magic, which hostile code turns into minutes; this
reader goes over the cell once. Syntax that it does not know is reported, and never taken as harmless. Lines keep their
numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fumehood.advice.rules import words

_LEXEME = re.compile(
    r"#[^\n]*"
    r"|(?P<open_triple>'''|\"\"\")"
    r"|'(?:[^'\\\n]|\\.)*+'?|\"(?:[^\"\\\n]|\\.)*+\"?"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|\\\n|(?P<end>\n)|[^#'\"()\[\]{}\\\n]+|\\",
    re.DOTALL,
)
_TRIPLE = {
    quotes: re.compile(rf"(?:[^\\{quotes[0]}]|\\.|{quotes[0]}(?!{quotes[0] * 2}))*+{quotes}", re.DOTALL)
    for quotes in ("'''", '"""')
}
_ESCAPED_LINE = re.compile(r"[ \t\f]*(?P<sign>!!?|%%?|\?\??|[,;/])(?P<rest>(?:[^\\\n]|\\\n|\\)*+)")
_ASSIGNED = re.compile(
    r"(?P<target>[ \t\f]*[\w.,*\[\]'\" \t]{1,200}=[ \t]*)(?P<sign>[!%])(?P<rest>(?:[^\\\n]|\\\n|\\)*+)"
)
_HELP = re.compile(r"[ \t]*\?{0,2}[%\w.*\[\]-]{1,200}\?{0,2}[ \t]*(?=\n|$)")
_PROMPT = re.compile(r"^(?:[ \t]*(?:>>>|\.\.\.)(?: |$)|In \[\d+\]: |[ \t]*\.{3,}: ?)", re.MULTILINE)
_MAGIC = re.compile(r"%*([\w.]+)[ \t]*(.*)", re.DOTALL)
_MAGIC_OPTIONS = re.compile(r"(?:[ \t]*-[a-zA-Z]+(?:[ \t]*\d+)?(?=[ \t]|$))*[ \t]*")

_RUN_PYTHON = frozenset(
    {"time", "timeit", "prun", "debug", "capture", "mprun", "memit", "lprun", "python", "python3"}
)
_RUN_SHELL = frozenset({"bash", "sh", "script", "sx", "system", "!", "killbgscripts"})
_SHELLS = frozenset({"sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash"})
_INSTALL = frozenset({"pip", "conda", "mamba", "micromamba", "uv"})
_HOLD_TEXT = frozenset(
    {"html", "HTML", "latex", "markdown", "svg", "SVG", "javascript", "js", "writefile", "file"}
)
_HARMLESS = frozenset(
    words(
        "matplotlib pylab who who_ls whos pwd ls ll autoreload precision pinfo pinfo2 pdoc psource pdef "
        "psearch history "
        "hist reset reset_selective config xmode colors lsmagic magic quickref page pprint doctest_mode "
        "env set_env dirs "
        "store recall notebook gui cat head more less man mkdir"
    )
)
_UNSEEN = frozenset(
    {"run", "load", "loadpy", "edit", "macro", "rerun", "load_ext", "reload_ext", "alias", "rehashx", "cd"}
)


@dataclass(slots=True)
class ParsedCell:
    """The parts of a cell: Python code, and shell commands.

    Attributes:
        python: The Python code, each line at its original line number.
        shell: The shell commands, each with its line number.
        installs: Lines that install packages.
        unseen: Lines that run code which is not in the cell, each with the magic that runs it.
        unknown: A description of syntax that cannot be parsed here; empty if there is none.
    """

    python: str = ""
    shell: list[tuple[str, int]] = field(default_factory=list)
    installs: list[int] = field(default_factory=list)
    unseen: list[tuple[str, int]] = field(default_factory=list)
    unknown: str = ""


def read_cell(code: str, *, first_line: int = 1) -> ParsedCell:
    """Split a cell that Python alone cannot parse into its parts."""
    cell = ParsedCell()
    code = code.replace("\r\n", "\n")
    code = _without_prompts(code)
    body_start = len(code) - len(code.lstrip())
    whole = _cell_magic(cell, code[body_start:], first_line + code.count("\n", 0, body_start))

    if whole is not None:
        cell.python = "\n" * code.count("\n", 0, body_start) + whole
        return cell

    cell.python = _lines(cell, _dedented(code), first_line)
    return cell


def outside_strings(code: str) -> str:
    """Return the code with strings and comments blanked, character by character where it was."""
    parts: list[str] = []
    at = 0

    while at < len(code):
        match = _LEXEME.match(code, at)
        end = _end_of(code, match, at)
        is_plain = match is not None and code[at] not in "#'\""
        parts.append(code[at:end] if is_plain else re.sub(r"[^\n]", " ", code[at:end]))
        at = end

    return "".join(parts)


def _without_prompts(code: str) -> str:
    start = code.lstrip()[:20]
    return _PROMPT.sub("", code) if start.startswith((">>>", "In [")) else code


def _dedented(code: str) -> str:
    """Remove the indentation of a cell that is indented as a whole, as IPython does."""
    first = re.match(r"(?:[ \t]*\n)*([ \t]+)(?=\S)", code)
    # No pattern made of it: what is compiled is kept, and hostile code would choose how large that is.
    return "\n".join(line.removeprefix(first[1]) for line in code.split("\n")) if first else code


def _cell_magic(cell: ParsedCell, code: str, line: int) -> str | None:
    """Return the Python in a cell whose first line is a cell magic; None if there is no such magic."""
    if not code.startswith("%%"):
        return None

    head, _, body = code.partition("\n")
    name, _, rest = head[2:].strip().partition(" ")

    if name in _RUN_PYTHON:
        inner = read_cell(body, first_line=line + 1)
        cell.shell += inner.shell
        cell.installs += inner.installs
        cell.unseen += inner.unseen
        cell.unknown = inner.unknown
        expression = _without_options(rest) if name in ("timeit", "time", "prun") else ""
        return f"{expression}\n{inner.python}"

    if name == "script" and (rest.split() or [""])[0] not in _SHELLS:
        cell.unknown = f"%%script {rest[:40]}"
    elif name in _RUN_SHELL or name.startswith("!"):
        cell.shell.append((f"{rest}\n{body}", line))
    elif name in _HOLD_TEXT:
        if name in ("writefile", "file"):
            target = rest.split()[-1:] or [""]
            return f"open({target[0]!r}, 'w')\n"
    else:
        cell.unknown = f"the cell magic %%{name}"

    return "\n" * body.count("\n")


def _lines(cell: ParsedCell, code: str, first_line: int) -> str:
    parts: list[str] = []
    at, line, depth, is_start = 0, first_line, 0, True

    while at < len(code):
        if is_start and (taken := _special(cell, code, at, line)):
            python, end = taken
            newlines = code.count("\n", at, end)
            parts.append(python + "\n" * newlines)
            line += newlines
            at, is_start = end, False
            continue

        match = _LEXEME.match(code, at)
        end = _end_of(code, match, at)
        piece = code[at:end]
        parts.append(piece)
        line += piece.count("\n")

        if match is not None:
            depth = max(depth + bool(match["open"]) - bool(match["close"]), 0)
            is_start = bool(match["end"]) and depth == 0

        at = end

    return "".join(parts)


def _special(cell: ParsedCell, code: str, at: int, line: int) -> tuple[str, int] | None:
    """Return the Python of a line in IPython's syntax, and its end; None for any other line."""
    if match := _ESCAPED_LINE.match(code, at):
        indent = code[at : match.start("sign")]
        rest = match["rest"].replace("\\\n", " ")
        return indent + _escaped(cell, match["sign"], rest, line), match.end()

    if (match := _ASSIGNED.match(code, at)) and not match["rest"].startswith("="):
        rest = match["rest"].replace("\\\n", " ")
        return match["target"] + _escaped(cell, match["sign"], rest, line), match.end()

    end = code.find("\n", at)
    tail = code[max(end - 2, at) : end] if end >= 0 else code[-2:]

    if "?" in tail and (match := _HELP.match(code, at)):
        return "pass", match.end()

    return None


def _escaped(cell: ParsedCell, sign: str, rest: str, line: int) -> str:
    if sign[0] == "!":
        cell.shell.append((rest, line))
        return "None"

    if sign[0] == "?":
        return "pass"

    if sign[0] in ",;/":
        # The first word is called with the others, quoted or not.
        name, _, arguments = rest.strip().partition(" ")
        texts = [arguments] if sign == ";" else arguments.split()
        quoted = ", ".join(map(repr, texts)) if sign != "/" else arguments
        return f"{name}({quoted})" if re.fullmatch(r"[\w.]+", name) else f"{sign}{rest}"

    return _line_magic(cell, rest, line)


def _line_magic(cell: ParsedCell, text: str, line: int) -> str:
    match = _MAGIC.fullmatch(text.strip())
    name, rest = (match[1], match[2]) if match else ("", "")

    if name in _RUN_PYTHON:
        return _without_options(rest) or "None"

    if name in _RUN_SHELL or text.startswith("!"):
        cell.shell.append((rest, line))
    elif name in _INSTALL:
        cell.installs.append(line)
        cell.shell.append((f"{name} {rest}", line))
    elif name in _UNSEEN:
        cell.unseen.append((name, line))
    elif name not in _HARMLESS:
        cell.unknown = f"the magic %{name}"
    elif name in ("cat", "head", "more", "less", "ls", "ll"):
        cell.shell.append((f"{name} {rest}", line))

    return "None"


def _without_options(text: str) -> str:
    match = _MAGIC_OPTIONS.match(text)
    return text[match.end() :] if match else text


def _end_of(code: str, match: re.Match[str] | None, at: int) -> int:
    if match is None:
        return at + 1

    if match["open_triple"]:
        end = _TRIPLE[match["open_triple"]].match(code, match.end())
        return end.end() if end else len(code)

    return max(match.end(), at + 1)
