"""Images from folders, archives and a registry: what arrives, what is refused, and what is left then."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_layouts import Entry, busybox_layer, needs_program, own_architecture, tar_of
from tests.image_registry import Registry, running_registry

from fumehood import (
    ImageAccessError,
    ImageDamagedError,
    ImageError,
    ImageNotFoundError,
    ImagePlatformError,
    InvalidArgumentError,
)
from fumehood.templates.images.layers import layer_key
from fumehood.templates.images.pull import UnpackBounds
from fumehood.templates.images.reference import read_reference

FIRST = tar_of(
    [
        Entry("app"),
        Entry("app/old", b"old"),
        Entry("app/tool", b"x", mode=0o4755),
        Entry("kept", b"kept", mode=0o640, uid=33),
        Entry("same", hard_link="kept"),
        Entry("link", link="/etc/passwd"),
        Entry("null", device=True),
        Entry("gone"),
        Entry("gone/inside", b"1"),
    ]
)
SECOND = tar_of([Entry("app"), Entry("app/.wh.old", b""), Entry("gone"), Entry("gone/.wh..wh..opq", b"")])


def test_layers_become_folders_that_overlayfs_stacks(bench):
    """Files, links and modes are as in the archive; a whiteout is what overlayfs takes for one."""
    bench.layout.add([FIRST, SECOND], config={"Env": ["A=b"], "WorkingDir": "/app", "User": "app"})
    image = bench.pull()
    first, second = (Path(bench.store.path(layer_key("sha256", one.diff_id))) for one in image.layers)

    assert (first / "kept").read_bytes() == b"kept"
    assert (first / "kept").stat().st_ino == (first / "same").stat().st_ino
    assert (first / "kept").stat().st_mode & 0o7777 == 0o640
    assert (first / "link").readlink() == Path("/etc/passwd")
    assert stat.S_ISCHR((second / "app/old").lstat().st_mode)
    assert (second / "app/old").lstat().st_rdev == 0
    assert os.getxattr(second / "gone", "user.overlay.opaque") == b"y"
    assert (image.config.envs, image.config.workdir, image.config.user) == ({"A": "b"}, "/app", "app")


def test_set_id_bits_and_devices_are_dropped_and_told(bench):
    """No file of an image has more rights than its user, and no device node is made; a build says so."""
    bench.layout.add([FIRST])
    (layer,) = bench.pull().layers
    content = Path(bench.store.path(layer_key("sha256", layer.diff_id)))

    assert (content / "app/tool").stat().st_mode & 0o7777 == 0o755
    assert not (content / "null").exists()
    assert "1 set-id bits dropped, 1 device nodes dropped" in bench.heard[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: an ordinary user owns all files of images")
def test_owners_are_ids_that_nobody_on_this_machine_has(bench):
    """User 33 of an image is the thirty-third id of a block that is assigned to nobody."""
    bench.layout.add([FIRST])
    (layer,) = bench.pull().layers
    info = os.stat(os.path.join(bench.store.path(layer_key("sha256", layer.diff_id)), "kept"))
    assert (info.st_uid, info.st_gid) == (0x7FFF0000 + 33, 0x7FFF0000 + 33)


def test_layers_of_zstd(bench):
    """They unpack to what those of gzip do; few bytes that are many, and bytes that are no zstd, are refused."""
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    bench.layout.add([FIRST, SECOND], tag="gzip")
    bench.layout.add([FIRST, SECOND], tag="zstd", pack=zstd.compress)
    bench.pull(f"oci:{bench.layout.folder}:zstd")
    del bench.heard[:]
    bench.pull(f"oci:{bench.layout.folder}:gzip")
    assert [line.endswith("is here") for line in bench.heard] == [True, True]

    bomb = tar_of([Entry("zeros", bytes(20 << 20))])
    bench.layout.add([bomb], tag="bomb", pack=zstd.compress)

    with pytest.raises(ImageError, match="larger than"):
        bench.pull(f"oci:{bench.layout.folder}:bomb", bounds=UnpackBounds(free_growth_bytes=1 << 20))

    bench.layout.add(
        [tar_of([Entry("other", b"1")])], tag="broken", pack=lambda layer: zstd.compress(layer)[:-20]
    )

    with pytest.raises(ImageDamagedError):
        bench.pull(f"oci:{bench.layout.folder}:broken")


def test_a_layer_is_pulled_once(bench):
    """Two images with one layer share its folder, however it was compressed."""
    bench.layout.add([FIRST, SECOND], tag="one")
    bench.layout.add([FIRST], tag="two", compressed=False)
    bench.pull(f"oci:{bench.layout.folder}:one")
    del bench.heard[:]
    bench.pull(f"oci:{bench.layout.folder}:two")

    assert [line.endswith("is here") for line in bench.heard] == [True]
    assert len(bench.store.keys()) == 2


def test_the_unpacked_root_is_that_of_umoci(bench, tmp_path):
    """The layers, stacked, are what another project's unpacker makes of the image, but for devices and set-id bits."""
    umoci = needs_program("umoci")

    if os.geteuid() != 0:
        pytest.skip("needs root: umoci gives files their owners")

    layers = [
        busybox_layer(Entry("app"), Entry("app/old", b"1"), Entry("var"), Entry("var/x", b"2", uid=33)),
        SECOND,
    ]
    bench.layout.add(layers)
    image = bench.pull()
    theirs = tmp_path / "theirs"
    subprocess.run(
        [umoci, "raw", "unpack", "--image", f"{bench.layout.folder}:latest", str(theirs)],
        check=True,
        capture_output=True,
    )
    ours = tmp_path / "ours"
    ours.mkdir()
    lower = ":".join(reversed([bench.store.path(layer_key("sha256", one.diff_id)) for one in image.layers]))
    script = (
        f"mount -t overlay overlay -o ro,userxattr,lowerdir={lower} {ours}; diff -r --no-dereference {theirs} {ours}; "
        f"cd {ours}; find . -printf '%p %m %U %G %T@\\n' | sort > {tmp_path}/ours.txt"
    )
    subprocess.run(["unshare", "--mount", "sh", "-ec", script], check=True)
    listed = subprocess.run(
        ["find", ".", "-printf", "%p %m %U %G %T@\n"], cwd=theirs, check=True, capture_output=True, text=True
    )
    shifted = [_shifted(line) for line in (tmp_path / "ours.txt").read_text().splitlines()]
    assert [line for line in shifted if not line.startswith(". ")] == [
        line for line in sorted(listed.stdout.splitlines()) if not line.startswith(". ")
    ]


def _shifted(line: str) -> str:
    path, mode, uid, gid, mtime = line.rsplit(" ", 4)
    return f"{path} {mode} {int(uid) - 0x7FFF0000} {int(gid) - 0x7FFF0000} {mtime}"


def test_what_docker_save_writes(bench, tmp_path):
    """An archive with its list of images; its layers are the same as those of a layout."""
    manifest = bench.layout.add([FIRST, SECOND], compressed=False)
    file = tmp_path / "saved.tar"

    with tarfile.open(file, "w") as archive:
        names = [f"{number}/layer.tar" for number in range(2)]

        for name, layer in zip(names, manifest["layers"], strict=True):
            archive.add(bench.layout.path(layer["digest"]), name)

        archive.add(bench.layout.path(manifest["config"]["digest"]), "config.json")
        listed = tmp_path / "manifest.json"
        listed.write_text(json.dumps([{"Config": "config.json", "RepoTags": ["a/b:1"], "Layers": names}]))
        archive.add(listed, "manifest.json")

    saved = bench.pull(f"docker-archive:{file}")
    assert [one.diff_id for one in saved.layers] == [one.diff_id for one in bench.pull().layers]
    assert bench.pull(f"docker-archive:{file}:1").layers == saved.layers
    assert bench.pull(f"docker-archive:{file}:a/b:1").layers == saved.layers

    with pytest.raises(ImageNotFoundError, match="0 images with the tag '2'"):
        bench.pull(f"docker-archive:{file}:2")

    with pytest.raises(ImageNotFoundError, match="0 images with the tag 'b:1'"):
        bench.pull(f"docker-archive:{file}:b:1")


# -- what is wrong with it


def test_wrong_content_is_found(bench):
    """A layer that is not what its digest says is refused, and nothing of it is left."""
    manifest = bench.layout.add([FIRST])
    bench.layout.path(manifest["layers"][0]["digest"]).write_bytes(gzip.compress(SECOND))

    with pytest.raises(ImageDamagedError, match=r"has the digest sha256:|longer than|ends after"):
        bench.pull()

    assert (bench.store.keys(), bench.leftovers()) == ((), [])


def test_content_that_the_configuration_does_not_name_is_found(bench):
    """The archive in a layer is the one whose digest the configuration has: who may swap blobs cannot swap files."""
    manifest = bench.layout.add([FIRST])
    other = bench.layout.add([SECOND], tag="other")
    bench.layout.put({**manifest, "layers": other["layers"]}, "latest")

    with pytest.raises(ImageDamagedError, match="its configuration says"):
        bench.pull(f"oci:{bench.layout.folder}:latest")

    assert (bench.store.keys(), bench.leftovers()) == ((), [])


def test_a_layer_that_ends_too_early(bench):
    """A truncated layer is a damaged image, and leaves nothing."""
    manifest = bench.layout.add([FIRST])
    path = bench.layout.path(manifest["layers"][0]["digest"])
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(ImageDamagedError, match=r"ends after \d+ of \d+ bytes"):
        bench.pull()

    assert (bench.store.keys(), bench.leftovers()) == ((), [])


def test_an_unknown_tag_names_those_that_are_there(bench):
    """Whoever misspells a tag reads the others."""
    bench.layout.add([FIRST], tag="one")
    bench.layout.add([SECOND], tag="two")

    with pytest.raises(ImageNotFoundError, match="its tags are: one, two"):
        bench.pull(f"oci:{bench.layout.folder}:three")


@pytest.mark.parametrize("how", ["config", "index"])
def test_an_image_of_another_architecture_is_refused_before_its_layers(bench, how):
    """It is refused by name, and no layer is read."""
    if how == "config":
        bench.layout.add([FIRST], architecture="s390x")
    else:
        digest = bench.layout.put(bench.layout.add([FIRST]), "other")
        del bench.layout.tags["other"]
        system = {"os": "linux", "architecture": "s390x"}
        bench.layout.put({"manifests": [{"digest": digest, "platform": system}]}, "latest")

    with pytest.raises(
        ImagePlatformError, match=f"it is for linux/s390x, and this machine is linux/{own_architecture()}"
    ):
        bench.pull(f"oci:{bench.layout.folder}:latest")

    assert bench.store.keys() == ()


def test_an_index_leads_to_the_image_of_this_machine(bench):
    """Of an image for several machines the right one is taken."""
    mine = bench.layout.put(bench.layout.add([FIRST]), "mine")
    foreign = bench.layout.put(bench.layout.add([SECOND], architecture="s390x"), "foreign")
    bench.layout.tags.clear()
    entries = [
        {"digest": foreign, "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": mine, "platform": {"os": "linux", "architecture": own_architecture()}},
    ]
    bench.layout.put({"manifests": entries}, "latest")
    assert len(bench.pull().layers) == 1


def test_a_store_is_pruned_of_what_is_not_needed(bench):
    """Layers that no template needs are deleted, also those whose folders are closed to their owner."""
    bench.layout.add([FIRST, tar_of([Entry("closed", mode=0), Entry("closed/in", b"1", mode=0)])])
    image = bench.pull()
    first, second = (layer_key("sha256", one.diff_id) for one in image.layers)

    assert bench.store.prune({first})[0] == 1
    assert bench.store.keys() == (first,)
    assert bench.store.prune(set())[0] == 1
    assert second not in os.listdir(bench.folder / "layers")


@pytest.mark.parametrize(
    ("text", "place", "name", "version"),
    [
        ("python", "docker.io", "library/python", "latest"),
        ("python:3.12-slim", "docker.io", "library/python", "3.12-slim"),
        ("owner/name:1", "docker.io", "owner/name", "1"),
        ("localhost:5000/a/b:c", "localhost:5000", "a/b", "c"),
        ("ghcr.io/a/b@sha256:" + "0" * 64, "ghcr.io", "a/b", "sha256:" + "0" * 64),
        ("oci:/a/b:tag", "/a/b", "", "tag"),
        ("docker-archive:/a/b.tar", "/a/b.tar", "", ""),
    ],
)
def test_references_mean_what_docker_means(text, place, name, version):
    """A name without a host is one of Docker Hub's, and so on."""
    found = read_reference(text)
    assert (found.place, found.name, found.version) == (place, name, version)


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "a:b:c", "a@sha256:12", "../x", "oci:", "http://x/y"])
def test_what_is_no_reference_is_refused(text):
    """Nothing is fetched for it."""
    with pytest.raises(InvalidArgumentError, match="docker-archive:FILE"):
        read_reference(text)


# -- a registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Registry]:
    with running_registry(tmp_path_factory.mktemp("registry"), wants_login=True) as running:
        yield running


def test_an_image_from_a_registry(bench, registry):
    """It is the one that was pushed, by its tag and by its digest."""
    bench.layout.add([FIRST, SECOND])
    registry.push(bench.layout, "team/name")
    image = bench.pull(f"{registry.host}/team/name", environment=registry.login())
    assert image == bench.pull()
    digest = bench.layout.tags["latest"]["digest"]
    assert bench.pull(f"{registry.host}/team/name@{digest}", environment=registry.login()) == image


@pytest.mark.parametrize("password", [None, "wrong"])
def test_a_registry_that_wants_another_login(bench, registry, password):
    """The error says how to log in, and holds no password."""
    with pytest.raises(ImageAccessError, match="HTTP 401") as caught:
        bench.pull(f"{registry.host}/team/x", environment=registry.login(password) if password else {})

    assert "docker login" in caught.value.hint
    assert "wrong" not in str(caught.value)


def test_a_registry_without_the_tag(bench, registry):
    """It says which registry was asked, and for what."""
    with pytest.raises(ImageNotFoundError, match="has no manifests no-such-tag of it"):
        bench.pull(f"{registry.host}/team/name:no-such-tag", environment=registry.login())


def test_a_registry_whose_content_was_changed(bench, registry):
    """Every byte that arrives is part of a digest."""
    manifest = bench.layout.add([tar_of([Entry("only-here", b"1")])])
    registry.push(bench.layout, "team/changed")
    path = registry.blob(manifest["layers"][0]["digest"])
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")

    with pytest.raises(ImageDamagedError, match="has the digest"):
        bench.pull(f"{registry.host}/team/changed", environment=registry.login())

    assert (bench.store.keys(), bench.leftovers()) == ((), [])


def test_a_registry_that_is_not_there(bench):
    """The error names the host."""
    with pytest.raises(ImageError, match=r"127\.0\.0\.1:1 cannot be reached"):
        bench.pull("127.0.0.1:1/a/b")


def test_bounds_hold_for_all_layers_together(bench):
    """A second layer may have what the first has left."""
    bench.layout.add([FIRST, tar_of([Entry(f"f{number}", b"") for number in range(5)])])

    with pytest.raises(ImageError, match="more than 3 entries"):
        bench.pull(bounds=UnpackBounds(max_entries=12))

    assert bench.leftovers() == []
