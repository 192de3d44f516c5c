"""Templates: which environment a sandbox starts from, and what is imported in it before anybody asks."""

from __future__ import annotations

import sys

import pytest

from fumehood import InvalidArgumentError, Template, TemplateError


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


@pytest.mark.parametrize(
    "fields",
    [{"name": ""}, {"name": "x" * 300}, {"python": 3}, {"preload": ["json"]}, {"preload": ("not a module",)}],
)
def test_what_is_no_template_is_refused_at_once(fields):
    """Nothing is started for it."""
    with pytest.raises(InvalidArgumentError):
        Template(**fields)
