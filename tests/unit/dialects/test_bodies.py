"""What dialects say of bodies of the wrong form: the first fault, by the name that the client knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fumehood.dialects.fusion.bodies import RunCodeCall, RunJupyterCall
from fumehood.dialects.jupyter.bodies import NewKernel, SessionBody
from fumehood.dialects.librechat.bodies import ExecCall, read_programmatic
from fumehood.dialects.openai.bodies import NewContainer
from fumehood.dialects.replit.adapter import CodeExecCall
from fumehood.errors import InvalidArgumentError
from fumehood.server.json_bodies import read_body

READERS: dict[str, Callable[[bytes], object]] = {
    "run_code": lambda body: read_body(RunCodeCall, body),
    "run_jupyter": lambda body: read_body(RunJupyterCall, body),
    "code_exec": lambda body: read_body(CodeExecCall, body),
    "exec": lambda body: read_body(ExecCall, body),
    "programmatic": read_programmatic,
    "kernel": lambda body: read_body(NewKernel, body),
    "session": lambda body: read_body(SessionBody, body).required_path(),
    "container": lambda body: read_body(NewContainer, body).spec(),
}
# By reader: the body, the field, its value as it is shown, and what the field takes.
REFUSED = json.loads(Path(__file__).with_name("refused_bodies.json").read_text(encoding="utf-8"))
CASES = [(reader, *case) for reader, cases in REFUSED.items() for case in cases]


@pytest.mark.parametrize(("reader", "body", "field", "value", "allowed"), CASES)
def test_a_body_of_the_wrong_form_is_refused(
    reader: str, body: str, field: str, value: str, allowed: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        READERS[reader](body.encode())

    assert caught.value.field == field
    assert caught.value.message == f"{field}={value} is refused"
    assert caught.value.allowed == allowed
