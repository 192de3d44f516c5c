"""Audit files: nobody else reads them, nothing is written over, and a full disk loses nothing that fits later."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from fumehood.audit.chain import AuditChain
from fumehood.audit.files import AuditFile, AuditFolder
from fumehood.audit.verification import read_lines, verify_lines
from fumehood.errors import InvalidArgumentError


def test_lines_are_in_the_file_at_once_and_all_of_them(tmp_path):
    file = AuditFolder(str(tmp_path / "new" / "audit")).open("box")
    chain = AuditChain(file, max_entries=2)

    for number in range(10):
        chain.add("executed", {"number": number})

    path = tmp_path / "new" / "audit" / "box.jsonl"

    with path.open("rb") as lines:
        found = verify_lines(read_lines(lines), str(chain.log("box").head))

    assert (found.ok, found.entries, found.dropped) == (True, 10, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    chain.close()
    chain.close()


def test_what_is_there_is_not_written_over(tmp_path):
    AuditFile(tmp_path / "box.jsonl").close()

    with pytest.raises(FileExistsError):
        AuditFile(tmp_path / "box.jsonl")

    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FileExistsError):
        AuditFile(tmp_path / "link.jsonl")


def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(InvalidArgumentError, match="audit_folder"):
        AuditFolder(str(tmp_path / "file" / "below"))


_FULL = """
import logging, resource, signal, sys
from pathlib import Path
from fumehood.audit.chain import AuditChain
from fumehood.audit.files import AuditFile

logging.basicConfig()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
chain = AuditChain(AuditFile(Path(sys.argv[1])))
chain.add("first", {})
resource.setrlimit(resource.RLIMIT_FSIZE, (400, resource.RLIM_INFINITY))

for number in range(10):
    chain.add("while it is full", {"number": number})

resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
chain.add("last", {})
print(chain.log("box").head)
"""


def test_a_disk_that_has_room_again_gets_all_of_it(tmp_path):
    """No larger file than 400 bytes may be written for a while: a line is torn, and made whole afterwards."""
    path = tmp_path / "box.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.count("cannot be written for now") == 1

    with path.open("rb") as lines:
        found = verify_lines(read_lines(lines), done.stdout.strip())

    assert (found.ok, found.entries, found.later) == (True, 12, 0), found.reason


def test_a_file_that_can_never_be_written_ends_and_the_record_goes_on(tmp_path, caplog):
    file = AuditFile(tmp_path / "box.jsonl")
    read_end, write_end = os.pipe()
    os.close(read_end)
    # In place of a disk that has failed: every write is refused.
    os.dup2(write_end, file._fd)
    chain = AuditChain(file)

    for _ in range(600):
        chain.add("executed", {"text": "x" * 4_000})

    os.close(write_end)
    assert "ends here" in caplog.text
    assert chain.log("box").fault() is None
    assert chain.log("box").head.sequence == 599
