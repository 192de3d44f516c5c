"""The JVM that runs cells of Java: finds a JDK, chooses its options, encodes requests to the driver.

The driver is a Java class. It is compiled once, in the branch of the zygote that forks contexts of Java, and they
inherit the compiled bytes. They also inherit an archive of the classes that a driver loads, which saves each later JVM
a third of its start time. A context writes both where its JVM finds them. Code of a sandbox is never compiled here.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Tuple

from fumehood_guest.languages.programs import MissingProgramError

_OLDEST_JAVA = 17
_RELEASE = re.compile(r'^(JAVA_VERSION|MODULES)="(.*)"$', re.MULTILINE)
_SOURCE = os.path.join(os.path.dirname(__file__), "Driver.java")
# The archive names the path of the classes: it is the same in the base jail and in every sandbox.
_FOLDER = "/tmp/.fumehood-java"  # noqa: S108 - of the sandbox, or of the base jail
_CLASSES = f"{_FOLDER}/driver.jar"
_ARCHIVE = f"{_FOLDER}/driver.jsa"
# It names their time too.
_TIME = 1_700_000_000
_COMPILE_SECONDS = 120
_MAIN = "fumehood.Driver"
_LENGTH_BYTES = 4
# Starts soon, and takes little memory: cells are seldom worth the second compiler.
_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Xlog:disable",
    "-Dfile.encoding=UTF-8",
)
_MEMORY_LINE = re.compile(r"^MemTotal:\s+(\d+) kB", re.MULTILINE)


class JavaDriver:
    """A JVM with its driver.

    Raises:
        MissingProgramError: No suitable JDK is installed.
    """

    def __init__(self) -> None:
        self._java = os.path.join(find_home(), "bin", "java")
        _write_classes(_made.classes or _compile(find_home()))
        self.fds: Tuple[int, ...] = ()

        if _made.archive:
            fd = os.memfd_create("archive")

            with open(fd, "wb", closefd=False) as file:
                file.write(_made.archive)

            self.fds = (fd,)

    def command(
        self, requests: int, replies: int, _breaks: int, _settled: int
    ) -> Tuple[Tuple[str, ...], Dict[str, str]]:
        """Returns the program with its arguments, and the variables that it needs, for these descriptors."""
        archive = [f"-XX:SharedArchiveFile=/proc/self/fd/{fd}" for fd in self.fds]
        words = (*_FLAGS, *archive, *_memory(), "-cp", _CLASSES, _MAIN, str(requests), str(replies))
        return (self._java, *words), {}

    def encode(self, request: Dict[str, Any]) -> bytes:
        """Returns the body of a request: names and texts in alternation, each preceded by its length."""
        fields = {name: str(value) for name, value in request.items() if name not in ("envs", "silent")}

        if request.get("silent"):
            fields["silent"] = "yes"

        fields.update({f"env:{name}": text for name, text in request.get("envs", {}).items()})
        parts = [text.encode("utf-8", "replace") for pair in fields.items() for text in pair]
        return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


class _Made:
    """The classes of the driver: compiled by this process, or inherited by the fork from the process that did."""

    def __init__(self) -> None:
        self.classes = b""
        self.archive = b""


_made = _Made()


def find_home() -> str:
    """Returns the folder of the JDK to use: the one of `java` in the search path, or else another one.

    Raises:
        MissingProgramError: No suitable JDK is installed.
    """
    found = "no program `java` is there"

    for home in _homes():
        try:
            with open(os.path.join(home, "release"), encoding="utf-8") as file:
                known = dict(_RELEASE.findall(file.read()))
        except OSError:
            continue

        version = known.get("JAVA_VERSION", "")
        major = version.split(".")[0]

        if not major.isdigit() or int(major) < _OLDEST_JAVA:
            found = f"{home} is Java {version}, and {_OLDEST_JAVA} is the oldest that will do"
        elif not os.path.exists(os.path.join(home, "bin", "javac")):
            found = f"{home} is a runtime without a compiler"
        elif "jdk.jshell" not in known.get("MODULES", "jdk.jshell").split():
            found = f"{home} has no JShell"
        else:
            return home

    raise MissingProgramError(found)


def _homes() -> Iterator[str]:
    program = shutil.which("java")

    if program is not None:
        yield os.path.dirname(os.path.dirname(os.path.realpath(program)))

    yield from sorted(glob.glob("/usr/lib/jvm/*"), reverse=True)


def preload() -> None:
    """Compiles the driver in a process whose forks are contexts; does nothing where there is no JDK."""
    try:
        _made.classes = _compile(find_home())
    except MissingProgramError:
        # Each context says why it cannot start.
        return


def start_archive() -> Optional["subprocess.Popen[bytes]"]:
    """Starts the JVM that writes the archive, in the process that has compiled the driver.

    None if it cannot be started.
    """
    if not _made.classes:
        return None

    words = (*_FLAGS, f"-XX:ArchiveClassesAtExit={_ARCHIVE}", "-cp", _CLASSES, _MAIN)
    return subprocess.Popen(
        (os.path.join(find_home(), "bin", "java"), *words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def keep_archive() -> None:
    """Keeps the archive for contexts that are forked from now on; does nothing if it was not written."""
    try:
        with open(_ARCHIVE, "rb") as file:
            _made.archive = file.read()
    except OSError:
        return

    os.unlink(_ARCHIVE)


def _compile(home: str) -> bytes:
    """Returns the classes of the driver.

    Raises:
        MissingProgramError: The driver cannot be compiled.
    """
    target = f"{_FOLDER}/classes"
    os.makedirs(target, exist_ok=True)
    words: List[str] = [os.path.join(home, "bin", "javac"), "-J-XX:TieredStopAtLevel=1", "-nowarn"]
    try:
        done = subprocess.run(
            (*words, "-d", target, _SOURCE), capture_output=True, timeout=_COMPILE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingProgramError(f"the compiler of {home} does not run: {error}") from error

    if done.returncode != 0:
        raise MissingProgramError(
            f"the compiler of {home} fails: {done.stderr.decode('utf-8', 'replace')[:500]}"
        )

    archive = shutil.make_archive(f"{_FOLDER}/driver", "zip", target)
    shutil.rmtree(target)

    with open(archive, "rb") as file:
        classes = file.read()

    os.unlink(archive)
    _write_classes(classes)
    return classes


def _write_classes(classes: bytes) -> None:
    os.makedirs(_FOLDER, exist_ok=True)

    with open(_CLASSES, "wb") as file:
        file.write(classes)

    os.utime(_CLASSES, (_TIME, _TIME))


def _memory() -> List[str]:
    """Returns the option that keeps the heap within the memory of the sandbox: a JVM sees that of the machine."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = _MEMORY_LINE.search(file.read())
    except OSError:
        found = None

    return [] if found is None else [f"-XX:MaxRAM={found.group(1)}k", "-XX:MaxRAMPercentage=50"]
