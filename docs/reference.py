"""Writes docs/reference.md from the docstrings of the public names; `make reference` runs it.

Reads the installed package and writes one page. A test compares the page with what this would write, so the
reference cannot fall behind the code.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import get_args

import fumehood

PAGE = Path(__file__).parent / "reference.md"

_HEAD = """# Reference

Written by `make reference` from the docstrings; do not edit. The guides explain, this page lists.

"""

# Modules of the package that a section lists, and its heading, in the order of the page.
_SECTIONS = (
    ("api.one_shot", "A single call"),
    ("api.sandbox", "Sandbox, its files, commands and terminals"),
    ("api.async_sandbox", "AsyncSandbox"),
    ("api.files", "Files"),
    ("api.commands", "Commands"),
    ("api.pty", "Terminals"),
    ("values.execution", "Executions"),
    ("api.tools", "Tools"),
    ("values.results", "Results"),
    ("values.events", "Events"),
    ("values.charts", "Charts"),
    ("api.explore", "Exploring"),
    ("values.judging", "Judging"),
    ("api.saved_states values.saved_state", "Saved states"),
    ("values.audit", "Audit records"),
    ("values.security", "Security events"),
    ("api.notebooks notebook.comparing notebook.writing", "Replays"),
    ("values.limits", "Limits and usage"),
    ("values.network", "Network"),
    ("values.sandbox", "What a sandbox tells of itself"),
    ("storage.artifact_files storage.artifacts storage.signed_files", "Files out"),
    ("api.templates values.template templates.store", "Templates"),
    ("advice.findings advice.scan advice.wrapping", "Advice"),
    ("errors", "Errors"),
    ("port.backend", "Where sandboxes live"),
)


def page() -> str:
    """The whole page."""
    by_section: dict[str, list[str]] = {}

    for name in fumehood.__all__:
        by_section.setdefault(_section(name), []).append(name)

    parts = [_HEAD]

    for modules, heading in _SECTIONS:
        parts.append(f"## {heading}\n\n")
        parts.extend(_entry(name) for module in modules.split() for name in by_section.pop(module, ()))

    assert not by_section, f"these modules have no section in docs/reference.py: {sorted(by_section)}"
    return "".join(parts).rstrip() + "\n"


def _section(name: str) -> str:
    return next(module for module, names in fumehood._HOMES.items() if name in names.split())


def _entry(name: str) -> str:
    value = getattr(fumehood, name)

    if inspect.isfunction(value):
        return f"### {name}\n\n{_signature(name, value)}{_prose(value)}"

    if not inspect.isclass(value):
        return f"### {name}\n\nOne of: {', '.join(f'`{kind.__name__}`' for kind in get_args(value))}.\n\n"

    if _is_async_version(name):
        return f"### {name}\n\nThe asynchronous `{name.removeprefix('Async')}`: its methods, awaited.\n\n"

    return f"### {name}\n\n{_prose(value)}{_kind_of_error(value)}{''.join(_members(value))}"


def _is_async_version(name: str) -> bool:
    return name.startswith("Async") and name.removeprefix("Async") in fumehood.__all__


def _kind_of_error(kind: type) -> str:
    if not issubclass(kind, fumehood.FumehoodError):
        return ""

    built_in = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"][:-3]
    also = f", and `{built_in[0]}`" if built_in else ""
    return f"Code `{kind.code}`; a `{kind.__base__.__name__}`{also}.\n\n"


def _members(kind: type) -> Iterator[str]:
    # What a public class takes from one that is not public is its own to whoever reads.
    mixins = [base for base in kind.__mro__[1:] if _is_ours(base) and base.__name__ not in fumehood.__all__]
    members = dict(vars(kind))

    for base in mixins:
        members |= {name: member for name, member in vars(base).items() if name not in members}

    for name, member in members.items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        is_value = isinstance(member, (property, cached_property))

        if (
            name.startswith("_")
            or not (is_value or inspect.isfunction(function))
            or not inspect.getdoc(function)
        ):
            continue

        shown = "" if is_value else _signature(name, function)
        yield f"#### {kind.__name__}.{name}\n\n{shown}{_prose(function)}"


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == fumehood.__name__


def _signature(name: str, function: Callable[..., object]) -> str:
    """The call as code, one argument a line where it is long."""
    signature = inspect.signature(function)
    arguments = []
    is_keyword = False

    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue

        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            arguments.append("*")
            is_keyword = True

        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        arguments.append(f"{parameter.name}: {parameter.annotation}{default}")

    answer = "" if signature.return_annotation in (None, "None") else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){answer}"

    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){answer}"

    return f"```\n{line}\n```\n\n"


def _default(value: object) -> str:
    return "..." if value is ... else repr(value)


def _prose(value: object) -> str:
    lines = (inspect.getdoc(value) or "").splitlines()
    return "\n".join(_listed(lines)).strip() + "\n\n"


def _listed(lines: list[str]) -> Iterator[str]:
    """Turns the sections of a Google docstring into Markdown lists."""
    for line in lines:
        if re.fullmatch(r"(Args|Attributes|Raises|Returns):", line):
            yield f"*{line}*\n"
        elif re.match(r"    \w+: ", line):
            name, _, text = line.strip().partition(": ")
            yield f"- `{name}`: {text}"
        elif line.startswith("        "):
            yield "  " + line.strip()
        else:
            yield line.strip()


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())
