"""Templates: which environment a sandbox starts from, and what is imported in it before anybody asks."""

from __future__ import annotations

import sys

import pytest

from fumehood import InvalidArgumentError, Limits, SandboxStartError, Template, TemplateError

# A server knows templates by name only: definitions of one's own name interpreters and folders of this machine.
pytestmark = pytest.mark.in_process


def test_a_template_says_what_is_preloaded(face):
    """Modules of the list are imported already, others are not; names that are not installed are left out."""
    sandbox = face.open(Template(name="small", preload=("decimal", "no_such_module_anywhere")))

    found = sandbox.run_code("import sys; [name in sys.modules for name in ('decimal', 'pandas')]").text

    assert found == "[True, False]"
    assert sandbox.get_info().template == "small"


def test_a_template_that_was_used_is_known_by_its_name(face):
    """The definition need not be repeated; another one under the same name is refused."""
    template = Template(name="named", preload=("fractions",))
    face.open(template)

    assert face.open("named").run_code("import sys; 'fractions' in sys.modules").text == "True"
    with pytest.raises(TemplateError):
        face.open(Template(name="named", preload=("decimal",)))


def test_an_interpreter_without_what_is_needed_is_refused(face, tmp_path):
    """The error names the template and the way out."""
    missing = tmp_path / "python"
    with pytest.raises(TemplateError) as caught:
        face.open(Template(name="missing", python=str(missing)))

    assert str(missing) in str(caught.value)
    assert caught.value.hint


def test_a_template_of_another_interpreter_runs_it(face):
    """`python` names the environment; here it is our own, by its path."""
    sandbox = face.open(Template(name="by-path", python=sys.executable, preload=()))

    assert sandbox.run_code("import sys; sys.version_info[:2]").text == str(sys.version_info[:2])


@pytest.fixture
def folder(tmp_path):
    """A folder that everybody may read, as tmp_path is not."""
    folder = tmp_path / "given"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def test_files_and_variables_of_a_template_are_in_each_sandbox(face, folder):
    """Each has its own copy of a small file, a link to a large one, and the variables in cells and commands."""
    (folder / "sub").mkdir()
    (folder / "sub" / "note.txt").write_text("given")
    (folder / "link").symlink_to("sub/note.txt")
    (folder / "large").write_bytes(b"x" * (2 << 20))
    template = Template(
        name=f"giving-{face.name}", preload=(), files=str(folder), envs={"WHO": "Ada", "TZ": "Asia/Tokyo"}
    )
    first, second = face.open(template), face.open(template)

    first.files.write("sub/note.txt", "changed")
    assert second.files.read("link") == "given"
    assert second.files.get_info("large").symlink_target == "/opt/template/large"
    assert second.files.get_info("sub/note.txt").owner == "user"
    assert (
        second.run_code("import os; len(open('large').read()), os.environ['WHO']").text == "(2097152, 'Ada')"
    )
    second.restart_code_context("default")
    assert second.commands.run("echo $WHO $TZ").stdout == "Ada Asia/Tokyo\n"
    assert face.open(template, envs={"WHO": "Bob"}).run_code("import os; os.environ['WHO']").text == "'Bob'"


def test_variables_of_a_template_hold_while_its_modules_are_imported(face):
    """What a module reads at its import is what its sandboxes have."""
    template = Template(name=f"read-{face.name}", preload=("webbrowser",), envs={"BROWSER": "mine"})
    found = face.open(template).run_code("import webbrowser; webbrowser.get().name").text
    assert found == "'mine'"


def test_files_that_do_not_fit_are_reported_at_the_start(face, folder):
    """The error says what to allow."""
    for name in ("data", "more"):
        (folder / name).write_bytes(b"x" * (1 << 20))

    template = Template(name=f"full-{face.name}", preload=(), files=str(folder))
    with pytest.raises(SandboxStartError, match="template's files") as caught:
        face.open(template, limits=Limits(disk_bytes=1 << 20))

    assert "disk_bytes" in caught.value.hint
    assert face.open(template).files.get_info("data").size_bytes == 1 << 20


@pytest.mark.parametrize("closed", ["given", "given/sub", "given/sub/a.txt"])
def test_files_that_no_guest_may_read_are_reported_at_the_start(face, folder, closed):
    """A guest is nobody on this machine; the error names the file and the way out."""
    (folder / "sub").mkdir()
    (folder / "sub" / "a.txt").write_text("a")
    (folder.parent / closed).chmod(0o700)
    template = Template(name=f"closed-{face.name}-{closed}", preload=(), files=str(folder))
    with pytest.raises(TemplateError, match=f"{closed}' is not readable") as caught:
        face.open(template)

    assert "chmod -R a+rX" in caught.value.hint


def test_files_that_are_not_there_are_reported_at_the_start(face, folder):
    """The error names the folder."""
    with pytest.raises(SandboxStartError, match="nowhere"):
        face.open(Template(name=f"gone-{face.name}", preload=(), files=str(folder / "nowhere")))


def test_an_unknown_name_is_reported_with_those_that_are_like_it(face):
    """The hint names what was probably meant."""
    with pytest.raises(TemplateError, match="'defualt'") as caught:
        face.open("defualt")

    assert "'default'" in caught.value.hint


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": "x" * 300}, {"python": 3}, {"preload": ["json"]}, {"preload": ("not a module",)}],
)
def test_what_is_no_template_is_refused_at_once(fields):
    """Nothing is started for it."""
    with pytest.raises(InvalidArgumentError):
        Template(**fields)
