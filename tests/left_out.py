"""What `make test` leaves to `make test-all`: more cases of a promise that another test there stands for.

Ten thousand tests are too many for each submission. What is left out here costs most for what it adds: each entry has
the beginning of the names of tests that are not run, and of those that stand for them. Attacks stay.
`python -m tests.suite --all` runs all of them, `--left-out` these alone; a test that is named runs in any case.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

# The mark of a test that is left out.
MARK = "left_out"
_EXAMPLES = "tests/integration/test_examples.py::test_snippets_of_a_page"
_FRAMEWORKS = "tests/integration/test_frameworks.py::test_adapter"
_BUILDS = "tests/integration/test_template_builds.py::"
_CELLS = "tests/integration/test_compatibility.py::"
_USERS = "tests/integration/test_ordinary_user.py::"
_IMAGES = "tests/integration/test_image_templates.py::"
_WARM = "tests/integration/test_warm_runs.py::"
_FLOWS = "tests/console/test_flows.py::"
_KEYBOARD = "tests/console/test_by_keyboard.py::"
_LEARNED_FIRST = (
    "README",
    "1-five-minutes",
    "2-packages",
    "3-charts",
    "4-files",
    "5-going-back",
    "6-a-tool-for-my-model",
    "7-a-server-for-my-team",
)
# What is left out, and what stands for it.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    # Guides and comparisons: the first page and the tutorials are tried.
    _EXAMPLES: tuple(f"{_EXAMPLES}[{page}]" for page in _LEARNED_FIRST),
    # Each adapter is a few lines over the same tool.
    _FRAMEWORKS: tuple(f"{_FRAMEWORKS}[{name}]" for name in ("langchain", "openai_agents", "pydantic_ai")),
    # The one that runs the tests is what all others of this file build with.
    f"{_BUILDS}test_each_python_of_this_machine": (
        f"{_BUILDS}test_packages_files_variables_and_preloaded_modules_are_there",
    ),
    # The same kernels answer the same suite through the gateway of a server.
    **{
        f"tests/integration/test_jupyter_kernel.py::{name}::": (
            f"tests/dialects/jupyter/test_kernel_conformance.py::{name}::",
        )
        for name in ("TestJavaScript", "TestR", "TestJava")
    },
    # Each cell runs in a session; what a child of one does otherwise is to start, to share and to draw.
    f"{_CELLS}test_script_of_a_child": tuple(
        f"{_CELLS}test_script_of_a_child[{name}]"
        for name in ("matplotlib_files", "multiprocessing_fork", "subprocess_pipes", "threads")
    ),
    f"{_USERS}test_a_refusing_system_is_named_with_the_way_out": tuple(
        f"{_USERS}test_a_refusing_system_is_named_with_the_way_out[{name}]"
        for name in (
            "seccomp profile-ordinary user",
            "no user namespaces-ordinary user",
            "masked proc-ordinary user",
            "no user namespaces-root",
        )
    ),
    f"{_USERS}test_the_doctor_of_a_refusing_system": (
        f"{_USERS}test_the_doctor_of_a_refusing_system[no user namespaces]",
    ),
    f"{_IMAGES}test_a_working_directory_below_folders_of_every_sandbox": (
        f"{_IMAGES}test_a_working_directory_below_folders_of_every_sandbox[/home/app/project]",
    ),
    f"{_WARM}test_json_is_that_of_a_cold_run": (f"{_WARM}test_json_is_that_of_a_cold_run[words0]",),
    # `make test-console` runs them.
    _KEYBOARD: (f"{_KEYBOARD}test_make_run_go_back_and_fork",),
    # A browser sends what these requests have, which the server is asked with here.
    "tests/console/test_guest_origin.py::test_a_page_of_a_port_has_nothing_of_the_login": (
        "tests/server/test_logins.py::test_the_cookie_opens_no_dialect_no_port_and_no_tunnel",
    ),
    f"{_FLOWS}test_what_a_program_ran_is_the_page[dark]": (
        f"{_FLOWS}test_what_a_program_ran_is_the_page[light]",
    ),
}


def mark(items: Sequence[pytest.Item], *, is_whole: bool) -> None:
    """Mark what is left out.

    Args:
        items: The tests.
        is_whole: Whether they are all there are, so that an entry that fits none is a mistake.

    Raises:
        pytest.UsageError: An entry fits no test, or what should stand for it is not there.
    """
    for item in items:
        if _is_left_out(item.nodeid):
            item.add_marker(MARK)

    if not is_whole:
        return

    names = [item.nodeid for item in items]

    for left_out, standing_in in LEFT_OUT.items():
        for entry in (left_out, *standing_in):
            if not any(name.startswith(entry) for name in names):
                raise pytest.UsageError(f"tests/left_out.py: no test is called {entry!r}")

        if any(map(_is_left_out, standing_in)):
            raise pytest.UsageError(f"tests/left_out.py: what stands for {left_out!r} is left out as well")


def _is_left_out(name: str) -> bool:
    return any(
        name.startswith(left_out) and not name.startswith(standing_in)
        for left_out, standing_in in LEFT_OUT.items()
    )
