"""A sandbox as DSPy's code interpreter: the protocol rule by rule, and the real modules that execute code."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from dspy.primitives.code_interpreter import (
    CodeExecutionError,
    CodeInterpreter,
    CodeInterpreterError,
    FinalOutput,
)
from dspy.utils.callback import BaseCallback
from dspy.utils.dummies import DummyLM

from fumehood import Limits, Sandbox
from fumehood.frameworks.dspy import FumehoodInterpreter


@pytest.fixture
def interpreter() -> Iterator[FumehoodInterpreter]:
    with FumehoodInterpreter() as interpreter:
        yield interpreter


def test_the_protocol_is_kept():
    """DSPy takes the class as a factory and its objects as interpreters; nothing is made before the first use."""
    before = {info.id for info in Sandbox.list()}
    interpreter = FumehoodInterpreter()

    assert isinstance(interpreter, CodeInterpreter)
    assert {info.id for info in Sandbox.list()} == before
    interpreter.start()
    interpreter.start()
    assert len(Sandbox.list()) == len(before) + 1
    interpreter.shutdown()
    interpreter.shutdown()
    assert {info.id for info in Sandbox.list()} == before

    for use in (interpreter.start, lambda: interpreter.execute("1")):
        with pytest.raises(CodeInterpreterError, match="shut down"):
            use()


def test_state_output_and_variables(interpreter):
    """Names stay, what is printed and the last value come back, variables are there as they were given."""
    assert interpreter.execute("kept = 41") is None
    assert interpreter.execute("print('marker')") == "marker"
    assert interpreter.execute("kept + 1") == 42
    assert interpreter.execute("[{'a': 'b'}, None, 1.5]") == [{"a": "b"}, None, 1.5]
    assert interpreter.execute("print('marker')\n(1, 2)") == "marker\n(1, 2)"
    assert (
        interpreter.execute("given['a'][1] + len(long)", {"given": {"a": [1, 2]}, "long": "x" * 9_000_000})
        == 9_000_002
    )
    assert interpreter.execute("import os; os.getpid()") != os.getpid()

    with FumehoodInterpreter() as other, pytest.raises(CodeExecutionError, match="NameError"):
        other.execute("kept")


def test_failures_can_be_repaired_and_losses_cannot():
    """An error leaves the session alive, with its state; a session that died stays dead."""
    with FumehoodInterpreter(timeout=3, limits=Limits(processes=16)) as interpreter:
        interpreter.execute("kept = 41")

        with pytest.raises(SyntaxError):
            interpreter.execute("if")

        with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
            interpreter.execute("print('before')\n1 / 0")

        with pytest.raises(CodeExecutionError, match="TimeLimitExceeded"):
            interpreter.execute("while True: pass")

        assert interpreter.execute("kept + 1") == 42

        with pytest.raises(CodeInterpreterError) as caught:
            interpreter.execute("import os; os._exit(1)")

        assert not isinstance(caught.value, CodeExecutionError)

        with pytest.raises(CodeInterpreterError, match="shut down"):
            interpreter.execute("1")


def test_tools_are_called_back_while_the_code_runs(interpreter):
    """By name or position, with their own errors, and no longer than they are lent; coroutines are awaited."""
    calls: list[tuple[int, int]] = []
    here = contextvars.ContextVar("here", default="lost")
    here.set("kept")

    def add(left: int, right: int = 0) -> dict[str, int]:
        calls.append((left, right))
        return {"value": left + right}

    async def place() -> str:
        return here.get()

    interpreter.tools.update(add=add, place=place, fail=lambda: 1 / 0)
    assert interpreter.execute("add(left=19, right=23)['value'] + add(1)['value'] + add(2, 3)['value']") == 48
    assert calls == [(19, 23), (1, 0), (2, 3)]
    assert interpreter.execute("place()") == "kept"
    assert interpreter.execute("import numpy\nadd(*numpy.array([1, 2]))['value']") == 3

    with pytest.raises(CodeExecutionError, match="ZeroDivisionError: division by zero"):
        interpreter.execute("fail()")

    with pytest.raises(CodeExecutionError, match="nothing that a function"):
        interpreter.execute("add(object())")

    interpreter.tools["again"] = lambda: interpreter.execute("1")

    with pytest.raises(CodeExecutionError, match="runs code already"):
        interpreter.execute("again()")

    # What the code does to the names holds until the next execution, and a tool that is taken back is gone.
    interpreter.execute("add = SUBMIT = None")
    assert interpreter.execute("add(1)['value']") == 1
    del interpreter.tools["add"]

    with pytest.raises(CodeExecutionError, match="NameError"):
        interpreter.execute("add(1)")


def test_submit_ends_the_code_with_its_answer(interpreter):
    """One value without fields, all fields with them; what does not fit is an error that can be repaired."""
    done: list[int] = []
    interpreter.tools["after"] = lambda: done.append(1)
    assert interpreter.execute("SUBMIT(42)\nafter()") == FinalOutput({"output": 42})
    assert done == []

    interpreter.output_fields = [{"name": "answer", "type": "str"}, {"name": "score", "type": "int"}]
    assert interpreter.execute("SUBMIT(answer='yes', score=42)") == FinalOutput(
        {"answer": "yes", "score": 42}
    )
    assert interpreter.execute("import numpy\nSUBMIT('no', numpy.int64(7))") == FinalOutput(
        {"answer": "no", "score": 7}
    )
    assert interpreter.execute("SUBMIT(ValueError('x'), 1)") == FinalOutput(
        {"answer": "ValueError('x')", "score": 1}
    )

    for wrong in (
        "SUBMIT('missing')",
        "SUBMIT(answer=1)",
        "SUBMIT(1, score=2)",
        "SUBMIT(1, 2, 3)",
        "SUBMIT(a=1, b=2)",
    ):
        with pytest.raises(CodeExecutionError, match="TypeError"):
            interpreter.execute(wrong)

    with pytest.raises(CodeExecutionError, match="result_bytes"):
        interpreter.execute("SUBMIT('x' * 11_000_000, 1)")


@pytest.mark.parametrize("name", ["not-valid", "class", "SUBMIT", "__builtins__"])
def test_names_that_cannot_be_lent_are_refused(interpreter, name):
    """Before anything runs, and without harm to the session."""
    with pytest.raises(ValueError, match="invalid names"):
        FumehoodInterpreter(tools={name: print})

    interpreter.tools["add"] = max

    for variables in ({name: 1}, {"add": 1}, {"fine": object()}, {"fine": float("nan")}):
        with pytest.raises(CodeInterpreterError, match="variables"):
            interpreter.execute("1", variables)

    assert interpreter.execute("add(1, 2)") == 2


def test_callbacks_hear_of_executions_and_tools():
    """DSPy's own callbacks work, as with its own interpreters."""
    heard: list[Any] = []

    class Recorder(BaseCallback):
        def on_interpreter_execute_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
            heard.append(inputs["code"])

        def on_interpreter_tool_call_end(
            self, call_id: str, outputs: Any, exception: Exception | None = None
        ) -> None:
            heard.append(outputs)

    with FumehoodInterpreter({"answer": lambda: 42}, callbacks=[Recorder()]) as interpreter:
        interpreter.execute("answer()")

    assert heard == ["answer()", 42]


class Actions(dspy.Predict):
    """Stands in for the model of an RLM: these pieces of code, one a turn."""

    def __init__(self, signature: Any, *codes: str) -> None:
        super().__init__(signature)
        self.codes = iter(codes)

    def forward(self, **_: Any) -> dspy.Prediction:
        return dspy.Prediction(reasoning="next", code=next(self.codes))


def test_a_recursive_language_model_repairs_calls_and_submits():
    """The real RLM: an error it sees, a tool and a model that it asks from inside, an answer of the right type."""
    before = {info.id for info in Sandbox.list()}

    def add(*, left: int, right: int) -> int:
        return left + right

    rlm = dspy.RLM(
        "question: str, numbers: list[int] -> answer: str, total: int",
        max_iters=4,
        tools=[add],
        sub_lm=lambda prompt: [f"heard {prompt}"],
        interpreter_factory=FumehoodInterpreter,
    )
    rlm.generate_action = Actions(
        rlm.generate_action.signature,
        "total = add(left=numbers[0], right=missing)",
        "total = add(left=numbers[0], right=numbers[1])",
        "said = llm_query('this')\nprint(said)",
        "SUBMIT(answer=said, total=total)",
    )
    done = rlm(question="What?", numbers=[19, 23])

    assert (done.answer, done.total) == ("heard this", 42)
    assert "NameError" in done.trajectory[0]["output"]
    assert "heard this" in done.trajectory[2]["output"]
    assert FumehoodInterpreter.execution_instructions in rlm.generate_action.signature.instructions
    assert {info.id for info in Sandbox.list()} == before


def test_predictors_inside_are_built_and_run_on_the_host():
    """The facade that DSPy installs into a sandbox: `dspy.Predict` inside asks the host's model."""
    rlm = dspy.RLM("question -> answer", max_iters=1, interpreter_factory=FumehoodInterpreter)
    rlm.generate_action = Actions(
        rlm.generate_action.signature,
        "SUBMIT(dspy.Predict('question -> answer')(question='ping').answer)",
    )

    with dspy.context(lm=DummyLM([{"answer": "pong"}]), adapter=dspy.ChatAdapter()):
        assert rlm(question="q").answer == "pong"


def test_a_flexible_module_runs_what_was_written_for_it():
    """A module whose source is data runs inside, its predictor and its tool outside."""

    class Doubling(dspy.Signature):
        value: int = dspy.InputField()
        result: int = dspy.OutputField()

    def double(*, value: int) -> int:
        return value * 2

    source = (
        "class Written(dspy.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.guess = dspy.Predict('value: int -> result: int')\n"
        "    def forward(self, **inputs):\n"
        "        guessed = self.guess(value=inputs['value'])\n"
        "        return dspy.Prediction(result=double(value=guessed.result))\n"
    )
    program = dspy.Flex(Doubling, tools=[double], interpreter_factory=FumehoodInterpreter)
    program._bind_code(source)

    with dspy.context(lm=DummyLM([{"result": "21"}])):
        assert program(value=1).result == 42


def test_a_program_of_thought_repairs_its_code():
    """The real module with a scripted model: its first program fails, its second submits."""
    model = DummyLM(
        [
            {"reasoning": "first", "generated_code": "```python\nresult = 6 * missing\n```"},
            {"reasoning": "again", "generated_code": "```python\nSUBMIT({'answer': 6 * 7})\n```"},
            {"reasoning": "so", "answer": "42"},
        ]
    )

    with dspy.context(lm=model, interpreter_factory=FumehoodInterpreter):
        assert dspy.ProgramOfThought("question -> answer")(question="What is it?").answer == "42"

    assert "NameError" in str(model.history[1]["messages"])
    assert "42" in str(model.history[2]["messages"])
