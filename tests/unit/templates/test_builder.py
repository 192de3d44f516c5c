"""The builder's order of things: what counts when, and what every kind of failure leaves behind."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fumehood import IsolationUnavailableError, SandboxStartError, TemplateError, TemplateStoreError
from fumehood.templates import builder
from fumehood.templates.recipe import LanguageOrder, Made, Recipe, Source


class Linked(Source):
    """The Python of the tests, with a file that only its owner may read beside it."""

    def __init__(self) -> None:
        self.made = 0

    def describe(self):
        return {"kind": "linked"}

    def make(self, workshop):
        self.made += 1
        python = os.path.join(workshop.folder, "python")
        os.symlink(sys.executable, python)
        secret = os.open(os.path.join(workshop.folder, "module.py"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(secret, b"x" * 10_000)
        os.close(secret)
        os.mkdir(os.path.join(workshop.folder, "package"), 0o700)
        return Made(python=python)


class Builds:
    """One recipe and its store."""

    def __init__(self, shelf, folder) -> None:
        self.shelf = shelf
        self.source = Linked()
        self.tried = []
        self.heard = []
        self.recipe = Recipe(
            name="mine",
            source=self.source,
            preload=("json",),
            files=str(folder),
            envs={"A": "1"},
            own_interpreter=True,
        )

    def build(self, trial=None, *, force=False):
        def note(template):
            self.tried.append(template)
            return ()

        return builder.build(
            self.recipe, self.shelf.open(), trial or note, force=force, say=self.heard.append
        )


@pytest.fixture
def builds(shelf, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "tool").write_text("#!/bin/sh")
    (folder / "tool").chmod(0o700)
    return Builds(shelf, folder)


def test_languages_are_prepared_before_the_trial(builds):
    """In a folder of the build, which sandboxes get; the record has their versions, and the digest their names."""
    plain = builds.recipe.fingerprint()

    def prepare(template, folder, say):
        assert template.languages is None
        Path(folder).mkdir()
        Path(folder, "header").write_text("x")
        return {"cpp": "12.2.0"}

    builds.recipe = replace(builds.recipe, languages=LanguageOrder(names=("cpp", "go"), prepare=prepare))
    assert builds.recipe.fingerprint() != plain
    info = builds.build()
    found = builds.shelf.open().find("mine")
    assert info.languages == found.language_versions == {"cpp": "12.2.0"}
    assert builds.tried == [found]
    assert Path(found.languages, "header").read_text() == "x"


def test_what_is_tried_is_what_is_found(builds):
    """At the same paths, with everything that the recipe says."""
    info = builds.build()
    found = builds.shelf.open().find("mine")

    assert builds.tried == [found]
    assert (found.preload, found.envs, found.own_interpreter) == (("json",), {"A": "1"}, True)
    assert info.python == ".".join(map(str, sys.version_info[:3]))
    assert info.size_bytes >= 10_000


def test_guests_can_read_everything(builds):
    """They are another user than the builder, whatever its umask was."""
    builds.build()
    found = builds.shelf.open().find("mine")
    folder = os.path.dirname(found.python)
    modes = {
        name: stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
        for name in ("module.py", "package", "files", "files/a.txt", "files/tool")
    }
    assert all(mode & 0o444 == 0o444 for mode in modes.values())
    assert all(modes[name] & 0o111 == 0o111 for name in ("package", "files", "files/tool"))
    assert not modes["module.py"] & 0o111


def test_a_build_happens_once_unless_it_is_forced_or_gone(builds):
    """What is on disk decides, not what anybody remembers."""
    first = builds.build()
    assert builds.build() == first
    assert builds.source.made == 1
    assert "up to date" in builds.heard[-1]

    builds.build(force=True)
    assert builds.source.made == 2

    shutil.rmtree(os.path.dirname(builds.shelf.open().find("mine").python))
    builds.build()
    assert builds.source.made == 3


@pytest.mark.parametrize(
    ("raised", "seen", "words"),
    [
        (TemplateError(template="mine", reason="no such module"), TemplateStoreError, "no such module"),
        (SandboxStartError(step="clone", reason="full"), TemplateStoreError, "clone: full"),
        (
            IsolationUnavailableError(layer="user", reason="no", how_to_get_it="allow it"),
            TemplateStoreError,
            "allow it",
        ),
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
    ],
)
def test_a_trial_that_fails_leaves_what_was_there(builds, raised, seen, words):
    """The old template, and no folder more."""
    before = builds.build(), builds.shelf.builds()

    def fail(template):
        raise raised

    with pytest.raises(seen) as caught:
        builds.build(fail, force=True)

    assert words in str(caught.value)
    assert (builds.build(), builds.shelf.builds()) == before
    assert builds.source.made == 2


def test_files_that_change_while_they_are_copied_are_refused(builds, monkeypatch):
    """The digest must be that of what was copied."""

    def copy(folder, target):
        shutil.copytree(folder, target)

        with open(os.path.join(target, "a.txt"), "a", encoding="utf-8") as file:
            file.write("later")

    monkeypatch.setattr(builder, "copy_files", copy)
    with pytest.raises(TemplateStoreError, match="were changed"):
        builds.build()

    assert builds.shelf.builds() == []
