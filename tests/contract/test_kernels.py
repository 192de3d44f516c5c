"""Kernels of Jupyter that the template has, as languages of contexts: those of R, of Python, of Deno and of Java."""

from __future__ import annotations

import os

import pytest

from fumehood import InvalidArgumentError, LanguageCheckpointError, LanguageUnavailableError

pytestmark = pytest.mark.in_guest

SPEC = "/usr/share/jupyter/kernels/ir/kernel.json"

needs_ir = pytest.mark.skipif(
    not os.path.exists(SPEC), reason="needs the kernel of R: `make programs` installs it"
)
# Those of Deno and Java are large: `make test-languages` installs them.
OTHERS = [
    pytest.param("python3", "x = 41", "x + 1", "print('a')", "1 / 0", "while True: pass", id="ipykernel"),
]

if "EVERY_LANGUAGE" in os.environ:
    OTHERS += [
        pytest.param(
            "deno",
            "let x: number = 41",
            "x + 1",
            "console.log('a')",
            "throw new Error('no')",
            "while (true) {}",
            id="deno",
        ),
        pytest.param(
            "java",
            "int x = 41;",
            "x + 1",
            'System.out.println("a");',
            'throw new RuntimeException("no");',
            "while (true) {}",
            id="jjava",
        ),
    ]


@needs_ir
def test_a_kernel_runs_cells(sandbox):
    """State, streams, rich results, an error, a time-out that keeps the state; and what it lacks is refused."""

    def run(code, **options):
        return sandbox.run_code(code, language="kernel:ir", **options)

    shown = run("x <- 41\nx + 1")
    assert shown.error is None, shown.error
    assert shown.results[0].text == "[1] 42"

    streamed = run("cat('a\\n'); message('b'); plot(1)")
    assert ("".join(streamed.logs.stdout), "".join(streamed.logs.stderr).strip()) == ("a\n", "b")
    assert streamed.results[0].png[:4] == b"\x89PNG"

    assert run("stop('no')").error.value.strip().endswith("no")
    late = run("Sys.sleep(60)", timeout=1)
    assert (late.error.kind, late.state_lost) == ("time_limit", False)
    assert run("x").results[0].text == "[1] 41"

    with pytest.raises(LanguageCheckpointError, match="kernel:ir"):
        sandbox.checkpoint(context="kernel:ir")

    with pytest.raises(InvalidArgumentError, match="kernel"):
        run("x", envs={"A": "1"})


@pytest.mark.parametrize(("name", "first", "then", "prints", "fails", "loops"), OTHERS)
def test_kernels_of_others_run_cells(sandbox, name, first, then, prints, fails, loops):
    """State, streams, an error, and a time-out that keeps the state, in programs with three libraries of ZeroMQ."""

    def run(code, **options):
        return sandbox.run_code(code, language=f"kernel:{name}", **options)

    begun = run(first)
    assert begun.error is None, begun.error
    assert "42" in run(then).results[0].text
    assert "".join(run(prints).logs.stdout) == "a\n"
    assert run(fails).error.kind == "exception"
    late = run(loops, timeout=2)
    assert (late.error.kind, late.state_lost) == ("time_limit", False)
    assert "42" in run(then).results[0].text


def test_a_kernel_may_ask_for_input(sandbox):
    """It asks on another connection than its client has asked on; without anyone to answer, an empty line is there."""
    asked = sandbox.run_code("input('who? ')", language="kernel:python3", timeout=30)
    assert asked.error is None, asked.error
    assert asked.results[0].text == "''"


@needs_ir
def test_a_kernel_that_is_not_there_is_refused(sandbox):
    """With the names of those that are; a name that is no name is refused before."""
    with pytest.raises(LanguageUnavailableError, match=r"there are: .*ir"):
        sandbox.run_code("1", language="kernel:nope")

    with pytest.raises(InvalidArgumentError):
        sandbox.run_code("1", language="kernel:../ir")
