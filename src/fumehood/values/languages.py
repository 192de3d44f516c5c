"""The languages that code may be written in: names, aliases, and how their programs are run.

The one table of them: contexts, dialects and judges read it. It is data: it starts nothing, and whether a template has
the programs of a language shows only in its sandboxes.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

# The languages of contexts beside Python; the default context of each has its name as its id.
CONTEXT_LANGUAGES = ("bash", "javascript", "typescript")
_ALIASES: Mapping[str, str] = {"js": "javascript", "ts": "typescript", "python3": "python", "sh": "bash"}
# How a template gets what it lacks.
WAYS_OUT: Mapping[str, str] = dict.fromkeys(
    ("javascript", "typescript"),
    "install the extra `fumehood[node]` where the template's Python is, or Node 22 or newer on the machine",
)


def canonical_name(name: str) -> str:
    """Returns the name of a language that may be given by an alias."""
    return _ALIASES.get(name, name)


@dataclass(frozen=True, slots=True)
class SourceLanguage:
    """How a source file becomes a run.

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
