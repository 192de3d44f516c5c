"""The first source of named templates: a Python, and requirements that are installed for it.

The environment is a virtual one, made and filled by uv or by pip; none of its code is imported here. Their output
comes from package indexes and is untrusted: it is bounded here, and escaped where it is shown. IPython, which the
guest needs, is one more requirement: the installer chooses the release that fits the template's Python and the user's
own requirements.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fumehood.errors import InvalidArgumentError, TemplateStoreError
from fumehood.pip_configuration import ask_pip, has_no_index, read_pip_configuration, uv_environ
from fumehood.templates.pythons import Interpreter, find_python, find_uv
from fumehood.templates.recipe import Made, Say, Source, Workshop

_KEPT_LINES = 12
_LINE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class InstallerProgram:
    """A program to run.

    Attributes:
        argv: The program and its arguments.
        cwd: Its working directory.
        environ: Its environment; None: that of this process.
    """

    argv: Sequence[str]
    cwd: str
    environ: Mapping[str, str] | None = None


def run_program(
    step: str, program: InstallerProgram, workshop: Workshop, *, reported: Sequence[str] = (), hint: str = ""
) -> None:
    """Runs a program until it ends.

    Args:
        step: Its name, reported before it starts.
        program: The program.
        workshop: The folder and the template of the build.
        reported: The beginnings of the output lines to report.
        hint: The hint of the error if the program fails.

    Raises:
        TemplateStoreError: The program could not be started, or did not exit with 0.
    """
    workshop.say(step)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        running = subprocess.Popen(
            program.argv,
            cwd=program.cwd,
            env=program.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            # The guest is another user, and must be able to read the written files.
            umask=0o022,
            # Ctrl-C reaches only this process, which then ends the program with its children.
            start_new_session=True,
            pass_fds=(workshop.lock_fd,),
        )
    except OSError as error:
        raise TemplateStoreError(
            template=workshop.template,
            operation="build",
            reason=f"{step}: {program.argv[0]!r} could not be started: {error}",
            hint=hint,
        ) from None

    with running:
        try:
            _listen(running, workshop, lines, reported)
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise

    if running.returncode:
        words = "".join(f"\n    {line}" for line in lines)
        raise TemplateStoreError(
            template=workshop.template,
            operation="build",
            reason=f"{step} failed with exit code {running.returncode}:{words}",
            hint=hint,
        )


def _listen(
    program: subprocess.Popen[str], workshop: Workshop, lines: deque[str], reported: Sequence[str]
) -> None:
    if program.stdout is None:
        return

    for text in program.stdout:
        line = text.rstrip()[:_LINE_CHARACTERS]

        if not line:
            continue

        lines.append(line)

        if line.lstrip().startswith(tuple(reported)):
            workshop.say(line.strip())


GUEST_REQUIREMENT = "ipython>=8.18"
_ENVIRONMENT = "python"
_WRITTEN = "requirements.txt"
_MAX_FILE_BYTES = 1 << 20
_MAX_FILES = 50
_INCLUDE = re.compile(r"\s*(?:-r|-c|--requirement|--constraint)(?:\s++|=)\s*+(\S+)")
_EDITABLE = re.compile(r"\s*(?:-e|--editable)\b")
_PIP_MESSAGES = ("Collecting", "Downloading", "Building wheel", "Installing collected")
_UV_MESSAGES = ("Resolved", "Prepared", "Downloading", "Building", "Built", "Installed")
_PIP_OPTIONS = (
    "--no-input",
    "--disable-pip-version-check",
    "--no-warn-script-location",
    "--progress-bar",
    "off",
)


class RequirementsSource(Source):
    """Requirements, and the Python that they are installed for.

    Args:
        requirements: The path of a requirements file, or the requirements themselves, among which `-r FILE` is one
            more file.
        python: A version, a path, or None for the Python of this process.
        say: Called when a Python is fetched.

    Raises:
        InvalidArgumentError: The file cannot be read, a line cannot work, or there is no such Python.
    """

    def __init__(self, requirements: str | Sequence[str], python: str | None, say: Say) -> None:
        if isinstance(requirements, str):
            self._files = [os.path.abspath(requirements)]
            self._single: str | None = None
        else:
            single = _joined([line for line in requirements if not _is_file(line)])
            self._single = single
            self._files = [os.path.abspath(line[2:].strip()) for line in requirements if _is_file(line)]

        self._texts = {} if self._single is None else {_WRITTEN: self._single}

        for path in self._files:
            self._texts.update(_read_with_includes(path))

        for text in self._texts.values():
            _refuse_editable(text)

        self._python = find_python(python, say)

    @property
    def interpreter(self) -> Interpreter:
        """The Python that the environment is made with."""
        return self._python

    def describe(self) -> dict[str, object]:
        """Returns the inputs of the environment."""
        return {
            "kind": "requirements",
            "requirements": list(self._texts.values()),
            "guest": GUEST_REQUIREMENT,
            "python": [os.path.realpath(self._python.path), self._python.text],
        }

    def make(self, workshop: Workshop) -> Made:
        """Makes a virtual environment and installs the requirements."""
        files, cwd = list(self._files), os.getcwd()

        if self._single is None:
            cwd = os.path.dirname(files[0])
        else:
            files.insert(0, os.path.join(workshop.folder, _WRITTEN))

            with open(files[0], "w", encoding="utf-8") as written:
                written.write(self._single)

        wanted = [word for file in files for word in ("-r", file)]
        folder = os.path.join(workshop.folder, _ENVIRONMENT)
        uv = find_uv()

        if uv is None:
            self._make_with_pip(workshop, folder, wanted, cwd)
        else:
            self._make_with_uv(uv, workshop, folder, wanted, cwd)

        return Made(python=os.path.join(folder, "bin", "python"))

    def _make_with_uv(self, uv: str, workshop: Workshop, folder: str, wanted: list[str], cwd: str) -> None:
        # uv does not read pip's configuration.
        settings = _pip_configuration()
        environ = uv_environ(settings)
        shared = ["--color", "never", "--no-progress", *(["--no-index"] if has_no_index(settings) else [])]
        # Seeded with pip: guests install with it.
        make = [uv, "venv", *shared, "--seed", "--python", self._python.path, folder]
        run_program(
            f"making an environment of Python {self._python.text} with uv",
            InstallerProgram(make, cwd, environ),
            workshop,
        )
        options = ["--compile-bytecode", "--python", os.path.join(folder, "bin", "python")]
        install = [uv, "pip", "install", *shared, *options, *wanted, GUEST_REQUIREMENT]
        run_program(
            "installing the requirements with uv",
            InstallerProgram(install, cwd, environ),
            workshop,
            reported=_UV_MESSAGES,
            hint=_INSTALL_HINT,
        )

    def _make_with_pip(self, workshop: Workshop, folder: str, wanted: list[str], cwd: str) -> None:
        run_program(
            f"making an environment of Python {self._python.text} with venv",
            InstallerProgram([self._python.path, "-I", "-m", "venv", folder], cwd),
            workshop,
            hint="install the venv module of this Python (python3-venv on Debian and Ubuntu), or uv",
        )
        pip = [os.path.join(folder, "bin", "python"), "-I", "-m", "pip"]
        run_program(
            "installing the requirements with pip",
            InstallerProgram([*pip, "install", *_PIP_OPTIONS, *wanted, GUEST_REQUIREMENT], cwd),
            workshop,
            reported=_PIP_MESSAGES,
            hint=_INSTALL_HINT,
        )


_INSTALL_HINT = (
    "check the names and versions of the requirements, that they have a release for this Python, "
    "and that the package index can be reached"
)


def _read_with_includes(path: str) -> dict[str, str]:
    """Returns the text of a requirements file and of those that it includes, by path."""
    texts: dict[str, str] = {}
    waiting = [path]

    while waiting:
        current = waiting.pop(0)

        if current in texts:
            continue

        if len(texts) == _MAX_FILES:
            allowed = f"a file that includes fewer than {_MAX_FILES} others"
            raise InvalidArgumentError(field="requirements", value=path, allowed=allowed)

        texts[current] = _read(current)
        includes = (match[1] for match in map(_INCLUDE.match, texts[current].splitlines()) if match)
        folder = os.path.dirname(current)
        waiting += [os.path.normpath(os.path.join(folder, name)) for name in includes if "://" not in name]

    return texts


def _read(path: str) -> str:
    allowed = "a readable requirements file in UTF-8, of at most 1 MiB"
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)

        if len(content) <= _MAX_FILE_BYTES:
            return content.decode()
    except OSError as error:
        allowed = f"{allowed} ({error.strerror})"
    except UnicodeDecodeError:
        allowed = f"{allowed} (it is not UTF-8)"

    raise InvalidArgumentError(field="requirements", value=path, allowed=allowed)


def _is_file(line: object) -> bool:
    return (
        isinstance(line, str) and line.startswith("-r ") and not set("\n\0") & set(line) and "://" not in line
    )


def _joined(requirements: Sequence[str]) -> str:
    for line in requirements:
        if not isinstance(line, str) or "\n" in line or "\0" in line:
            raise InvalidArgumentError(
                field="requirements", value=line, allowed="a path, or a list of lines such as 'polars>=1'"
            )

    return "".join(f"{line}\n" for line in requirements)


def _refuse_editable(text: str) -> None:
    for line in text.splitlines():
        if _EDITABLE.match(line):
            raise InvalidArgumentError(
                field="requirements",
                value=line.strip(),
                allowed="packages that are copied into the template; an editable one stays outside, where no "
                "sandbox sees it (leave out `-e`)",
            )


def _pip_configuration() -> dict[str, str]:
    """Returns pip's configuration; empty if pip is not installed."""
    try:
        return read_pip_configuration(ask_pip())
    except (OSError, subprocess.SubprocessError):
        return {}
