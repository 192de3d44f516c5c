"""What the node agent makes for the parts of a machine before it starts them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fumehood.errors import InvalidArgumentError
from fumehood.node_agent.run import _make_private


def test_a_private_folder_is_no_link_and_open_to_no_other_user(tmp_path: Path) -> None:
    """Below /tmp another user may have put something first; a link could lead to that user's sockets later."""
    own = tmp_path / "own"
    _make_private(own)
    _make_private(own)
    assert stat.S_IMODE(own.stat().st_mode) == 0o700

    link = tmp_path / "link"
    link.symlink_to(own)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)

    for refused in (link, open_to_all):
        with pytest.raises(InvalidArgumentError, match="state-folder"):
            _make_private(refused)
