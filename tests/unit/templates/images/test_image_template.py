"""The template that is made of an image: the folders that its sandboxes may write."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fumehood.errors import ImageError
from fumehood.templates.images.build import _Build
from fumehood.templates.images.description import MAX_VOLUMES, ImageConfig, image_path
from fumehood.templates.images.dockerfile import Instruction
from fumehood.templates.images.image_template import _link, _links, _workdir, _writable


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
    """What every sandbox has of its own, and the root, needs no copy."""
    volumes = ("/data/cache/", "/var/log", "/tmp/x", "/", "/data", "/home/user/notes", "/mnt/data")
    assert _writable(ImageConfig(workdir="/srv/data", volumes=volumes)) == {
        "/data": ".volumes/data",
        "/data/cache": ".volumes/data-cache",
        "/srv/data": "data",
        "/var/log": ".volumes/var-log",
        "/home/user/notes": "notes",
    }


def test_the_working_directory_has_the_first_claim_on_the_bounds():
    """What is surveyed first is copied; others that no longer fit are read-only. Volumes come as they are named."""
    volumes = ("/var/log", "/data/cache", "/tests", "/data", "/srv/app", "/srv")
    order = _writable(ImageConfig(workdir="/home/user", volumes=volumes))
    assert list(order) == ["/home/user", "/var/log", "/data", "/data/cache", "/tests", "/srv", "/srv/app"]
    # One that lies in a volume comes after it.
    assert list(_writable(ImageConfig(workdir="/srv/app", volumes=volumes)))[:3] == [
        "/srv",
        "/srv/app",
        "/var/log",
    ]


def test_optional_volumes_take_the_places_that_are_left():
    """E2B's folders are added to what the image itself names, which may be as many as there are."""
    own = tuple(f"/v{number}" for number in range(MAX_VOLUMES - 1))
    said: list[str] = []
    build = SimpleNamespace(_bench=SimpleNamespace(say=said.append, template="mine"))
    state = SimpleNamespace(variables={}, config=ImageConfig(volumes=own))
    flags = {"optional": "true"}
    order = Instruction(line=1, name="VOLUME", flags=flags, text="", words=("/v1", "/logs", "/tests"))
    _Build._add_volumes(build, order, state)
    assert state.config.volumes == (*own, "/logs")
    assert said == ["read-only, as there are 32 volumes: /tests"]

    with pytest.raises(ImageError, match="more than 32 volumes"):
        _Build._add_volumes(build, replace(order, flags={}), state)


def test_two_slashes_at_the_beginning_are_one():
    """POSIX keeps them apart, and a folder would lie in another one without being known to."""
    assert [image_path(path) for path in ("//a", "///a/", "a/../b", "/..//c", "//")] == [
        "/a",
        "/a",
        "/b",
        "/c",
        "/",
    ]
    volumes = ("//.config/a", "//tmp", "///proc/x")
    assert _writable(ImageConfig(workdir="//.config", volumes=volumes)) == {
        "/.config": ".config",
        "/.config/a": ".volumes/.config-a",
    }


def test_no_link_of_a_layer_is_followed(tmp_path):
    """A link's target is a path of the host while the layer is made."""
    content, outside = tmp_path / "content", tmp_path / "outside"
    content.mkdir()
    outside.mkdir()
    _link("/a/b", "b", str(content), -1, -1)
    (content / "c").symlink_to(outside)

    with pytest.raises(ImageError, match="already"):
        _link("/c/d", "d", str(content), -1, -1)

    assert list(outside.iterdir()) == []
    assert (content / "a" / "b").is_symlink()
