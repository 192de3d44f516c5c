"""R: a workspace that persists from cell to cell, checkpoints and all, in the process of the context."""

from __future__ import annotations

import shutil

import pytest

from fumehood import InvalidArgumentError

pytestmark = [
    pytest.mark.in_guest,
    pytest.mark.skipif(not shutil.which("R"), reason="needs the program R: `make programs` installs it"),
]


def _run(sandbox, code, **options):
    return sandbox.run_code(code, language="r", **options)


def test_the_workspace_persists_and_values_are_results(sandbox):
    """Each visible value is a result, the last one the main one; functions of packages are there."""
    execution = _run(sandbox, "x <- 41; f <- function(n) n + x\n1:3\nf(1)")

    assert [result.text for result in execution.results] == ["[1] 1 2 3", "[1] 42"]
    assert execution.text == "[1] 42"
    assert _run(sandbox, "x <- x + 1; invisible(x)").results == ()
    assert _run(sandbox, "ls()").text == '[1] "f" "x"'


def test_streams_are_apart_and_in_order(sandbox):
    """Also what a program of R's writes; warnings and messages go to standard error."""
    execution = _run(sandbox, "cat('a\\n'); message('b'); system('echo c'); warning('d'); cat('é\\n')")

    assert "".join(execution.logs.stdout) == "a\nc\né\n"
    assert "".join(execution.logs.stderr).startswith("b\nWarning")
    assert (
        "".join(_run(sandbox, "invisible(parallel::mclapply(1:2, function(i) cat('w\\n')))").logs.stdout)
        == "w\nw\n"
    )


def test_tables_and_plots_are_rich(sandbox):
    """A data frame is HTML and text; each page of a plot is a picture, and so is one of ggplot2."""
    table = _run(sandbox, "data.frame(a = 1:2, b = c('x', '<y'))").results[0]
    plots = _run(sandbox, "plot(1:10); hist(c(1, 2, 2))").results

    assert "<table" in table.html
    assert "&lt;y" in table.html
    assert "1 1  x" in table.text
    assert [plot.png[:4] for plot in plots] == [b"\x89PNG"] * 2

    drawn = _run(sandbox, "library(ggplot2)\nggplot(mtcars, aes(mpg, wt)) + geom_point()", timeout=60)

    assert drawn.error is None, drawn.error
    assert drawn.results[0].png[:4] == b"\x89PNG"


def test_an_error_names_its_lines(sandbox):
    """Of the calls and of the cell; text that does not parse names its place; `q()` ends the cell alone."""
    error = _run(sandbox, "f <- function(a) {\n  stop('boom')\n}\nf(1)").error

    assert (error.name, error.value) == ("simpleError", "boom")
    assert error.traceback.splitlines()[0] == "Error in f(1): boom"
    assert "at cell_1.R:2" in error.traceback
    assert "at cell_1.R:4" in error.traceback
    assert "cell_2.R:1:5" in _run(sandbox, "x + )").error.value
    assert _run(sandbox, "f <- function() f(); f()").error.name.endswith("StackOverflowError")
    assert (_run(sandbox, "q(status = 3)").error.name, _run(sandbox, "q()").error) == ("ExitCode", None)
    assert _run(sandbox, "f(1)", timeout=5).error is not None


@pytest.mark.parametrize("code", ["repeat {}", "Sys.sleep(60)", "while (TRUE) x <- 5", "readline()"])
def test_a_time_out_keeps_the_workspace(sandbox, code):
    """Also of a loop that is compiled and calls nothing."""
    _run(sandbox, "x <- 5")
    execution = (
        _run(sandbox, code, timeout=1, on_input=_never)
        if "readline" in code
        else _run(sandbox, code, timeout=1)
    )

    assert execution.error.kind == "time_limit"
    assert not execution.state_lost
    assert _run(sandbox, "x").text == "[1] 5"


def _search(word: str) -> str:
    return word


def _never(_question) -> None:
    import threading

    # Longer than the cell may take.
    threading.Event().wait(3)


def test_variables_directory_and_input_of_a_call(sandbox):
    """The environment is undone afterwards."""
    sandbox.files.make_dir("/home/user/project")
    context = sandbox.create_code_context(language="r", cwd="/home/user/project")

    assert sandbox.run_code("getwd()", context=context).text == '[1] "/home/user/project"'
    assert _run(sandbox, "Sys.getenv('FOO')", envs={"FOO": "1"}).text == '[1] "1"'
    assert _run(sandbox, "Sys.getenv('FOO')").text == '[1] ""'
    assert _run(sandbox, "readLines('stdin')", stdin="a\nb\n").text == '[1] "a" "b"'
    assert _run(sandbox, "readline('name? ')", on_input=lambda _: "Ada").text == '[1] "Ada"'


def test_checkpoints_and_transactions_hold_the_workspace(sandbox):
    """With the files, as those of Python."""
    _run(sandbox, "x <- 5; writeLines('old', '/mnt/data/f')")
    checkpoint = sandbox.checkpoint(context="r")
    _run(sandbox, "x <- 99; writeLines('new', '/mnt/data/f')")
    sandbox.rollback(checkpoint)

    assert _run(sandbox, "paste(x, readLines('/mnt/data/f'))").text == '[1] "5 old"'
    assert _run(sandbox, "x <- 7; stop('no')", transactional=True).error is not None
    assert _run(sandbox, "x").text == "[1] 5"
    assert _run(sandbox, "x <- 7", transactional=True).error is None
    assert _run(sandbox, "x").text == "[1] 7"


def test_a_fork_of_its_checkpoint_goes_on_in_it(sandbox):
    """In its context of R, beside which Python begins anew; and R in the fork is restarted as R."""
    sandbox.run_code("y = 1")
    _run(sandbox, "x <- 5; writeLines('old', '/mnt/data/f')")
    checkpoint = sandbox.checkpoint(context="r")
    _run(sandbox, "x <- 99")

    with sandbox.fork(checkpoint=checkpoint) as fork:
        assert [(one.id, one.language) for one in fork.list_code_contexts()] == [("r", "r")]
        assert _run(fork, "paste(x, readLines('/mnt/data/f'))").text == '[1] "5 old"'
        assert fork.run_code("y").error.name == "NameError"
        assert [name for name in fork.left_behind if "context" in name] == ["context 'default'"]

        with fork.fork(checkpoint=fork.checkpoint(context="r")) as below:
            assert _run(below, "x + 1").text == "[1] 6"

        fork.restart_code_context("r")
        assert _run(fork, "exists('x')").text == "[1] FALSE"


def test_random_numbers_differ_between_contexts(sandbox):
    """Though all are copies of one process."""
    other = sandbox.create_code_context(language="r")

    assert _run(sandbox, "runif(1)").text != sandbox.run_code("runif(1)", context=other).text
    assert _run(sandbox, "tempdir()").text != sandbox.run_code("tempdir()", context=other).text


def test_functions_of_the_caller_are_refused(sandbox):
    """Before anything is begun."""
    with pytest.raises(InvalidArgumentError, match="'r'"):
        _run(sandbox, "1", tools={"search": _search})


def test_r_is_as_confined_as_python(sandbox):
    """No file of the host, no network, and R's own site settings stay on the host."""
    code = (
        "c(file.exists('/etc/shadow'), file.exists('/etc/R/Renviron.site'),"
        " inherits(try(socketConnection('1.1.1.1', 53, timeout = 1), silent = TRUE), 'try-error'),"
        " inherits(try(suppressWarnings(file('/usr/x', 'w')), silent = TRUE), 'try-error'))"
    )

    assert _run(sandbox, code).text == "[1] FALSE FALSE  TRUE  TRUE"
