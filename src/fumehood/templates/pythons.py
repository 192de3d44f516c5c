"""Finds the Python of a template: this process's own, one of this machine's, or one that uv fetches.

An interpreter is used only after it has answered: the programs of version switchers exist under every name and may
start nothing.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fumehood.errors import InvalidArgumentError
from fumehood.templates.recipe import Say

OLDEST = (3, 9)
_VERSION = re.compile(r"3\.\d{1,2}(\.\d{1,3})?")
_PLACES = (
    "~/.pyenv/versions/*/bin/python3",
    "~/.local/share/uv/python/cpython-*/bin/python3",
    "/opt/python*/bin/python3",
)
_QUESTION = (
    "import json, platform, sys; "
    "print(json.dumps([platform.python_implementation(), sys.executable, *sys.version_info[:3]]))"
)
_ANSWER_SECONDS = 30
_FETCH_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python of this machine.

    Attributes:
        path: The path that the interpreter reports; the requested one may be the program of a version switcher.
        version: Major, minor and micro version.
    """

    path: str
    version: tuple[int, int, int]

    @property
    def text(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))


def find_python(wanted: str | None, say: Say) -> Interpreter:
    """Finds the requested interpreter.

    Args:
        wanted: A version such as 3.12 or 3.12.1, a path, or None for the Python of this process.
        say: Called with a line of text when uv fetches an interpreter.

    Raises:
        InvalidArgumentError: The Python does not exist, or is not supported for templates.
    """
    if wanted is None:
        return _asked(sys.executable, sys.executable)

    if not isinstance(wanted, str) or not wanted:
        raise InvalidArgumentError(
            field="python", value=wanted, allowed="a version such as 3.12, from 3.9 on, or a path"
        )

    if os.sep in wanted:
        return _asked(os.path.abspath(os.path.expanduser(wanted)), wanted)

    if _VERSION.fullmatch(wanted) is None:
        raise InvalidArgumentError(
            field="python",
            value=wanted,
            allowed="a version such as 3.12, from 3.9 on, or the path of an interpreter",
        )

    _check_age(wanted, tuple(map(int, wanted.split("."))))
    found = next((one for one in _candidates(wanted) if _fits(one, wanted)), None) or _fetched(wanted, say)

    if found is not None:
        return found

    known = ", ".join(one.text for one in installed_pythons())
    raise InvalidArgumentError(
        field="python",
        value=wanted,
        allowed=f"a version that is on this machine ({known}), the path of an interpreter, or any version that "
        "uv can fetch, once uv is installed and its downloads can be reached",
    )


def installed_pythons() -> tuple[Interpreter, ...]:
    """Returns one interpreter of each minor version that templates support, the oldest first."""
    versions: dict[tuple[int, ...], Interpreter] = {}

    for found in _candidates(None):
        if found.version[:2] >= OLDEST:
            versions.setdefault(found.version[:2], found)

    return tuple(versions[key] for key in sorted(versions))


def find_uv() -> str | None:
    """Returns the path of uv: on the search path, or installed beside this process's Python."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    return shutil.which("uv") or (beside if os.access(beside, os.X_OK) else None)


def _candidates(wanted: str | None) -> Iterator[Interpreter]:
    """Yields every interpreter that answers, our own first."""
    minor = ".".join(wanted.split(".")[:2]) if wanted else None
    names = [f"python{minor}"] if minor else [f"python3.{number}" for number in range(9, 20)]
    paths = [sys.executable, *(path for name in (*names, "python3") if (path := shutil.which(name)))]

    for place in _PLACES:
        paths += sorted(glob.glob(os.path.expanduser(place)), reverse=True)

    for path in dict.fromkeys(paths):
        found = _ask(path)

        if found is not None:
            yield found


def _fits(found: Interpreter, wanted: str) -> bool:
    return f"{found.text}.".startswith(f"{wanted}.")


def _asked(path: str, wanted: str) -> Interpreter:
    found = _ask(path)

    if found is None:
        raise InvalidArgumentError(
            field="python", value=wanted, allowed="the path of a CPython interpreter that starts"
        )

    _check_age(wanted, found.version)
    return found


def _check_age(wanted: str, version: tuple[int, ...]) -> None:
    if version < OLDEST:
        raise InvalidArgumentError(field="python", value=wanted, allowed="Python 3.9 or newer")


def _ask(path: str) -> Interpreter | None:
    try:
        answer = subprocess.run(
            [path, "-I", "-c", _QUESTION], capture_output=True, check=True, timeout=_ANSWER_SECONDS, text=True
        )
        implementation, executable, major, minor, micro = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None

    # The guest uses features of the interpreter that only CPython has.
    if implementation != "CPython":
        return None

    return Interpreter(path=str(executable), version=(int(major), int(minor), int(micro)))


def _fetched(wanted: str, say: Say) -> Interpreter | None:
    """Lets uv fetch the interpreter; returns None without uv, or when uv cannot fetch it."""
    uv = find_uv()

    if uv is None:
        return None

    say(f"fetching Python {wanted} with uv")
    try:
        subprocess.run(
            [uv, "python", "install", "--quiet", wanted],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_FETCH_SECONDS,
            text=True,
        )
        found = subprocess.run(
            [uv, "python", "find", "--quiet", "--managed-python", wanted],
            capture_output=True,
            check=True,
            timeout=_ANSWER_SECONDS,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        words = str(error.stderr or "").strip().rpartition("\n")[2]
        say(f"uv could not fetch it: {words.strip()[:200]}")
        return None
    except (OSError, subprocess.SubprocessError) as error:
        say(f"uv could not fetch it: {error}")
        return None

    return _ask(found.stdout.strip())
