"""The process of each language: confined as that of Python, also where it was forked from a branch of the zygote."""

from __future__ import annotations

import os
import shutil
import socket
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


# Of each language: writes a file, and says `written` behind that.
WRITE = {
    "python": "_ = open('{}', 'w').write('x'); print('written')",
    "bash": "echo x >{} && echo written",
    "javascript": "require('fs').writeFileSync('{}', 'x'); console.log('written')",
    "typescript": "const to: string = '{}'; require('fs').writeFileSync(to, 'x'); console.log('written')",
    "r": "cat('x', file = '{}'); cat('written')",
    "java": 'java.nio.file.Files.writeString(java.nio.file.Path.of("{}"), "x"); System.out.println("written");',
}
# Of each: connects to a port of an address, and says `connected` behind that.
CONNECT = {
    "python": "import socket; _ = socket.create_connection(('{0}', {1}), 3); print('connected')",
    "bash": "exec 7<>/dev/tcp/{0}/{1} && echo connected",
    "javascript": "await new Promise((done, fail) => "
    "require('net').connect({1}, '{0}', done).on('error', fail)); console.log('connected')",
    "typescript": "const port: number = {1}; await new Promise<void>((done, fail) => "
    "require('net').connect(port, '{0}', done).on('error', fail)); console.log('connected')",
    "r": "close(socketConnection('{0}', {1}, timeout = 3)); cat('connected')",
    "java": 'new java.net.Socket("{0}", {1}).close(); System.out.println("connected");',
}
# Of each: ten million characters in lines, which is more than is kept.
FLOOD = {
    "python": "for _ in range(100_000): print('x' * 99)",
    "bash": "head -c 10000000 /dev/zero | tr '\\0' x | fold -w 99",
    "javascript": "for (let n = 0; n < 100000; n++) console.log('x'.repeat(99))",
    "typescript": "for (let n: number = 0; n < 100000; n++) console.log('x'.repeat(99))",
    "r": "for (n in 1:1000) cat(strrep(paste0(strrep('x', 99), '\n'), 100))",
    "java": 'for (int n = 0; n < 100000; n++) System.out.println("x".repeat(99));',
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_f01_it_writes_in_its_home_alone(attacked, language):
    """The system, its devices, its own settings and other users' folders are refused; its home is not."""
    for path in (
        "/usr/bin/ls",
        "/etc/passwd",
        "/usr/lib/new",
        "/root/new",
        "/dev/new",
        "/proc/1/oom_score_adj",
        "/new",
    ):
        execution = attacked.sandbox.run_code(WRITE[language].format(path), language=language)
        assert "written" not in "".join(execution.logs.stdout), path
        # Bash goes on behind an error of a redirection.
        assert execution.error is not None or execution.logs.stderr, path

    attacked.sandbox.run_code(WRITE[language].format("/home/user/mine"), language=language)
    assert attacked.sandbox.files.read("/home/user/mine").strip() == "x"
    attacked.sandbox.files.remove("/home/user/mine")


@pytest.mark.parametrize("language", LANGUAGES)
def test_n01_it_reaches_no_network(attacked, language):
    """Neither what listens on the host nor an address outside; a server of the sandbox's own is reached."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)

        for address in ("127.0.0.1", "192.0.2.1", "169.254.169.254"):
            port = listener.getsockname()[1]
            execution = attacked.sandbox.run_code(CONNECT[language].format(address, port), language=language)
            assert "connected" not in "".join(execution.logs.stdout), address

        with pytest.raises(BlockingIOError):
            listener.accept()

    port = attacked.run(
        "import socket; own = socket.create_server(('127.0.0.1', 0)); print(own.getsockname()[1])"
    )
    execution = attacked.sandbox.run_code(
        CONNECT[language].format("127.0.0.1", port.strip()), language=language
    )
    assert "connected" in "".join(execution.logs.stdout), execution.error
    attacked.run("own.close()")


@pytest.mark.parametrize("language", LANGUAGES)
def test_r05_its_flood_is_bounded(attacked, language):
    """What is kept of ten megabytes has head and tail; the context lives and keeps what it knew."""
    execution = attacked.sandbox.run_code(FLOOD[language], language=language, timeout=60)

    assert execution.error is None, execution.error
    kept = "".join(execution.logs.stdout)
    assert 1000 < len(kept) < 5_000_000
    assert execution.truncated.stdout_bytes > 5_000_000
    execution = attacked.sandbox.run_code(WRITE[language].format("/home/user/after"), language=language)
    assert "written" in "".join(execution.logs.stdout)


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
