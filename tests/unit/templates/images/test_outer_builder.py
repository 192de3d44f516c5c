"""Another program builds the image: how it is found, heard and ended, and that its result is not trusted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.image_layouts import Layout, tar_of
from tests.waiting import until

from fumehood import ImageError, InvalidArgumentError, Network, TemplateStoreError, build_template
from fumehood.templates.images.layers import LayerStore
from fumehood.templates.images.outer_builder import OuterBuild, build_outside


class Builder:
    """A program in the place of buildah."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LayerStore(str(folder / "layers"))
        (folder / "Dockerfile").write_text("FROM scratch\n")

    def build(self, script: str, say=print) -> object:
        """Has a shell script build an image; $result is where it goes."""
        program = self.folder / "buildah"
        program.write_text(
            f'#!/bin/sh\nfor one; do case "$one" in --tag=oci:*) result=${{one#--tag=oci:}};; esac; done\n{script}\n'
        )
        program.chmod(0o755)
        order = OuterBuild(
            builder=str(program),
            dockerfile=str(self.folder / "Dockerfile"),
            context=str(self.folder),
            arguments={"NAME": "a b", "http_proxy": "c", "LD_PRELOAD": "d", "HOME": "e", "EMPTY": ""},
        )

        with self.store.in_use():
            return build_outside(order, "outside", self.store, say)


@pytest.fixture
def builder(tmp_path, monkeypatch) -> Builder:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return Builder(tmp_path)


def test_its_lines_are_passed_on(builder):
    """With its arguments, as one line each and without escapes; what it writes to standard error too."""
    heard: list[str] = []

    with pytest.raises(TemplateStoreError, match=r"buildah ended with 3: .*the last"):
        builder.build(
            'for one; do echo "$one"; done; printf "\\033[2Jcleared\\n"; echo the last >&2; exit 3',
            heard.append,
        )

    assert "  | --build-arg=NAME" in heard
    assert f"  | {builder.folder}" in heard
    assert not any("\033" in line for line in heard)
    assert not list(builder.folder.glob("fumehood-buildah-*"))


def test_values_of_arguments_are_in_its_environment(builder):
    """Where other users of the machine cannot read them; but those that it reads itself, which the build names."""
    heard: list[str] = []

    with pytest.raises(TemplateStoreError):
        builder.build('echo "$* / $NAME / [${EMPTY-unset}] / $LD_PRELOAD / $HOME"; exit 1', heard.append)

    line = next(line for line in heard if "--build-arg" in line)
    argv, *values = line.split(" / ")
    assert "a b" not in argv
    assert "--build-arg=EMPTY " in argv
    assert values == ["a b", "[]", "", os.environ["HOME"]]
    assert {"--build-arg=LD_PRELOAD=d", "--build-arg=HOME=e", "--build-arg=http_proxy=c"} <= set(argv.split())
    assert any(line.endswith("HOME, LD_PRELOAD, http_proxy: buildah reads these variables") for line in heard)


def test_its_result_is_checked_as_any_image(builder):
    """A layer whose content is not what its digest says is refused; nothing of it stays. The control is taken."""
    layout = Layout(builder.folder / "made")
    layer = tar_of([])
    manifest = layout.add([layer], tag="made")
    copied = f"cp -r {layout.folder} ${{result%:*}}"
    _, layers = builder.build(copied)
    assert len(layers) == 1

    for name in layers:
        subprocess.run(["rm", "-rf", str(builder.folder / "layers" / name)], check=True)

    layout.path(manifest["layers"][0]["digest"]).write_bytes(b"other")

    with pytest.raises(ImageError):
        builder.build(copied)

    assert set(os.listdir(builder.folder / "layers")) == {".lock"}


def test_what_it_has_started_ends_with_an_interrupt(builder):
    """Ctrl-C of a build leaves no process of the builder."""

    def interrupt(line: str) -> None:
        if "started" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        builder.build(f"sleep 1000 & echo $! > {builder.folder}/pid; echo started; wait", interrupt)

    pid = int((builder.folder / "pid").read_text())
    until(
        lambda: not os.path.exists(f"/proc/{pid}/cmdline") or not Path(f"/proc/{pid}/cmdline").read_bytes(),
        "it ends",
    )


def test_a_builder_that_is_not_there_is_named(tmp_path):
    """With the way out."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")

    with pytest.raises(TemplateStoreError, match=r"buildah' is not installed(.|\n)*apt-get install buildah"):
        build_template("x", dockerfile=str(tmp_path / "Dockerfile"), builder=f"{tmp_path}/buildah")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"builder": "podman", "dockerfile": "Dockerfile"}, "'buildah', or its absolute path"),
        ({"builder": "./buildah", "dockerfile": "Dockerfile"}, "'buildah', or its absolute path"),
        ({"builder": "buildah", "image": "debian"}, "a Dockerfile beside it"),
        ({"builder": "buildah"}, "an image or a Dockerfile"),
        ({"builder": "buildah", "dockerfile": "Dockerfile", "network": Network()}, "network that it gives"),
        (
            {"builder": "buildah", "dockerfile": "Dockerfile", "url": "http://127.0.0.1:1"},
            "on the server's machine",
        ),
    ],
)
def test_what_does_not_go_with_a_builder_is_refused(tmp_path, monkeypatch, given, match):
    """Before anything is built."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")

    with pytest.raises(InvalidArgumentError, match=match):
        build_template("x", **given)
