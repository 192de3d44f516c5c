"""Several contexts in one sandbox: namespaces apart, files shared, each one execution at a time."""

from __future__ import annotations

import threading

import pytest

from fumehood import ContextNotFoundError, InvalidArgumentError


def test_contexts_have_namespaces_of_their_own(sandbox):
    """What one context defines another does not see."""
    other = sandbox.create_code_context()
    sandbox.run_code("x = 1")

    assert sandbox.run_code("'x' in globals()", context=other).text == "False"
    assert sandbox.run_code("'x' in globals()").text == "True"


def test_contexts_share_the_files(sandbox):
    """They are processes of one sandbox."""
    other = sandbox.create_code_context()
    sandbox.run_code("open('/mnt/data/note', 'w').write('hello')", context=other)
    assert sandbox.run_code("open('/mnt/data/note').read()").text == "'hello'"


def test_a_context_can_start_in_a_directory(sandbox):
    """`cwd` is where its code finds itself."""
    sandbox.files.make_dir("/home/user/project")
    context = sandbox.create_code_context(cwd="/home/user/project")

    assert context.cwd == "/home/user/project"
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "'/home/user/project'"


def test_contexts_are_listed_the_default_one_first(sandbox):
    """`list_code_contexts` names all that live."""
    other = sandbox.create_code_context()
    listed = sandbox.list_code_contexts()

    assert [context.id for context in listed] == ["default", other.id]
    assert listed[0].language == "python"
    assert listed[0].cwd == "/home/user"


def test_a_restarted_context_is_fresh_and_keeps_its_name(sandbox):
    """`restart` gives an empty namespace under the same id."""
    context = sandbox.create_code_context()
    sandbox.run_code("x = 1", context=context)
    again = sandbox.restart_code_context(context)

    assert again.id == context.id
    assert sandbox.run_code("'x' in globals()", context=context).text == "False"


def test_the_default_context_can_be_restarted_by_name(sandbox):
    """The default context is one like any other."""
    sandbox.run_code("x = 1")
    sandbox.restart_code_context("default")
    assert sandbox.run_code("'x' in globals()").text == "False"


def test_a_removed_context_is_gone(sandbox):
    """`remove` kills it, and its id is unknown afterwards."""
    context = sandbox.create_code_context()
    sandbox.remove_code_context(context)

    assert context.id not in [item.id for item in sandbox.list_code_contexts()]

    with pytest.raises(ContextNotFoundError):
        sandbox.run_code("1", context=context)


def test_an_unknown_context_cannot_be_restarted_or_removed(sandbox):
    """The error names it."""
    with pytest.raises(ContextNotFoundError, match="'nobody'"):
        sandbox.restart_code_context("nobody")

    with pytest.raises(ContextNotFoundError, match="'nobody'"):
        sandbox.remove_code_context("nobody")


def test_a_context_in_a_missing_directory_is_refused(sandbox):
    """A directory that is not there is told as such."""
    with pytest.raises((FileNotFoundError, OSError)):
        sandbox.create_code_context(cwd="/nowhere")

    assert [context.id for context in sandbox.list_code_contexts()] == ["default"]


def test_wrong_arguments_are_refused(sandbox):
    """Language and directory are checked before anything starts."""
    with pytest.raises(InvalidArgumentError):
        sandbox.create_code_context(language="perl")

    with pytest.raises(InvalidArgumentError):
        sandbox.create_code_context(cwd="")


def test_one_context_runs_one_execution_at_a_time_in_order(sync_face):
    """What is asked of a context at the same time runs one after the other, in the order of asking."""
    sandbox = sync_face.open()
    sandbox.run_code("order = []")
    started = threading.Event()
    threads: list[threading.Thread] = []

    def run(number: int) -> None:
        sandbox.run_code(f"import time; time.sleep(0.05); order.append({number})")

    def on_stdout(text: str) -> None:
        started.set()

    def run_first() -> None:
        sandbox.run_code("print('go'); import time; time.sleep(0.5); order.append(0)", on_stdout=on_stdout)

    threads.append(threading.Thread(target=run_first))
    threads[0].start()
    started.wait()
    threads += [threading.Thread(target=run, args=(number,)) for number in range(1, 4)]

    for thread in threads[1:]:
        thread.start()

    for thread in threads:
        thread.join()

    order = sandbox.run_code("order").text
    assert order.startswith("[0, ")
    assert sorted(order) == sorted("[0, 1, 2, 3]")


def test_contexts_run_side_by_side(sync_face):
    """A cell of one context does not wait for a cell of another: they can even wait for each other."""
    sandbox = sync_face.open()
    other = sandbox.create_code_context()
    code = (
        "import os, time\nopen('/tmp/{mine}', 'w').close()\n"
        "deadline = time.monotonic() + 20\n"
        "while not os.path.exists('/tmp/{theirs}') and time.monotonic() < deadline: pass\n"
        "os.path.exists('/tmp/{theirs}')"
    )
    answers: list[str | None] = []
    thread = threading.Thread(
        target=lambda: answers.append(sandbox.run_code(code.format(mine="a", theirs="b"), context=other).text)
    )
    thread.start()
    answers.append(sandbox.run_code(code.format(mine="b", theirs="a")).text)
    thread.join()

    assert answers == ["True", "True"]


def test_a_death_in_one_context_leaves_the_others_alone(sandbox):
    """Contexts are processes of their own."""
    other = sandbox.create_code_context()
    sandbox.run_code("x = 1")
    sandbox.run_code("import os; os._exit(1)", context=other)

    assert sandbox.run_code("x").text == "1"
