"""Prepares a template for languages: finds out which ones it has, and does slow work of their compilers in advance.

Runs in the process of the user that builds a template, over a sandbox of that template, in an engine of its own. Only
our code runs in that sandbox. The prepared files are copied to the folder of the build, which sandboxes see read-only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from fumehood.api.sandbox import Sandbox
from fumehood.assemble import make_backend
from fumehood.engine.settings import EngineSettings
from fumehood.errors import (
    CommandExitError,
    InvalidArgumentError,
    LanguageUnavailableError,
    TemplateStoreError,
)
from fumehood.portal import Portal
from fumehood.templates.recipe import Say
from fumehood.values.checks import check_language
from fumehood.values.languages import (
    CONTEXT_LANGUAGES,
    CPP_OPTIONS,
    PREPARED_PATH,
    TOOL_ENVS,
    ContextLanguage,
    whole_program,
)
from fumehood.values.limits import Limits
from fumehood.values.template import Template

ALL = "all"
_FOLDER = "/tmp/languages"  # noqa: S108 - of the sandbox
_SECONDS = 600.0
_LIMITS = Limits(memory_bytes=2 << 30, wall_seconds=_SECONDS)
_VERSION = re.compile(r"\d+(\.\d+)+|\b\d+\b")
# What prints the version, in each language whose contexts keep state.
_QUESTIONS: Mapping[str, str] = {
    "python": "import platform; print(platform.python_version())",
    "bash": "echo $BASH_VERSION",
    "javascript": "console.log(process.version)",
    "typescript": "console.log(process.version)",
    "r": "cat(R.version$major, R.version$minor, sep='.')",
    "java": 'System.out.print(System.getProperty("java.version"));',
}
# Programs in Go need most of these; each takes its compiler a second.
_GO_PACKAGES = (
    "bufio bytes container/heap container/list context encoding/json errors fmt io math math/big math/rand os regexp"
    " sort strconv strings sync time unicode"
)
_GO_PROGRAM = "package main\nimport (\n{}\n)\nfunc main() {{}}\n".format(
    "\n".join(f'_ "{name}"' for name in _GO_PACKAGES.split())
)
# What is prepared of a language, in the folder of it.
_PREPARATIONS: Mapping[str, str] = {
    "cpp": f"""
mkdir -p cpp/bits
header=$(echo '#include <bits/stdc++.h>' | g++ {CPP_OPTIONS} -x c++ -M - | tr ' ' '\\n' | grep -m 1 'bits/stdc++.h$')
g++ {CPP_OPTIONS} -x c++-header "$header" -o cpp/bits/stdc++.h.gch
""",
    "go": f"""
mkdir -p go
cat >/tmp/main.go <<'END'
{_GO_PROGRAM}
END
GOCACHE=$PWD/go go build -o /tmp/program /tmp/main.go
for each in go/[0-9a-f][0-9a-f]; do echo >$each/kept; done
echo 'GOCACHE={PREPARED_PATH}/go' >go.env
""",
}


def languages_named(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the languages of a build: `all`, or some by their names.

    Raises:
        InvalidArgumentError: A name is not that of a language.
    """
    if isinstance(names, str):
        raise InvalidArgumentError(field="languages", value=names, allowed="a list of names")

    if ALL in names:
        return tuple(CONTEXT_LANGUAGES)

    return tuple(dict.fromkeys(check_language(name) for name in names))


def preparation(names: Sequence[str], *, is_strict: bool) -> Callable[[Template, str, Say], dict[str, str]]:
    """Returns a function that prepares these languages; with `is_strict`, a missing language is an error."""
    return lambda template, folder, say: prepare_languages(template, names, folder, say, is_strict=is_strict)


def prepare_languages(
    template: Template, names: Sequence[str], folder: str, say: Say, *, is_strict: bool
) -> dict[str, str]:
    """Prepares languages in a sandbox of a template, and returns the versions of the installed ones.

    Args:
        template: The template.
        names: The languages.
        folder: The folder for the prepared files, which is made here.
        say: Called with each step.
        is_strict: Whether a missing language is an error.

    Raises:
        TemplateStoreError: A language is missing, or cannot be prepared.
    """
    portal = Portal()
    os.makedirs(folder, exist_ok=True)
    try:
        backend = make_backend(EngineSettings(pool_size=0, max_sandboxes=1), portal)

        with Sandbox(template, limits=_LIMITS, backend=backend) as sandbox:
            versions: dict[str, str] = {}

            for name in names:
                version = _version(sandbox, CONTEXT_LANGUAGES[name])

                if version is not None:
                    versions[name] = version
                    say(f"{CONTEXT_LANGUAGES[name].title} {version}")
                else:
                    _report_missing(template, CONTEXT_LANGUAGES[name], say, is_strict=is_strict)

            for name in versions:
                if name in _PREPARATIONS:
                    say(f"preparing {CONTEXT_LANGUAGES[name].title}")
                    _prepare(sandbox, template, name)

            if set(versions) & set(_PREPARATIONS):
                sandbox.download(_FOLDER, folder)
    finally:
        portal.close()

    return versions


def _version(sandbox: Sandbox, language: ContextLanguage) -> str | None:
    """Returns the version of a language; None if it is missing."""
    answer = _context_says(sandbox, language) if language.keeps_state else _program_says(sandbox, language)

    if answer is None:
        return None

    found = _VERSION.search(answer)
    return found.group() if found else ""


def _context_says(sandbox: Sandbox, language: ContextLanguage) -> str | None:
    """Returns the version that a context of the language reports; None if the context cannot be started."""
    try:
        execution = sandbox.run_code(_QUESTIONS[language.name], language=language.name)
    except LanguageUnavailableError:
        return None

    return "".join(execution.logs.stdout)


def _program_says(sandbox: Sandbox, language: ContextLanguage) -> str | None:
    """Returns the version that the language's program reports; None if it is missing or does not run."""
    line = language.version or f"{language.program} --version"
    needed = " && ".join(f"command -v {program}" for program in whole_program(language).programs)
    try:
        return sandbox.commands.run(
            f"{{ {needed}; }} >/dev/null && {{ {line}; }} 2>&1", envs=TOOL_ENVS
        ).stdout
    except CommandExitError:
        return None


def _report_missing(template: Template, language: ContextLanguage, say: Say, *, is_strict: bool) -> None:
    if is_strict:
        raise TemplateStoreError(
            template=template.name,
            operation="build",
            reason=f"it has no {language.title}: {language.needs} is missing",
            hint=language.way_out,
        )

    say(f"not there: {language.title}; {language.way_out}")


def _prepare(sandbox: Sandbox, template: Template, name: str) -> None:
    script = f"set -e\nmkdir -p {_FOLDER}\ncd {_FOLDER}\n{_PREPARATIONS[name]}"
    try:
        sandbox.commands.run(script, envs=TOOL_ENVS, timeout=_SECONDS)
    except CommandExitError as error:
        raise TemplateStoreError(
            template=template.name,
            operation="build",
            reason=f"{CONTEXT_LANGUAGES[name].title} cannot be prepared: {error.stderr.strip()[-500:]}",
            hint="build it without this language, and see whether its compiler works in a sandbox",
        ) from None
