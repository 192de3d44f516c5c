"""Where an environment lies, as its interpreter tells."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from fumehood import Template, TemplateError
from fumehood.templates import interpreter_facts
from fumehood.templates.environment import read_environment


def test_the_environment_of_this_process_is_read_without_a_program(monkeypatch):
    """An interpreter costs a start as much as an import of pandas does a tenth of; what it tells is the same."""
    told = subprocess.run(
        [sys.executable, "-I", interpreter_facts.__file__], capture_output=True, check=True, text=True
    )
    assert json.loads(told.stdout) == interpreter_facts.read()
    asked = read_environment(Template(name="other", python=sys.executable))

    monkeypatch.setattr(subprocess, "run", None)
    assert read_environment(Template()) == asked


def test_an_interpreter_that_does_not_answer_is_named(tmp_path):
    """Another program than Python, or none."""
    for python in ("/bin/true", str(tmp_path / "none")):
        with pytest.raises(TemplateError, match="did not answer"):
            read_environment(Template(name="other", python=python))
