"""Bytecode for an image's own Python, so that a sandbox with an interpreter of its own does not compile at each start.

Runs in the host process. The image's Python compiles in a jail, where what it writes to files is dropped, and says the
result on its standard output; the host checks the paths, writes the bytes into a layer of its own, and never loads
them. A layer is named by all layers of its image: no other image's interpreter reads what this one has compiled, and
this one runs our code in each sandbox anyway. Sandboxes see the layer read-only, like all others.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fumehood.templates.guest_code import guest_code, guest_code_digest
from fumehood.templates.images.interpreters import Found, readable
from fumehood.templates.images.jailed import image_ids
from fumehood.templates.images.layers import LayerStore, NewLayer, layer_key
from fumehood.templates.images.steps import ImageProgram, StepRules, run_program
from fumehood.templates.recipe import Workshop
from fumehood.values.guest_paths import GUEST_PACKAGES_PATH, IMAGE_PACKAGES_PATH
from fumehood.values.image import BYTECODE_OF_GUEST, BYTECODE_OF_IMAGE, BYTECODE_OF_PACKAGES
from fumehood.values.network import Network
from fumehood_guest.image.bytecode import MARK

_FORMAT = "1"
_SECONDS = 120.0
_LIMITS = {"as": 2 << 30, "nproc": 64, "fsize": 1 << 20}
_MOST_SAID = 64 << 20
_MOST_FILES = 4000
# An empty line comes before each file, and warnings may come between.
_MOST_LINES = 4 * _MOST_FILES
# A file of a megabyte, in base64, and its path.
_MOST_LINE = 1_400_000
# Of a module of ours: the largest has 40 KiB.
_MOST_OF_OURS = 256 << 10
_MOST_PATH = 500
_COMPILE = "from fumehood_guest.image.bytecode import main; main({folders!r})"
# In the temporary folder of the new layer: what the image's Python compiles, over the image's own files.
_SOURCES = "sources"


def image_bytecode(
    python: Found, layers: Sequence[str], packages: str, store: LayerStore, workshop: Workshop
) -> str:
    """Returns the layer with the bytecode for an image's own Python; empty if that compiles nothing.

    Args:
        python: The interpreter.
        layers: Names of the image's layers, the lowest first.
        packages: Name of the layer with the guest's packages.
        store: The store that has the layers.
        workshop: The template of the build.
    """
    key = layer_key(
        "bytecode", _FORMAT, *layers, python.path, str(python.version), packages, guest_code_digest()
    )

    if store.info(key) is not None:
        return key

    workshop.say("compiling the guest's code for it")

    with store.making(os.geteuid()) as made:
        sources = os.path.join(made.folder, _SOURCES)
        beside = sources + IMAGE_PACKAGES_PATH
        _copy_guest_code(sources + GUEST_PACKAGES_PATH)
        shutil.copytree(store.path(packages), beside, symlinks=True, copy_function=_link)
        said = _compiled(python, [*map(store.path, layers), sources], workshop)

        if not said.files:
            workshop.say("it has compiled nothing: each start will compile")
            return ""

        os.rename(beside, os.path.join(made.content, BYTECODE_OF_PACKAGES))
        shutil.rmtree(sources)
        _write(said.files, made)
        made.keep(key, readable(made.content, f"bytecode for Python {'.'.join(map(str, python.version))}"))

    return key


@dataclass(slots=True)
class Said:
    """The output of the compiling program, which is not trusted.

    Attributes:
        text: What has arrived.
        files: The bytes of each file, by its path in the image.
    """

    text: bytearray = field(default_factory=bytearray)
    files: dict[str, bytes] = field(default_factory=dict)

    def hear(self, data: bytes) -> None:
        """Takes a piece of output, within the bound."""
        self.text.extend(data[: _MOST_SAID - len(self.text)])

    def is_too_large(self) -> bool:
        """Returns whether the bound is reached."""
        return len(self.text) >= _MOST_SAID

    def read(self) -> None:
        """Reads the lines that are well-formed into `files`."""
        lines = io.BytesIO(self.text)

        # One line at a time, and not all of them in a list: that could take twenty times the memory of the text.
        for _ in range(_MOST_LINES):
            line = lines.readline(_MOST_LINE)
            words = line.split(b" ", 3)

            if len(words) != 3 or words[0] != MARK.encode() or len(self.files) >= _MOST_FILES:
                continue

            with suppress(ValueError):
                path, data = words[1].decode("ascii"), b64decode(words[2].removesuffix(b"\n"), validate=True)

                # A line that is longer than the bound is read in pieces, of which none is a whole file.
                if line.endswith(b"\n") and _is_bytecode_path(path):
                    self.files[path] = data


def _is_bytecode_path(path: str) -> bool:
    """Returns whether it is the plain absolute path of a bytecode file."""
    parts = path.split("/")
    return (
        len(path) <= _MOST_PATH
        and path.isprintable()
        and parts[0] == ""
        and not {"", ".", ".."} & set(parts[1:])
        and len(parts) > 3
        and parts[-2] == "__pycache__"
        and parts[-1].endswith(".pyc")
    )


def _module_of(path: str) -> str:
    """Returns the path of the module that a bytecode file of ours belongs to, below the packages and without suffix."""
    folder, _, name = path.removeprefix(f"{GUEST_PACKAGES_PATH}/").rpartition("/__pycache__/")
    return f"{folder}/{name.split('.')[0]}"


def _compiled(python: Found, folders: Sequence[str], workshop: Workshop) -> Said:
    said = Said()
    argv = [python.path, "-B", "-c", _COMPILE.format(folders=(GUEST_PACKAGES_PATH, IMAGE_PACKAGES_PATH))]
    # As in the template's own processes: nothing of the image's environment variables.
    envs = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}  # noqa: S108 - in the image
    envs["PYTHONPATH"] = f"{GUEST_PACKAGES_PATH}:{IMAGE_PACKAGES_PATH}"
    rules = StepRules(
        ids=image_ids(workshop.template),
        network=Network(),
        seconds=_SECONDS,
        is_too_large=said.is_too_large,
        limits=_LIMITS,
    )
    outcome = run_program(folders, None, ImageProgram(argv=argv, envs=envs), rules, said.hear)

    if outcome.status == 0:
        said.read()

    return said


def _write(files: dict[str, bytes], made: NewLayer) -> None:
    """Writes the files into a layer; no path leads out of it, since there are no links in these folders."""
    image = os.path.join(made.content, BYTECODE_OF_IMAGE)
    os.mkdir(image)
    guest = {}
    ours = {os.path.splitext(name)[0] for name, _ in guest_code()}

    for path, data in files.items():
        if path.startswith(f"{GUEST_PACKAGES_PATH}/"):
            # This text goes into the plan of each start: what is no module of ours has no place in it.
            if _module_of(path) in ours and len(data) <= _MOST_OF_OURS:
                guest[path] = b64encode(data).decode()
        elif path.startswith(f"{IMAGE_PACKAGES_PATH}/"):
            _write_one(
                os.path.join(made.content, BYTECODE_OF_PACKAGES) + path.removeprefix(IMAGE_PACKAGES_PATH),
                data,
            )
        else:
            _write_one(image + path, data)

    with open(os.path.join(made.content, BYTECODE_OF_GUEST), "w", encoding="ascii") as file:
        json.dump(guest, file)


def _write_one(path: str, data: bytes) -> None:
    # A path may have another one as its folder.
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)

        with open(path, "xb") as file:
            file.write(data)


def _copy_guest_code(folder: str) -> None:
    for name, path in guest_code():
        target = os.path.join(folder, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(path, target)


def _link(source: str, target: str) -> None:
    """Makes a second name for a file of the store, which never changes."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy(source, target, follow_symlinks=False)
