"""Kernels of Jupyter that the template has, as languages of contexts: those of R, of Python, of Deno and of Java."""

from __future__ import annotations

import json
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
# How to read a variable, and to compare it with what a file holds.
VARIABLES = {
    "ir": (
        "Sys.getenv('OF_CALL', '-')",
        "identical(Sys.getenv('OF_CALL'), paste(readLines('/tmp/awkward', warn = FALSE), collapse = '\\n'))",
    ),
    "python3": (
        "import os; os.getenv('OF_CALL', '-')",
        "import os; os.getenv('OF_CALL') == open('/tmp/awkward', newline='').read()",
    ),
    "deno": (
        "Deno.env.get('OF_CALL') ?? '-'",
        "Deno.env.get('OF_CALL') === Deno.readTextFileSync('/tmp/awkward')",
    ),
    "java": (
        'System.getProperty("OF_CALL", "-")',
        'System.getProperty("OF_CALL").equals(java.nio.file.Files.readString(java.nio.file.Path.of("/tmp/awkward")))',
    ),
}
# What literals of the four languages read otherwise.
AWKWARD = """'a' "b" `c` $d ${e} #{f} %g\\ \\u0041 \\\\n {}\n\t\u00e9 \u2028 \U0001f600"""


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

    check_variables(sandbox, "ir")


@pytest.mark.parametrize(("name", "first", "then", "prints", "fails", "loops"), OTHERS)
def test_kernels_of_others_run_cells(sandbox, name, first, then, prints, fails, loops):
    """State, streams, an error, a time-out that keeps the state, variables: programs with three libraries of ZeroMQ."""

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
    check_variables(sandbox, name)
    assert run(loops, timeout=2, envs={"OF_CALL": "late"}).state_lost is False
    assert "-" in run(VARIABLES[name][0]).results[0].text


def check_variables(sandbox, name):
    """Variables of a call are set and undone, arrive as written, and are no code; those from before are back."""
    read, is_same = VARIABLES[name]

    def shown(code, **envs):
        done = sandbox.run_code(code, language=f"kernel:{name}", envs=envs)
        assert done.error is None, done.error
        return done.results[0].text

    assert "of call" in shown(read, OF_CALL="of call")
    assert "-" in shown(read)
    sandbox.files.write("/tmp/awkward", AWKWARD)
    assert "true" in shown(is_same, OF_CALL=AWKWARD, OTHER=AWKWARD, HOME="/").lower()
    assert "-" in shown(read)
    home = shown(read.replace("OF_CALL", "HOME"))
    assert "-" in home if name == "java" else "/home/user" in home


def test_variables_are_refused_by_a_kernel_of_an_unknown_language(sandbox):
    """Its code is not run; and it runs without them."""
    program = (
        "from ipykernel.ipkernel import IPythonKernel as Kernel; from ipykernel.kernelapp import IPKernelApp as App; "
        "Kernel.language_info = {'name': 'odd'}; App.launch_instance(['-f', '{connection_file}'], kernel_class=Kernel)"
    )
    spec = {"argv": ["python3", "-c", program], "display_name": "Odd", "language": "odd"}
    sandbox.files.write("/home/user/.local/share/jupyter/kernels/odd/kernel.json", json.dumps(spec))
    refused = sandbox.run_code("x = 1", language="kernel:odd", envs={"A": "1"})
    assert (refused.error.name, "'odd'" in refused.error.value) == ("NotImplementedError", True)
    assert sandbox.run_code("x", language="kernel:odd").error.name == "NameError"


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
