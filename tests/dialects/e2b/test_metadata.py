"""Metadata of files by E2B's SDK: extended attributes of the sandbox's own files, told within bounds."""

from __future__ import annotations

import pytest
from e2b import InvalidArgumentException, SandboxException

GIVEN = {"author": "mish", "purpose": "upload"}


def test_metadata_stays_with_its_file(shared):
    """By either form of upload, in answers, descriptions and lists, through a renaming; gone when it is replaced."""
    for name, octets in (("form", False), ("octets", True)):
        written = shared.files.write(f"meta/{name}", "x", metadata=GIVEN, use_octet_stream=octets)
        assert written.metadata == GIVEN
        assert shared.files.get_info(f"meta/{name}").metadata == GIVEN

    assert [entry.metadata for entry in shared.files.list("meta")] == [GIVEN, GIVEN]
    assert shared.files.rename("meta/form", "meta/moved").metadata == GIVEN
    both = [{"path": "meta/1", "data": "1"}, {"path": "meta/2", "data": "2"}]
    assert [info.metadata for info in shared.files.write_files(both, metadata={"Of": "all"})] == [
        {"of": "all"}
    ] * 2
    assert shared.files.write("meta/1", "again").metadata is None
    assert shared.files.get_info("meta/1").metadata is None


def test_attributes_set_inside_are_metadata(shared):
    """Those of E2B's names; others are not told, and neither are those that are no text."""
    shared.files.write("attributes", "x")
    code = (
        "import os\n"
        "for name, value in (('e2b.author', b'mish'), ('other', b'no'), ('e2b.bytes', bytes([255]))):\n"
        "    os.setxattr('/home/user/attributes', 'user.' + name, value)"
    )
    assert shared.run_code(code).error is None
    assert shared.files.get_info("attributes").metadata == {"author": "mish"}


def test_what_code_sets_is_reported_within_bounds(shared):
    """However many attributes it makes, and however long they are."""
    code = (
        "import os\nopen('/home/user/many', 'w').close()\n"
        "for n in range(300):\n"
        "    os.setxattr('/home/user/many', f'user.e2b.{n:03}', b'x' * (50_000 if n == 1 else 100))"
    )
    assert shared.run_code(code).error is None
    told = shared.files.get_info("many").metadata
    assert 0 < len(told) <= 64
    assert sum(map(len, (*told, *told.values()))) <= 8192
    assert len(shared.files.list(".")) > 0


def test_metadata_that_cannot_be_kept_is_refused(shared, http, headers_of):
    """Before the file is there, by the SDK or by the server."""
    for wrong in ({"bad key": "value"}, {"": "value"}, {"good": "bad\nvalue"}):
        with pytest.raises(InvalidArgumentException):
            shared.files.write("refused", "x", metadata=wrong)

    for wrong in ({"k" * 201: "v"}, {"key": "v" * 5000}, {f"k{n}": "v" for n in range(65)}):
        with pytest.raises((InvalidArgumentException, SandboxException), match="metadata"):
            shared.files.write("refused", "x", metadata=wrong)

    assert not shared.files.exists("refused")
