"""Bytecode that an image's own Python makes: what the host takes from its output."""

from __future__ import annotations

import json
import os
import tracemalloc
from base64 import b64encode
from pathlib import Path

import pytest

from fumehood.templates.images import bytecode
from fumehood.templates.images.bytecode import Said, _write
from fumehood.templates.images.layers import LayerStore
from fumehood.values.image import BYTECODE_OF_GUEST
from fumehood_guest.image.bytecode import MARK

GOOD = "/usr/lib/python3.9/__pycache__/os.cpython-39.pyc"


def line(path: str, data: bytes = b"x") -> bytes:
    return f"\n{MARK} {path} {b64encode(data).decode()}\n".encode()


def read(*pieces: bytes) -> Said:
    said = Said()

    for piece in pieces:
        said.hear(piece)

    said.read()
    return said


@pytest.mark.parametrize(
    "path",
    [
        "/usr/../../etc/__pycache__/x.pyc",
        "usr/__pycache__/x.pyc",
        "//usr/__pycache__/x.pyc",
        "/usr/./__pycache__/x.pyc",
        "/usr/lib/os.pyc",
        "/usr/lib/__pycache__/os.so",
        "/__pycache__/..",
        "/usr/__pycache__/x\0.pyc",
        "/" + "long/" * 100 + "__pycache__/x.pyc",
    ],
    ids=range(9),
)
def test_an_image_places_no_file_elsewhere(path):
    """Only plain paths of bytecode files are taken, whatever the image's Python writes."""
    assert read(line(GOOD), line(path)).files == {GOOD: b"x"}


def test_output_of_other_kinds_is_left_out(monkeypatch):
    """Warnings between the lines, a torn line, and what goes beyond the bounds."""
    assert read(
        b"Warning: old\n", line(GOOD)[:40], line(GOOD), b"%s /a/__pycache__/b.pyc ?" % MARK.encode()
    ).files == {GOOD: b"x"}
    monkeypatch.setattr(bytecode, "_MOST_FILES", 2)
    assert len(read(*(line(f"/a/__pycache__/{number}.pyc") for number in range(5))).files) == 2
    monkeypatch.setattr(bytecode, "_MOST_SAID", len(line(GOOD)))
    cut = read(line(GOOD), line("/a/__pycache__/b.pyc"))
    assert (list(cut.files), cut.is_too_large()) == ([GOOD], True)


def test_output_that_is_no_file_takes_little_memory():
    """Many short lines, and one of spaces: a list of their parts would take a hundred times their size."""
    tracemalloc.start()

    try:
        for text in (b"ab\n" * 1_000_000, b" " * 3_000_000, line(GOOD)[1:-1] + b"A" * 3_000_000):
            said = read(text)
            assert said.files == {}
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()


def test_only_modules_of_ours_count_as_our_code(tmp_path):
    """An image puts no file of another name, and no large one, into the plan of each start."""
    store = LayerStore(str(tmp_path / "layers"))
    init = "/opt/fumehood/fumehood_guest/init/__pycache__/%s.cpython-39.pyc"
    files = {init % "init": b"x", init % "other": b"x", init % "files": b"x" * 300_000}

    with store.in_use(), store.making(os.geteuid()) as made:
        _write(files, made)
        guest = json.loads(Path(made.content, BYTECODE_OF_GUEST).read_text())

    assert list(guest) == [init % "init"]


def test_files_go_where_each_is_read(tmp_path):
    """Below the image, beside the packages, and as text for our own code; a path within another one is left out."""
    store = LayerStore(str(tmp_path / "layers"))
    files = {
        GOOD: b"image",
        f"{GOOD}/__pycache__/x.pyc": b"within",
        "/opt/fumehood-packages/one/__pycache__/a.cpython-39.pyc": b"package",
        "/opt/fumehood/fumehood_guest/init/__pycache__/init.cpython-39.pyc": b"guest",
    }

    with store.in_use(), store.making(os.geteuid()) as made:
        os.mkdir(f"{made.content}/packages")
        _write(files, made)
        found = {
            os.path.relpath(os.path.join(root, name), made.content)
            for root, _, names in os.walk(made.content)
            for name in names
        }
        guest = json.loads(Path(made.content, "guest.json").read_text())

    assert found == {f"image{GOOD}", "packages/one/__pycache__/a.cpython-39.pyc", "guest.json"}
    assert guest == {
        "/opt/fumehood/fumehood_guest/init/__pycache__/init.cpython-39.pyc": b64encode(b"guest").decode()
    }
