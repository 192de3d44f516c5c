"""The process of each language: confined as that of Python, also where it was forked from a branch of the zygote."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fumehood.values.languages import CONTEXT_LANGUAGES

from . import readers
from .conftest import HOST_SECRET

READ = {
    "python": "print(open('{}', errors='replace').read())",
    "bash": "tr '\\0' '\\n' <{}",
    "javascript": "console.log(require('fs').readFileSync('{}', 'latin1'))",
    "typescript": "const path: string = '{}'; console.log(require('fs').readFileSync(path, 'latin1'))",
    "r": "cat(rawToChar(Filter(function(b) b != 0, readBin('{}', 'raw', 1e6))))",
    "java": 'System.out.println(new String(new FileInputStream("{}").readAllBytes(), "ISO-8859-1"));',
}
NEEDS = {"r": "R", "java": "javac"}
LANGUAGES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in NEEDS and not shutil.which(NEEDS[name]),
            reason=f"needs the program {NEEDS.get(name)}: `make programs` installs it",
        ),
    )
    for name in READ
]
RESTRICTIONS = {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}


def restrictions(status: str) -> dict[str, str]:
    """The lines of a status file that say how a process is confined."""
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {name: lines[name].strip() for name in RESTRICTIONS}


@pytest.fixture(params=LANGUAGES)
def read(request, attacked):
    """Reads a file by code in one of the languages; returns None if it cannot be read."""

    def run(path: str) -> str | None:
        execution = attacked.sandbox.run_code(READ[request.param].format(path), language=request.param)
        return None if execution.error is not None else "".join(execution.logs.stdout)

    return run


def test_k01_its_process_is_confined(read):
    """No capability, no new privileges, the system call filter; this process has some of what it lacks."""
    assert restrictions(read("/proc/self/status") or "") == RESTRICTIONS
    assert restrictions(Path("/proc/self/status").read_text(encoding="ascii")) != RESTRICTIONS


def test_k14_it_sees_nothing_of_the_host(read):
    """Neither variables of the host process, nor files of the host, nor settings of its site for R."""
    # A context cannot read its own; a program that it has started can.
    variables = read("/proc/self/environ") or ""

    assert HOST_SECRET not in variables
    assert HOST_SECRET in os.environ.values()

    for path in ("/etc/shadow", "/etc/R/Renviron.site", "/proc/1/environ", str(Path(__file__))):
        assert not read(path)


LISTED = {
    "javascript": "console.log(require('fs').readdirSync('/proc/self/fd').map(fd => {"
    " try { return require('fs').readlinkSync('/proc/self/fd/' + fd) } catch { return '' } }).join('\\n'))",
    "r": "cat(Sys.readlink(list.files('/proc/self/fd', full.names = TRUE)), sep = '\\n')",
    "bash": "readlink /proc/$$/fd/*",
}


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one.values[0] in LISTED])
def test_k14_no_descriptor_of_a_branch_leaks(attacked, language):
    """Each leads to a pipe, to memory or an event of the process's own, or in a context to its channel: one socket."""
    execution = attacked.sandbox.run_code(LISTED[language], language=language)
    found = [line for line in "".join(execution.logs.stdout).splitlines() if line]

    assert len(found) > 2
    assert [line for line in found if line.startswith("socket:")][1:] == []
    assert not [
        line for line in found if line.startswith(("pidfd", "/proc", "net:", "pid:", "mnt:", "user:"))
    ]


# `make test-languages` installs all of them; what `make programs` installs is tried each time.
FEW = ("c", "cpp", "csharp", "lua", "perl", "php", "sql")
WHOLE = [*readers.PROGRAMS, "sql"] if "EVERY_LANGUAGE" in os.environ else FEW
# A sandbox of its own finds programs there.
PATH = "/usr/local/bin:/usr/bin:/bin"
HOST_FILES = [
    "/etc/shadow",
    "/proc/1/environ",
    "/proc/1/mem",
    "/dev/mem",
    "/root/.bash_history",
    str(Path(__file__)),
]
READABLE = ["/proc/self/status", "/etc/hostname"]


def whole_programs() -> Iterator[object]:
    for name in WHOLE:
        missing = [
            one for one in CONTEXT_LANGUAGES[name].source.programs if shutil.which(one, path=PATH) is None
        ]
        reason = f"needs the programs {missing}: `make programs` installs them"
        yield pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=reason))


@pytest.mark.parametrize("language", list(whole_programs()))
def test_k14_a_whole_program_is_confined_and_sees_nothing_of_the_host(attacked, language):
    """In each language by its own means: no capability, the filter, no variable and no file of the host."""
    # The last one has no end of line, behind which the next would begin.
    paths = [*READABLE, *HOST_FILES, "/proc/self/environ"]
    code = readers.sql(paths) if language == "sql" else readers.PROGRAMS[language]
    execution = attacked.sandbox.run_code(
        code, language=language, stdin="".join(f"{path}\n" for path in paths), timeout=120
    )
    assert execution.error is None, (execution.error, execution.logs)
    found = readers.files_in("".join(execution.logs.stdout))

    # What it may read it has read: the others were refused, and not missed.
    assert set(found) == set(paths)
    assert restrictions(found["/proc/self/status"]) == RESTRICTIONS
    assert "HOME=/home/user" in found["/proc/self/environ"].replace("\0", "\n") or language == "cobol"
    assert found["/etc/hostname"] == "fumehood"
    assert HOST_SECRET not in "".join(execution.logs.stdout)
    assert {path: found[path] for path in HOST_FILES} == dict.fromkeys(HOST_FILES, "")
