"""The system prompt: the facts about the tool, read from the sandbox itself.

Version and packages come from Python code in a context of its own, so they come from the guest: checked name by name,
bounded, and shown as plain words. Limits and network come from the host.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fumehood import AsyncSandbox, FileError, FumehoodError, HostTool, SandboxInfo
from fumehood.llm.formats.calls import LANGUAGE, PYTHON_ALONE, ToolWords
from fumehood.llm.readable_text import in_bytes
from fumehood.text import visible_line
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.known_packages import WELL_KNOWN
from fumehood.values.languages import known_language

_ASK = """
import importlib.metadata, json, platform
found = {}
for distribution in importlib.metadata.distributions():
    try:
        found.setdefault(distribution.name, distribution.version)
    except Exception:
        pass
    if len(found) == 2000:
        break
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""
_ASK_SECONDS = 20.0
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,40}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}", re.ASCII)
_MAX_PACKAGES = 20
_MAX_FILES = 50
_MAX_TOOLS = 50
_MAX_RULES = 30


@dataclass(frozen=True, slots=True)
class SandboxFacts:
    """Versions that a sandbox reports, for the system prompt.

    Attributes:
        python: The version of Python.
        packages: Versions by name.
    """

    python: str = ""
    packages: tuple[tuple[str, str], ...] = ()


async def look_inside(sandbox: AsyncSandbox) -> SandboxFacts:
    """Read the Python version and the packages of a sandbox; a missing value is left out."""
    try:
        context = await sandbox.create_code_context()

        try:
            execution = await sandbox.run_code(_ASK, context=context, timeout=_ASK_SECONDS)
        finally:
            await sandbox.remove_code_context(context)

        said: object = json.loads("".join(execution.logs.stdout))
    except (FumehoodError, ValueError, RecursionError):
        return SandboxFacts()

    return _checked(said)


async def write_prompt(
    sandbox: AsyncSandbox,
    inside: SandboxFacts,
    *,
    words: ToolWords,
    timeout: float | None,
    tools: Mapping[str, HostTool | Callable[..., object]],
    is_transactional: bool,
) -> str:
    """Write the system prompt for a sandbox as it is now."""
    info = await sandbox.get_info()
    parts = [
        f"You can run Python code with the tool `{words.name}`. It is a live interpreter in an isolated sandbox: "
        "variables, imports and files are kept between calls.",
        _languages(words),
        _rules(is_transactional),
        _limits(info, timeout),
        _network(info),
        describe_inside(inside),
        await _files(sandbox),
        _host_tools(tools),
    ]
    return "\n\n".join(part for part in parts if part)


def _languages(words: ToolWords) -> str:
    if words.languages == PYTHON_ALONE:
        return ""

    titles = ", ".join(known_language(name).title for name in words.languages[1:])
    whole = [known_language(name).title for name in words.languages if not known_language(name).keeps_state]
    end = f" Code in {', '.join(whole)} is a whole program, and keeps none." if whole else ""
    return (
        f"The argument `{LANGUAGE}` chooses another language: {titles}. Each keeps its own variables; all see "
        f"the same files.{end}"
    )


def _rules(is_transactional: bool) -> str:
    lines = [
        "Print what you need to know, or end with an expression: nothing else is shown.",
        "Long output is cut in its middle.",
        "Figures of matplotlib are shown without saving them. input() has nothing to read.",
    ]

    if is_transactional:
        lines.append("A call that fails is undone as a whole: neither its variables nor its files stay.")

    return "\n".join(f"- {line}" for line in lines)


def _limits(info: SandboxInfo, timeout: float | None) -> str:
    limits = info.limits
    seconds = limits.wall_seconds if timeout is None else timeout
    return (
        f"Limits: {seconds:g} s for each call, {in_bytes(limits.memory_bytes)} of memory, "
        f"{in_bytes(limits.disk_bytes)} of disk, {limits.processes} processes and threads."
    )


def _network(info: SandboxInfo) -> str:
    network = info.network

    if network.level == "none":
        return "There is no network: nothing can be downloaded, and no package can be installed."

    lines = []

    if network.internet:
        lines.append("Network: public addresses can be reached, on ports 80 and 443.")

    if network.allow:
        lines.append(f"Network: these can be reached: {_listed(network.allow)}.")

    if network.deny:
        lines.append(f"These cannot: {_listed(network.deny)}.")

    if "pip" in network.presets:
        lines.append("Packages can be installed with %pip install NAME.")
    elif not network.internet:
        lines.append("Nothing else can be reached, and no package can be installed.")

    return " ".join(lines)


def _listed(rules: Sequence[str]) -> str:
    shown = ", ".join(visible_line(rule, max_characters=100) for rule in rules[:_MAX_RULES])
    more = len(rules) - _MAX_RULES
    return f"{shown}, and {more:,} more" if more > 0 else shown


def describe_inside(inside: SandboxFacts) -> str:
    """Return a sentence with the version of Python and the well-known packages; empty if they are not known."""
    if not inside.python:
        return ""

    installed = dict(inside.packages)
    ordered = [(name, installed[name]) for name in WELL_KNOWN if name in installed][:_MAX_PACKAGES]
    shown = ", ".join(f"{name} {_short(version)}" for name, version in ordered)
    more = len(inside.packages) - len(ordered)
    end = f", and {more:,} others" if more else ""
    return f"Python {inside.python}. Installed packages: {shown or 'none'}{end}."


def _short(version: str) -> str:
    """Return the parts of a version that determine the features of its package."""
    return ".".join(version.split(".")[:2])


async def _files(sandbox: AsyncSandbox) -> str:
    try:
        entries = await sandbox.files.list(DATA_PATH, depth=2)
    except FileError:
        entries = []

    head = (
        "Data files are in /mnt/data; save files for the user there. Relative paths begin in /home/user. "
        "The rest of the system is read-only or lost at the end."
    )
    files = [entry for entry in entries if entry.type == "file" and entry.symlink_target is None]

    if not files:
        return f"{head} There are no files in /mnt/data yet."

    lines = [
        f"- {visible_line(entry.path, max_characters=300)} ({in_bytes(entry.size_bytes)})"
        for entry in files[:_MAX_FILES]
    ]
    more = [f"- and {len(files) - _MAX_FILES:,} more"] if len(files) > _MAX_FILES else []
    return "\n".join([head, "Files that are there now:", *lines, *more])


def _host_tools(tools: Mapping[str, HostTool | Callable[..., object]]) -> str:
    if not tools:
        return ""

    lines = [
        f"- {describe_tool_function(name, function)}" for name, function in list(tools.items())[:_MAX_TOOLS]
    ]
    return "\n".join(
        ["These functions are defined in the code that you run; call them with keyword arguments:", *lines]
    )


def describe_tool_function(name: str, tool: HostTool | Callable[..., object]) -> str:
    """Return the signature of a host tool in code, with the first line of its description."""
    given = tool if isinstance(tool, HostTool) else HostTool(tool)
    is_awaited = inspect.iscoroutinefunction(given.function) if given.awaited is None else given.awaited

    head = f"{'await ' if is_awaited else ''}{name}{_signature(given.function)}"
    said = given.description or inspect.getdoc(given.function) or ""
    return f"{head}: {said.partition(chr(10))[0]}" if said else head


def _signature(function: Callable[..., object]) -> str:
    for is_read in (True, False):
        try:
            return str(inspect.signature(function, eval_str=is_read))
        except (TypeError, ValueError, NameError, AttributeError, SyntaxError):
            continue

    return "(...)"


def _checked(said: object) -> SandboxFacts:
    if not isinstance(said, dict):
        return SandboxFacts()

    python, packages = said.get("python"), said.get("packages")

    if not isinstance(python, str) or not _VERSION.fullmatch(python) or not isinstance(packages, dict):
        return SandboxFacts()

    return SandboxFacts(python, tuple(_names(packages)))


def _names(packages: Mapping[str, object]) -> Sequence[tuple[str, str]]:
    found = {
        re.sub(r"[-_.]+", "-", name).lower(): version
        for name, version in packages.items()
        if _NAME.fullmatch(name) and isinstance(version, str) and _VERSION.fullmatch(version)
    }
    return sorted(found.items())
