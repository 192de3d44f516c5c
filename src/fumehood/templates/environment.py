"""Reads a Python environment of the host: the paths of its interpreter, libraries and scripts.

Runs in the host process, on an environment that the user chose. For the environment of this very process nothing is
started; for another one its interpreter is run once. No module of the environment is imported here.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any

from fumehood.errors import TemplateError
from fumehood.templates import interpreter_facts
from fumehood.values.template import Template

_MAX_SCRIPT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The paths of a Python environment on the host.

    Attributes:
        version: Major, minor and micro version.
        executable: The interpreter, links resolved.
        base_prefix: Root of the installation that the interpreter belongs to.
        site_packages: The environment's own packages; None when they are those of the installation.
        hidden: Package folders of the installation that the environment does not see.
        scripts: Name and text of each console script, to be rewritten for the guest.
        programs: Names of other programs in `scripts_folder`.
        scripts_folder: The folder of the scripts and the programs.
        shared_library: Whether the interpreter was built with a shared libpython, which must be found at run time.
    """

    version: tuple[int, int, int]
    executable: str
    base_prefix: str
    site_packages: str | None
    hidden: tuple[str, ...]
    scripts: tuple[tuple[str, str], ...]
    programs: tuple[str, ...]
    scripts_folder: str
    shared_library: bool


def read_environment(template: Template) -> Environment:
    """Returns the paths of the template's environment.

    Raises:
        TemplateError: The template's interpreter cannot be started, or is older than 3.9.
    """
    found = _ask(template, template.python) if template.python else interpreter_facts.read()

    is_virtual = bool(found["is_virtual"])
    scripts, programs = _read_scripts(found["scripts"]) if is_virtual else ((), ())
    major, minor, micro = found["version"]
    return Environment(
        version=(major, minor, micro),
        executable=found["executable"],
        base_prefix=os.path.realpath(found["base_prefix"]),
        site_packages=found["site_packages"] if is_virtual else None,
        hidden=tuple(found["base_site_packages"]) if is_virtual and not found["sees_base"] else (),
        scripts=scripts,
        programs=programs,
        scripts_folder=found["scripts"],
        shared_library=bool(found["shared_library"]),
    )


def _ask(template: Template, python: str) -> dict[str, Any]:
    """Runs the interpreter that a template names, and returns the paths of its environment."""
    try:
        answer = subprocess.run(
            [python, "-I", interpreter_facts.__file__],
            capture_output=True,
            check=True,
            timeout=30,
            text=True,
        )
        found: dict[str, Any] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise TemplateError(
            template=template.name,
            reason=f"its interpreter {python!r} did not answer: {error}",
            hint="give the path of a Python 3.9 or later that has IPython installed",
            logged="its interpreter did not answer",
        ) from None

    if tuple(found["version"]) < (3, 9):
        raise TemplateError(
            template=template.name, reason=f"{python!r} is Python {found['version']}; 3.9 is the oldest"
        )

    return found


def _read_scripts(folder: str) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Sorts an environment's programs: Python scripts, whose first line names the host's interpreter, and others."""
    scripts: list[tuple[str, str]] = []
    programs: list[str] = []

    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        if not entry.is_file() or entry.name.startswith(("python", "activate", "Activate")):
            continue

        text = _script_text(entry.path)

        if text is None:
            programs.append(entry.name)
        else:
            scripts.append((entry.name, text))

    return tuple(scripts), tuple(programs)


def _script_text(path: str) -> str | None:
    """Returns the body of a Python script without its first line, or None if it is no Python script."""
    if os.path.getsize(path) > _MAX_SCRIPT_BYTES:
        return None

    try:
        with open(path, encoding="utf-8") as file:
            first, _, body = file.read().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None

    if not first.startswith("#!"):
        return None

    # For long paths installers write '#!/bin/sh' and let the shell start Python on the same file.
    if first == "#!/bin/sh" and body.startswith("'''exec'"):
        return body.partition("' '''\n")[2]

    return body if "python" in first else None
