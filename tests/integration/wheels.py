"""Small packages for the tests that install them: finished wheels, and a project that builds its own."""

from __future__ import annotations

import io
import zipfile

_MODULE = """
import sys


def greet(name):
    return f"hello {name}"


def main():
    print(greet(sys.argv[1]))
"""
_WHEEL = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_SCRIPTS = "[console_scripts]\ngreet = greeter:main\n"


def make_wheel(name: str, version: str = "1.0", requires: str = "", module: str = _MODULE) -> bytes:
    """Write a package of one module; the one called `greeter` brings a program."""
    folder = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {f"{name}.py": f"__version__ = {version!r}\n\n\n{module}", f"{folder}/WHEEL": _WHEEL}

    if requires:
        metadata += f"Requires-Dist: {requires}\n"

    if name == "greeter":
        files[f"{folder}/entry_points.txt"] = _SCRIPTS

    files[f"{folder}/METADATA"] = metadata
    files[f"{folder}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{folder}/RECORD"])
    wheel = io.BytesIO()

    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            archive.writestr(path, text)

    return wheel.getvalue()


# A build backend of its own, so that building needs nothing that the template may lack.
_BACKEND = """
import os
import zipfile


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    files = {"greeter.py": open("greeter.py").read()} | FILES
    name = "greeter-1.0-py3-none-any.whl"

    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)

    return name
"""

_BUILT_FILES = {
    "greeter-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n",
    "greeter-1.0.dist-info/WHEEL": _WHEEL,
    "greeter-1.0.dist-info/entry_points.txt": _SCRIPTS,
    "greeter-1.0.dist-info/RECORD": "greeter.py,,\n",
}

GREETER_SOURCES = {
    "greeter.py": _MODULE,
    "backend.py": f"FILES = {_BUILT_FILES!r}\n{_BACKEND}",
    "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
}
