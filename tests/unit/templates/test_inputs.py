"""What a template is made of: refused before anything is built, or part of the digest that decides about a rebuild."""

from __future__ import annotations

import os
import select
import sys

import pytest

from fumehood import InvalidArgumentError, Template, TemplateStoreError
from fumehood.templates import given_files, requirements
from fumehood.templates.given_files import describe_files
from fumehood.templates.pythons import find_python, installed_pythons
from fumehood.templates.recipe import Recipe, Source, Workshop
from fumehood.templates.requirements import InstallerProgram, RequirementsSource, run_program
from fumehood_guest.init import home


class Plain(Source):
    """A source that is made of nothing."""

    def describe(self):
        return {"kind": "plain"}

    def make(self, workshop):
        raise NotImplementedError


def lines(*requirements):
    return RequirementsSource(list(requirements), None, print)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    return folder


# -- the digest


def test_the_same_inputs_have_the_same_digest(folder):
    """Nothing of the moment is in it."""
    recipes = [
        Recipe(name="x", source=lines("six"), preload=("json",), files=str(folder), envs={"A": "1"})
        for _ in range(2)
    ]
    assert recipes[0].fingerprint() == recipes[1].fingerprint()


@pytest.mark.parametrize(
    "change", ["requirements", "preload", "files", "content", "mode", "envs", "own_interpreter"]
)
def test_each_input_changes_the_digest(folder, change):
    """Whatever a sandbox could notice."""
    fields = {"source": lines("six"), "preload": ("json",), "files": str(folder), "envs": {"A": "1"}}
    before = Recipe(name="x", **fields).fingerprint()

    match change:
        case "requirements":
            fields["source"] = lines("six", "attrs")
        case "preload":
            fields["preload"] = ("json", "csv")
        case "files":
            fields["files"] = None
        case "content":
            (folder / "a.txt").write_text("b")
        case "mode":
            (folder / "a.txt").chmod(0o755)
        case "envs":
            fields["envs"] = {"A": "2"}
        case _:
            fields["own_interpreter"] = True

    assert Recipe(name="x", **fields).fingerprint() != before


def test_another_python_or_release_of_ours_changes_the_digest(monkeypatch):
    """The environment is made for it."""
    digests = {Recipe(name="x", source=lines()).fingerprint()}
    monkeypatch.setattr("importlib.metadata.version", lambda _: "99.0")
    digests.add(Recipe(name="x", source=lines()).fingerprint())
    source = lines()
    source._python = type(source._python)(path="/usr/bin/python3.9", version=(3, 9, 1))
    digests.add(Recipe(name="x", source=source).fingerprint())
    assert len(digests) == 3


def test_files_that_requirements_include_count(tmp_path):
    """A change in an included file is a change."""
    (tmp_path / "r.txt").write_text("-r more/other.txt\n-c limits.txt\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "other.txt").write_text("six\n-r ../r.txt\n")
    (tmp_path / "limits.txt").write_text("six<2\n")
    path = str(tmp_path / "r.txt")

    before = RequirementsSource(path, None, print).describe()
    assert before["requirements"] == ["-r more/other.txt\n-c limits.txt\n", "six\n-r ../r.txt\n", "six<2\n"]
    (tmp_path / "limits.txt").write_text("six<3\n")
    assert RequirementsSource(path, None, print).describe() != before


def test_files_that_single_requirements_include_count(tmp_path):
    """As the template of all languages has them, whose packages come before those of a file; none is editable."""
    file = tmp_path / "my r.txt"
    file.write_text("six<2\n")

    def describe() -> object:
        return RequirementsSource(["numpy", f"-r {file}"], None, print).describe()["requirements"]

    assert describe() == ["numpy\n", "six<2\n"]
    file.write_text("-e ./here\n")

    with pytest.raises(InvalidArgumentError, match="editable"):
        describe()


# -- what is refused


@pytest.mark.parametrize("name", ["", "default", "a b", "../x", ".x", "-x", "x" * 65, "ä", "x\n", 3])
def test_a_name_that_could_be_anything_else_is_refused(name):
    """It becomes a file's name, and a word of the command line."""
    with pytest.raises(InvalidArgumentError, match="template name"):
        Recipe(name=name, source=Plain())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b"x" * (2 << 20), "1 MiB"),
        (None, "No such file"),
        (b"-e ./here\n", "-e ./here"),
    ],
)
def test_requirements_that_cannot_work_are_refused(tmp_path, text, value):
    """The error names the file or the line, and why."""
    path = tmp_path / "r.txt"

    if text is not None:
        path.write_bytes(text)

    with pytest.raises(InvalidArgumentError, match="requirements") as caught:
        RequirementsSource(str(path), None, print)

    assert value in str(caught.value)


def test_a_requirement_is_one_line():
    """A line break in it would be another option of pip."""
    with pytest.raises(InvalidArgumentError):
        lines("six\n--find-links=http://elsewhere")


@pytest.mark.parametrize("wanted", ["2.7", "3", "three", "", "3.8", "3.77", "/nowhere/python", sys.prefix])
def test_a_python_that_is_not_there_is_named(wanted, monkeypatch):
    """The hint lists those that are there."""
    monkeypatch.setattr("fumehood.templates.pythons.find_uv", lambda: None)
    with pytest.raises(InvalidArgumentError, match="python=") as caught:
        find_python(wanted, print)

    if wanted == "3.77":
        assert ".".join(map(str, sys.version_info[:3])) in caught.value.hint


@pytest.mark.parametrize("digits", [2, 3])
def test_our_own_python_is_found_by_its_version(digits):
    """The one of this process comes first."""
    wanted = ".".join(map(str, sys.version_info[:digits]))
    assert find_python(wanted, print) == find_python(None, print)
    assert find_python(sys.executable, print).version == sys.version_info[:3]


def test_a_program_that_is_no_python_is_passed_over(tmp_path, monkeypatch):
    """Version switchers leave programs of every name on the search path that start nothing."""
    shim = tmp_path / f"python3.{sys.version_info[1]}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    assert find_python(f"3.{sys.version_info[1]}", print).version == sys.version_info[:3]
    assert sys.version_info[:3] in {one.version for one in installed_pythons()}


@pytest.mark.parametrize("envs", [{"": "x"}, {"A=B": "x"}, {"A": "\0"}, {"A": 3}, [("A", "b")]])
def test_variables_that_no_process_can_have_are_refused(envs):
    """At once, not at the start of the first sandbox."""
    with pytest.raises(InvalidArgumentError, match="envs"):
        Template(name="x", envs=envs)


def test_files_of_a_template_are_an_absolute_path():
    """A relative one would mean another folder in every process."""
    with pytest.raises(InvalidArgumentError, match="files"):
        Template(name="x", files="here")


# -- the files


def test_links_out_of_the_folder_and_devices_are_refused(folder):
    """No sandbox could follow the first, or read the second."""
    (folder / "link").symlink_to("a.txt")
    assert [name for name, *_ in describe_files(str(folder))] == ["a.txt", "link"]

    for target in ("../outside", str(folder / "a.txt")):
        (folder / "bad").symlink_to(target)
        with pytest.raises(InvalidArgumentError, match="bad"):
            describe_files(str(folder))
        (folder / "bad").unlink()

    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidArgumentError, match="pipe"):
        describe_files(str(folder))


def test_what_each_creation_copies_is_bounded(folder, monkeypatch):
    """By number and by size; large files are linked and do not count."""
    monkeypatch.setattr(given_files, "MAX_COPIED_BYTES", 100)
    (folder / "large").write_bytes(b"x" * (given_files.LARGE_FILE_BYTES + 1))
    describe_files(str(folder))
    (folder / "small").write_bytes(b"x" * 100)
    with pytest.raises(InvalidArgumentError, match="files"):
        describe_files(str(folder))

    monkeypatch.setattr(given_files, "MAX_COPIED_BYTES", 1000)
    monkeypatch.setattr(given_files, "MAX_ENTRIES", 2)
    with pytest.raises(InvalidArgumentError, match="files"):
        describe_files(str(folder))


def test_host_and_guest_mean_the_same_by_large():
    """They cannot import each other."""
    assert given_files.LARGE_FILE_BYTES == home.LARGE_FILE_BYTES


def test_what_the_guest_needs_is_what_the_package_requires():
    """One number of IPython, in two places."""
    path = os.path.join(os.path.dirname(__file__), "..", "..", "..", "pyproject.toml")

    with open(path, encoding="utf-8") as file:
        assert f'"{requirements.GUEST_REQUIREMENT}"' in file.read()


# -- programs


def workshop(tmp_path, heard):
    read_end, write_end = os.pipe()
    os.close(write_end)
    return Workshop(template="x", folder=str(tmp_path), lock_fd=read_end, say=heard.append)


def test_a_program_that_fails_is_quoted_with_its_last_lines(tmp_path):
    """Not with all of them, and its way out."""
    heard: list[str] = []
    code = "print('Collecting a'); [print('line', n) for n in range(99)]; raise SystemExit(3)"
    with pytest.raises(TemplateStoreError) as caught:
        run_program(
            "doing it",
            InstallerProgram([sys.executable, "-c", code], cwd="/"),
            workshop(tmp_path, heard),
            reported=("Collecting",),
            hint="do less",
        )

    assert heard == ["doing it", "Collecting a"]
    assert "doing it failed with exit code 3" in caught.value.message
    assert "line 98" in caught.value.message
    assert "line 80" not in caught.value.message
    assert caught.value.hint == "do less"


def test_a_program_that_cannot_start_is_named(tmp_path):
    """With what the system says."""
    with pytest.raises(TemplateStoreError, match="/nowhere/tool"):
        run_program("doing it", InstallerProgram(["/nowhere/tool"], cwd="/"), workshop(tmp_path, []))


def test_nothing_of_a_program_stays_after_an_interrupt(tmp_path):
    """Its children are ended with it."""

    def interrupt(text: str) -> None:
        if text.startswith("pid"):
            children.append(os.pidfd_open(int(text.split()[1])))
            raise KeyboardInterrupt

    children: list[int] = []
    place = workshop(tmp_path, [])
    place = Workshop(template="x", folder=place.folder, lock_fd=place.lock_fd, say=interrupt)
    script = "sleep 600 & echo pid $!; wait"
    with pytest.raises(KeyboardInterrupt):
        run_program(
            "doing it", InstallerProgram(["/bin/sh", "-c", script], cwd="/"), place, reported=("pid",)
        )

    ended, _, _ = select.select(children, [], [], 30)
    assert ended == children
    os.close(children[0])
