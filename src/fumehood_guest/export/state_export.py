"""State export: writes the state of a context to files, and restores it in another sandbox.

Runs in a context, as a silent execution that the host requests between two cells, when its sandbox is saved or loaded.
It writes its results into a folder, from which the host reads them like any file. The host must not trust them, and
checks every value.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import sys
from types import ModuleType
from typing import Any, Dict, Iterator, List, Tuple

from IPython import get_ipython

from fumehood_guest.export.pickling import (
    Bounds,
    Segment,
    pickle_variables,
    pickled_by,
    reason_of,
    unpickle_variables,
)
from fumehood_guest.shared.writable_files import PART_PREFIX
from fumehood_jail.mounts import WRITABLE

MAX_FILES = 100_000
# Names that IPython reserves: inputs, outputs, and the attributes of every module.
_OWN_NAMES = re.compile(r"_+|_i+|_i?\d+|_[iod]h|_exit_code|__\w*__|In|Out")
_MAX_NAME_CHARACTERS = 1_000
_STATE = "state.json"
_ORDER = "order.json"
_RESULT = "result.json"
_VARIABLES = "variables"
_FILES = "files.json"


def write_state(folder: str, bounds: Tuple[int, int, float, float]) -> None:
    """Writes the content of this context into a new folder.

    Args:
        folder: The folder.
        bounds: Most bytes of one variable and of all together, most seconds for one and for all together.
    """
    os.mkdir(folder, 0o700)
    shell = get_ipython()
    variables, imports = _sorted_out(shell.user_ns, shell.user_ns_hidden)
    each_bytes, all_bytes, each_seconds, all_seconds = bounds
    room = os.statvfs(folder)
    # Half of the free disk space is left to the sandbox.
    all_bytes = min(all_bytes, room.f_bavail * room.f_frsize // 2)

    with open(os.path.join(folder, _VARIABLES), "w+b") as file:
        kept = pickle_variables(variables, file, Bounds(each_bytes, all_bytes, each_seconds, all_seconds))

    state = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "execution_count": shell.execution_count,
        "pickled_by": pickled_by(),
        "variables": [
            {"name": name, "type": _type_name(variables[name]), "size_bytes": size_bytes}
            for name, size_bytes in kept.segments
        ],
        "imports": [{"name": name, "module": module} for name, module in imports.items()],
        "left_out": [{"name": name, "reason": reason} for name, reason in kept.left_out.items()],
    }
    _write(folder, _STATE, state)


def list_files(folder: str) -> None:
    """Writes a list of all entries of the writable folders into `folder`, which is itself left out."""
    os.makedirs(folder, 0o700, exist_ok=True)
    entries: List[Dict[str, Any]] = []
    left_out: List[Dict[str, str]] = []
    seen: Dict[Tuple[int, int], str] = {}

    for path, status in _walk(left_out):
        if _is_in(path, folder):
            continue

        if len(entries) == MAX_FILES:
            left_out.append({"name": path, "reason": f"there are more than {MAX_FILES:,} files"})
            break

        entry = _describe(path, status, seen)

        if entry is None:
            left_out.append({"name": path, "reason": "it is neither a file nor a directory nor a link"})
        else:
            entries.append(entry)

    _write(folder, _FILES, {"files": entries, "left_out": left_out})


def finish_files(folder: str) -> None:
    """Makes directories and links, and sets modes and times, as the order file in `folder` says."""
    entries = _read(folder, _ORDER)["files"]
    failed = []

    # Innermost first: filling a directory changes its time, and may need rights that it will not have.
    for entry in reversed(entries):
        try:
            _finish(entry)
        except OSError as error:
            failed.append({"name": entry["path"], "reason": reason_of(error)})

    _write(folder, _RESULT, {"missing": failed})


def prepare_places(folder: str) -> None:
    """Removes writable files that the order file in `folder` does not name, and makes its directories."""
    entries = _read(folder, _ORDER)["files"]
    named = {entry["path"]: entry["type"] for entry in entries}
    found = [(path, stat.S_ISDIR(status.st_mode)) for path, status in _walk([])]

    for path, is_directory in reversed(found):
        if _is_in(path, folder):
            continue

        if is_directory and named.get(path) != "dir":
            os.rmdir(path)
        elif not is_directory and named.get(path) != "file":
            os.unlink(path)

    for entry in entries:
        if entry["type"] == "dir":
            os.makedirs(entry["path"], exist_ok=True)


def read_state(folder: str) -> None:
    """Restores variables and settings from the files in `folder`, and writes the names of failed ones there."""
    shell = get_ipython()
    order = _read(folder, _ORDER)
    missing = []
    try:
        os.chdir(order["cwd"])
    except OSError as error:
        missing.append({"name": "the working directory", "reason": reason_of(error)})

    os.environ.update(order["environment"])

    for name in order["unset"]:
        os.environ.pop(name, None)

    for one in order["imports"]:
        try:
            shell.user_ns[one["name"]] = importlib.import_module(one["module"])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            missing.append({"name": one["name"], "reason": reason_of(error)})

    segments = [Segment(one["name"], one["size_bytes"]) for one in order["variables"]]

    if segments:
        with open(os.path.join(folder, _VARIABLES), "rb") as file:
            unread = unpickle_variables(file, segments, shell.user_ns)

        missing += [{"name": name, "reason": reason} for name, reason in unread.items()]

    shell.execution_count = order["execution_count"]
    _write(folder, _RESULT, {"missing": missing})


def _sorted_out(namespace: Dict[str, Any], hidden: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Returns the user's variables, and their imported modules, by name."""
    variables: Dict[str, Any] = {}
    imports: Dict[str, str] = {}

    for name, value in list(namespace.items()):
        if type(name) is not str or _OWN_NAMES.fullmatch(name) or len(name) > _MAX_NAME_CHARACTERS:
            continue

        if name in hidden and hidden[name] is value:
            continue

        module = getattr(value, "__name__", None) if type(value) is ModuleType else None

        if type(module) is str and sys.modules.get(module) is value:
            imports[name] = module
        else:
            variables[name] = value

    return variables, imports


def _type_name(value: Any) -> str:
    kind = type(value)
    # Bypasses attributes of a metaclass.
    module = type.__dict__["__module__"].__get__(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    return str(name if module in ("builtins", "__main__") else f"{module}.{name}")[:_MAX_NAME_CHARACTERS]


def _walk(left_out: List[Dict[str, str]]) -> Iterator[Tuple[str, os.stat_result]]:
    """Yields all entries below the writable folders, each directory before its content; files may come and go."""
    waiting = list(WRITABLE)

    while waiting:
        directory = waiting.pop()
        try:
            found = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as error:
            left_out.append({"name": directory, "reason": reason_of(error)})
            continue

        for entry in found:
            if entry.name.startswith(PART_PREFIX):
                continue

            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue

            yield entry.path, status

            if stat.S_ISDIR(status.st_mode):
                waiting.append(entry.path)


def _is_in(path: str, folder: str) -> bool:
    # By its name, which is random: one folder can have several paths.
    return os.path.basename(folder) in path.split("/")


def _describe(path: str, status: os.stat_result, seen: Dict[Tuple[int, int], str]) -> Any:
    entry: Dict[str, Any] = {
        "path": path,
        "type": "file",
        "mode": stat.S_IMODE(status.st_mode),
        "modified_ns": status.st_mtime_ns,
        "size_bytes": status.st_size,
        "target": "",
    }

    if stat.S_ISDIR(status.st_mode):
        return {**entry, "type": "dir", "size_bytes": 0}

    if stat.S_ISLNK(status.st_mode):
        return {**entry, "type": "symlink", "target": os.readlink(path), "size_bytes": 0}

    if not stat.S_ISREG(status.st_mode):
        return None

    first = seen.setdefault((status.st_dev, status.st_ino), path) if status.st_nlink > 1 else path

    if first != path:
        return {**entry, "type": "hardlink", "target": first, "size_bytes": 0}

    return entry


def _finish(entry: Dict[str, Any]) -> None:
    path, kind, times = entry["path"], entry["type"], (entry["modified_ns"], entry["modified_ns"])

    if kind in ("symlink", "hardlink"):
        if os.path.lexists(path):
            os.unlink(path)

        if kind == "hardlink":
            os.link(entry["target"], path)
            return

        os.symlink(entry["target"], path)
        os.utime(path, ns=times, follow_symlinks=False)
        return

    os.chmod(path, entry["mode"])
    os.utime(path, ns=times)


def _read(folder: str, name: str) -> Any:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return json.load(file)


def _write(folder: str, name: str, value: Any) -> None:
    # Names that are not valid text are escaped.
    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
        json.dump(value, file)
