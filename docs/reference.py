"""Writes the reference pages from the docstrings of the public names; `make reference` runs it.

Reads the installed package and writes a page each for `fumehood`, `fumehood.llm`, `fumehood.frameworks`, and the other
modules that programs import from. The last two are read as source text: frameworks are not installed here. A test compares the pages with what this
would write, so the reference cannot fall behind the code.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import get_args

import fumehood
import fumehood.llm

DOCS = Path(__file__).parent
_FRAMEWORKS = DOCS.parent / "src" / "fumehood" / "frameworks"

_WRITTEN = "Written by `make reference` from the docstrings; do not edit."

# Modules of the package that a section lists, and its heading, in the order of the page.
_Sections = tuple[tuple[str, str], ...]
_SECTIONS: _Sections = (
    ("api.one_shot", "A single call"),
    ("api.many", "Many calls"),
    ("api.sandbox", "Sandbox, its files, commands and terminals"),
    ("api.async_sandbox", "AsyncSandbox"),
    ("api.files", "Files"),
    ("api.commands", "Commands"),
    ("api.pty", "Terminals"),
    ("api.activity", "Activity"),
    ("api.shares values.shares", "Shares"),
    ("values.looking", "What ran"),
    ("api.records values.kept_records", "What ran in sandboxes that have ended"),
    ("values.moments", "Two moments"),
    ("values.watching", "What happens"),
    ("values.execution", "Executions"),
    ("api.tools", "Tools"),
    ("values.results", "Results"),
    ("values.events", "Events"),
    ("values.charts", "Charts"),
    ("api.explore", "Exploring"),
    ("values.judging", "Judging"),
    ("api.saved_states values.saved_state", "Saved states"),
    ("api.server_audit values.audit", "Audit records"),
    ("values.security", "Security events"),
    ("api.notebooks notebook.comparison notebook.record_file", "Replays"),
    ("ipython_magic", "Cells of your own notebook"),
    ("values.limits", "Limits and usage"),
    ("values.network", "Network"),
    ("values.sandbox", "What a sandbox tells of itself"),
    ("values.published_file storage.artifacts storage.signed_files", "Files out"),
    ("api.templates values.template values.start_command templates.store", "Templates"),
    ("advice.findings advice.scan advice.wrapped_output", "Advice"),
    ("errors", "Errors"),
    ("port.backend", "Where sandboxes live"),
)


_LLM_SECTIONS: _Sections = (
    ("interpreter", "A tool for models"),
    ("result", "What a call of it gives"),
    ("workbench", "Scans"),
    ("agent", "Agents"),
    ("events", "Answers, and the events of an agent"),
    ("costs", "Tokens and prices"),
    ("providers.openai_chat providers.openai_responses providers.anthropic_messages providers.fenced", "Providers"),
    ("providers.base", "A provider of your own"),
    (
        "formats.calls formats.exchange formats.anthropic formats.responses",
        "Formats of providers",
    ),
    ("model_errors", "Errors"),
)

# Modules beside these packages that programs import from, and the public names of each.
MODULES = {
    "text": ("visible", "visible_line"),
    "llm.file_links": ("LinkRewriter", "LinkedFile", "Publisher", "rewrite_links"),
    "dialects.replit.client": ("CodeExec", "build_code_exec", "code_exec", "strip_fence"),
}

# Modules of fumehood.frameworks that only the adapters import.
_INTERNAL = {"__init__", "archives", "dspy_namespace", "host_functions", "needed"}


def pages() -> dict[str, str]:
    """The pages by their file names."""
    return {
        "reference.md": _page(
            f"# Reference\n\n{_WRITTEN} The guides explain, this page lists. Models have a page of their own "
            "([fumehood.llm](reference-llm.md)), and so have\n[adapters of agent frameworks](reference-frameworks.md) and "
            "[other modules](reference-modules.md).",
            fumehood,
            _SECTIONS,
        ),
        "reference-llm.md": _page(
            f"# Reference of fumehood.llm\n\n{_WRITTEN} Guides: [a tool for models](guides/llm.md), "
            "[agents](guides/agents.md).",
            fumehood.llm,
            _LLM_SECTIONS,
        ),
        "reference-frameworks.md": _frameworks_page(),
        "reference-modules.md": _modules_page(),
    }


def _page(head: str, package: ModuleType, sections: _Sections) -> str:
    by_section: dict[str, list[str]] = {}

    for name in package.__all__:
        by_section.setdefault(_section(package, name), []).append(name)

    parts = [f"{head}\n\n"]

    for modules, heading in sections:
        parts.append(f"## {heading}\n\n")
        parts.extend(
            _entry(package, name) for module in modules.split() for name in by_section.pop(module, ())
        )

    assert not by_section, f"these modules have no section in docs/reference.py: {sorted(by_section)}"
    return "".join(parts).rstrip() + "\n"


def _section(package: ModuleType, name: str) -> str:
    return next(module for module, names in package._HOMES.items() if name in names.split())


def _entry(package: ModuleType, name: str) -> str:
    value = getattr(package, name)

    if inspect.isfunction(value):
        return f"### {name}\n\n{_signature(name, value)}{_prose(value)}"

    if not inspect.isclass(value):
        return f"### {name}\n\nOne of: {', '.join(f'`{kind.__name__}`' for kind in get_args(value))}.\n\n"

    if name.startswith("Async") and name.removeprefix("Async") in package.__all__:
        return f"### {name}\n\nThe asynchronous `{name.removeprefix('Async')}`: its methods, awaited.\n\n"

    return f"### {name}\n\n{_prose(value)}{_kind_of_error(value)}{''.join(_members(package, value))}"


def _kind_of_error(kind: type) -> str:
    if not issubclass(kind, fumehood.FumehoodError):
        return ""

    built_in = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"][:-3]
    also = f", and `{built_in[0]}`" if built_in else ""
    return f"Code `{kind.code}`; a `{kind.__base__.__name__}`{also}.\n\n"


def _members(package: ModuleType, kind: type) -> Iterator[str]:
    # What a public class takes from one that is not public is its own to whoever reads.
    mixins = [base for base in kind.__mro__[1:] if _is_ours(base) and base.__name__ not in package.__all__]
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

        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.append(f"**{parameter.name}: {parameter.annotation}")
            continue

        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        arguments.append(f"{parameter.name}: {parameter.annotation}{default}")

    answer = "" if signature.return_annotation in (None, "None") else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(arguments)}){answer}"

    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){answer}"

    return f"```\n{line}\n```\n\n"


def _default(value: object) -> str:
    return "..." if value is ... else repr(value)


def _frameworks_page() -> str:
    """Public classes and functions of each adapter, with the members that it documents itself."""
    parts = [
        f"# Reference of fumehood.frameworks\n\n{_WRITTEN} Guide: [frameworks](guides/frameworks.md).\n"
        "What a class takes from its framework is documented there.\n\n"
    ]

    for path in sorted(_FRAMEWORKS.glob("*.py")):
        if path.stem in _INTERNAL:
            continue

        module = ast.parse(path.read_text(encoding="utf-8"))
        summary = (ast.get_docstring(module) or "").split("\n\n")[0]
        parts.append(f"## fumehood.frameworks.{path.stem}\n\n{summary}\n\n")
        parts.extend(_source_entry(node, "###") for node in module.body if _is_public(node))

    return "".join(parts).rstrip() + "\n"


def _modules_page() -> str:
    """The names of `MODULES`, with the members that each documents itself."""
    parts = [
        f"# Reference of other modules\n\n{_WRITTEN} Modules that programs import from, beside the packages.\n\n"
    ]

    for name, public in MODULES.items():
        path = DOCS.parent.joinpath("src", "fumehood", *name.split(".")).with_suffix(".py")
        module = ast.parse(path.read_text(encoding="utf-8"))
        nodes = {node.name: node for node in module.body if isinstance(node, _Definition)}
        summary = (ast.get_docstring(module) or "").split("\n\n")[0]
        parts.append(f"## fumehood.{name}\n\n{summary}\n\n")
        parts.extend(_source_entry(nodes[entry], "###") for entry in public)

    return "".join(parts).rstrip() + "\n"


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _is_public(node: ast.stmt) -> bool:
    return (
        isinstance(node, _Definition)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is not None
    )


def _source_entry(node: ast.stmt, level: str, of: str = "") -> str:
    assert isinstance(node, _Definition)
    heading = f"{level} {of}{node.name}\n\n"
    prose = _prose_of((ast.get_docstring(node) or "").splitlines())

    if not isinstance(node, ast.ClassDef):
        is_value = any(ast.unparse(mark).endswith("property") for mark in node.decorator_list)
        return f"{heading}{'' if is_value else _source_signature(node)}{prose}"

    inside = [member for member in node.body if _is_public(member)]
    return f"{heading}{prose}{''.join(_source_entry(member, '####', f'{node.name}.') for member in inside)}"


def _source_signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    given = [argument for argument in ast.unparse(node.args).split(", ") if argument not in ("self", "cls")]
    answer = (
        ""
        if node.returns is None or ast.unparse(node.returns) == "None"
        else f" -> {ast.unparse(node.returns)}"
    )
    return f"```\n{node.name}({', '.join(given)}){answer}\n```\n\n"


def _prose(value: object) -> str:
    return _prose_of((inspect.getdoc(value) or "").splitlines())


def _prose_of(lines: list[str]) -> str:
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
        for name, text in pages().items():
            (DOCS / name).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write("\n".join(pages().values()))
