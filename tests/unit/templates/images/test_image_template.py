"""The template that is made of an image: its working directory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fumehood.errors import ImageError
from fumehood.templates.images.description import ImageConfig
from fumehood.templates.images.image_template import _workdir
from fumehood.templates.images.layers import LayerStore


@pytest.mark.parametrize("workdir", ["/home/user", "/home/user/app/"])
def test_a_home_that_is_too_large_is_refused(tmp_path, workdir):
    """Each sandbox has a home of its own: it would cover what the image has there."""
    workshop = SimpleNamespace(template="mine", say=lambda text: pytest.fail(text))

    with pytest.raises(ImageError, match=r"(?s)a copy of .*WORKDIR /app"):
        _workdir(ImageConfig(workdir=workdir), "large", LayerStore(str(tmp_path)), workshop)


def test_a_large_folder_elsewhere_is_read_only(tmp_path):
    """The build reports it, and code starts there."""
    said = []
    workshop = SimpleNamespace(template="mine", say=said.append)
    found = _workdir(ImageConfig(workdir="/app"), "large", LayerStore(str(tmp_path)), workshop)
    assert found == ((), "/app")
    assert "it is read-only" in said[0]
