"""A kernel of Jupyter that the template has, as the language of a context: IRkernel."""

from __future__ import annotations

import os

import pytest

from fumehood import InvalidArgumentError, LanguageCheckpointError, LanguageUnavailableError

SPEC = "/usr/share/jupyter/kernels/ir/kernel.json"

pytestmark = pytest.mark.skipif(
    not os.path.exists(SPEC), reason="needs the kernel of R: `make programs` installs it"
)


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


def test_a_kernel_that_is_not_there_is_refused(sandbox):
    """With the names of those that are; a name that is no name is refused before."""
    with pytest.raises(LanguageUnavailableError, match=r"there are: .*ir"):
        sandbox.run_code("1", language="kernel:nope")

    with pytest.raises(InvalidArgumentError):
        sandbox.run_code("1", language="kernel:../ir")
