"""Code that sets environment variables in a Jupyter kernel and restores them, since Jupyter has no message for it.

Used in a context by the language "kernel:NAME". For each language that kernels are known to speak it writes two pieces
of code, which the kernel runs silently before and after a cell. The previous values are kept in the kernel, in a
variable with a name of ours. It never writes a value into code except as a literal of that language.
"""

from __future__ import annotations

import json
from typing import Callable, Dict, Mapping, NamedTuple, Optional


class Variables(NamedTuple):
    """Code that sets environment variables, and code that restores them.

    Attributes:
        taking: Code that saves the previous values, and sets those of the execution.
        giving_back: Code that restores the saved values; it does nothing if `taking` has not run.
    """

    taking: str
    giving_back: str


def variables_of(language: str, envs: Mapping[str, str]) -> Optional[Variables]:
    """Returns the code for the language that the kernel names; None for an unknown language."""
    written = _LANGUAGES.get(language.lower())
    return None if written is None else written(envs)


def _python(envs: Mapping[str, str]) -> Variables:
    take = (
        "import os, sys\n"
        "sys._fumehood_variables = {name: os.environ.get(name) for name in values}\n"
        "os.environ.update(values)"
    )
    give_back = (
        "import os, sys\n"
        "for name, text in sys.__dict__.pop('_fumehood_variables', {}).items():\n"
        "    os.environ.pop(name, None)\n"
        "    if text is not None: os.environ[name] = text"
    )
    return Variables(f"exec({take!r}, {{'values': {dict(envs)!a}}})", f"exec({give_back!r}, {{}})")


def _node(envs: Mapping[str, str]) -> Variables:
    """Returns the code for Node, which also works in Deno: its `process.env` is `Deno.env`."""
    kept = "globalThis[Symbol.for('fumehood.variables')]"
    return Variables(
        f"void (() => {{ const values = {json.dumps(dict(envs))}; {kept} = Object.keys(values).map("
        "(name) => [name, process.env[name]]); Object.assign(process.env, values) })()",
        f"void (() => {{ for (const [name, text] of {kept} ?? []) {{ if (text === undefined) delete process.env[name]; "
        f"else process.env[name] = text }} delete {kept} }})()",
    )


def _r(envs: Mapping[str, str]) -> Variables:
    values = ", ".join(f"{_r_text(name)} = {_r_text(text)}" for name, text in envs.items())
    return Variables(
        f"invisible(local({{ values <- c({values}); options(fumehood.variables = "
        "Sys.getenv(names(values), unset = NA, names = TRUE)); do.call(Sys.setenv, as.list(values)) }))",
        "invisible(local({ before <- getOption('fumehood.variables'); options(fumehood.variables = NULL); "
        "if (length(before)) { Sys.unsetenv(names(before)); kept <- before[!is.na(before)]; "
        "if (length(kept)) do.call(Sys.setenv, as.list(kept)) } }))",
    )


def _r_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _java(envs: Mapping[str, str]) -> Variables:
    """Returns code for system properties: a JVM's environment cannot be changed.

    The code consists of blocks, since expressions leave variables in JShell.
    """
    taking, giving_back = [], []

    for name, text in envs.items():
        known, kept = json.dumps(name), json.dumps(f"fumehood.before.{name}")
        taking.append(
            f"{{ String before = System.getProperty({known}); "
            f'System.setProperty({kept}, before == null ? "-" : "+" + before); '
            f"System.setProperty({known}, {json.dumps(text)}); }}"
        )
        giving_back.append(
            f"{{ String before = System.getProperty({kept}); if (before != null) {{ System.clearProperty({kept}); "
            f'if (before.startsWith("+")) System.setProperty({known}, before.substring(1)); '
            f"else System.clearProperty({known}); }} }}"
        )

    return Variables("\n".join(taking), "\n".join(giving_back))


_LANGUAGES: Dict[str, Callable[[Mapping[str, str]], Variables]] = {
    "python": _python,
    "r": _r,
    "java": _java,
    "javascript": _node,
    "typescript": _node,
}
