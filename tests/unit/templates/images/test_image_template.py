"""The template that is made of an image: the folders that its sandboxes may write."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fumehood.errors import ImageError
from fumehood.templates.images.description import ImageConfig
from fumehood.templates.images.image_template import _links, _workdir, _writable


@pytest.mark.parametrize("workdir", ["/home/user", "/home/user/app/"])
def test_a_home_that_is_too_large_is_refused(workdir):
    """Each sandbox has a home of its own: it would cover what the image has there."""
    workshop = SimpleNamespace(template="mine", say=lambda text: pytest.fail(text))

    with pytest.raises(ImageError, match=r"(?s)a copy of .*WORKDIR /app"):
        _workdir(ImageConfig(workdir=workdir), {workdir.rstrip("/"): "large"}, workshop)


def test_a_large_folder_elsewhere_is_read_only():
    """The build reports it, and code starts there."""
    said = []
    workshop = SimpleNamespace(template="mine", say=said.append)
    config = ImageConfig(workdir="/app", volumes=("/data",))
    outcomes = {"/app": "large", "/data": "copied"}
    assert _workdir(config, outcomes, workshop) == "/app"
    assert _links(config, outcomes, workshop) == ("/data",)
    assert said[0].startswith("/app holds more")
    assert said[0].endswith("it is read-only")


def test_copies_have_names_of_their_own():
    """Outer folders come first; what every sandbox has of its own, and the root, needs no copy."""
    volumes = ("/data/cache/", "/var/log", "/tmp/x", "/", "/data", "/home/user/notes", "/mnt/data")
    assert _writable(ImageConfig(workdir="/srv/data", volumes=volumes)) == {
        "/data": ".volumes/data",
        "/data/cache": ".volumes/data-cache",
        "/srv/data": "data",
        "/var/log": ".volumes/var-log",
        "/home/user/notes": "notes",
    }
