"""Folders for templates, with the private interpreter of images in them: making one takes seconds, copying does not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fumehood.templates.images.interpreters import private_interpreter
from fumehood.templates.images.layers import LayerStore


def shared_interpreter(factory: pytest.TempPathFactory) -> Path:
    """The folder of layers with the private interpreter, made once for all processes of the tests."""
    base = factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "image-interpreter"
    folder.mkdir(exist_ok=True)

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store = LayerStore(str(folder / "layers"))

        with store.in_use():
            private_interpreter(store, "tests", lambda _: None)

    return folder / "layers"


def make_home(folder: Path, layers: Path, owner: int | None = None) -> Path:
    """A folder for FUMEHOOD_HOME; with `owner`, of another user."""
    target = folder / "templates" / "layers"
    target.mkdir(parents=True)

    for layer in layers.glob("python-*"):
        subprocess.run(["cp", "-a", "--reflink=auto", str(layer), str(target)], check=True)

    for path in (folder, folder / "templates", target):
        path.chmod(0o700)

    if owner is not None:
        for root, folders, names in os.walk(folder):
            for name in ("", *folders, *names):
                os.chown(os.path.join(root, name), owner, owner, follow_symlinks=False)

    return folder


def remove_home(folder: Path) -> None:
    """Delete it, with what sandboxes and builds have left."""
    shutil.rmtree(folder, ignore_errors=True)
