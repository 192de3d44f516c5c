"""Archives of sandboxes are bounded before they are unpacked."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fumehood.frameworks.archives import check_expansion


def test_an_archive_that_expands_too_far_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(gzip.compress(b"\0" * 3_000_000))
    check_expansion(archive, 3_000_000)

    with pytest.raises(ValueError, match="more than 2,999,999 bytes"):
        check_expansion(archive, 2_999_999)


@pytest.mark.parametrize(
    "content", [b"no archive", gzip.compress(b"a" * 1000, mtime=0)[:-9]], ids=["none", "cut"]
)
def test_an_archive_that_is_none_or_cut_is_refused(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(content)

    with pytest.raises(ValueError, match="cannot be read"):
        check_expansion(archive, 3_000_000)
