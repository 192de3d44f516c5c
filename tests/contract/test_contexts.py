"""Several contexts in one sandbox: namespaces apart, files shared, each one execution at a time."""

from __future__ import annotations

import threading

import pytest

from fumehood import (
    ContextNotFoundError,
    InvalidArgumentError,
    PathNotDirectoryError,
    PathNotFoundError,
    SandboxStartError,
)


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


@pytest.mark.parametrize(
    ("folder", "kind", "why"),
    [
        ("/nowhere", PathNotFoundError, "No such file or directory"),
        ("nowhere", PathNotFoundError, "No such file or directory"),
        ("note", PathNotDirectoryError, "Not a directory"),
    ],
)
def test_a_context_in_what_is_no_folder_is_refused(sandbox, folder, kind, why):
    """The error names it as it was given, and how one is made."""
    sandbox.files.write("note", "")

    with pytest.raises(kind) as refused:
        sandbox.create_code_context(cwd=folder)

    assert refused.value.message == f"cannot start a context in {folder!r}: {why}"
    assert refused.value.path == folder
    assert "`files.make_dir()` makes one" in refused.value.hint
    assert [context.id for context in sandbox.list_code_contexts()] == ["default"]


def test_a_context_that_cannot_enter_its_folder_is_reported(sandbox):
    """Why it did not start is told by itself, when it is started and when it is started again."""
    sandbox.commands.run("mkdir locked; mkdir fleeting; chmod 000 locked")

    with pytest.raises(SandboxStartError, match="Permission denied: '/home/user/locked'"):
        sandbox.create_code_context(cwd="locked")

    context = sandbox.create_code_context(cwd="fleeting")
    sandbox.files.remove("fleeting")

    with pytest.raises(
        SandboxStartError, match="No such file or directory: '/home/user/fleeting'"
    ) as refused:
        sandbox.restart_code_context(context)

    assert refused.value.hint.startswith("the sandbox goes on")
    assert sandbox.run_code("1").text == "1"
    sandbox.files.make_dir("fleeting")
    assert sandbox.restart_code_context(context) == context
    assert sandbox.run_code("2", context=context).text == "2"


def test_wrong_arguments_are_refused(sandbox):
    """Language and directory are checked before anything starts."""
    with pytest.raises(InvalidArgumentError):
        sandbox.create_code_context(language="abap")

    with pytest.raises(InvalidArgumentError):
        sandbox.create_code_context(cwd="")


@pytest.mark.parametrize("context", ["", 7, b"default", ["default"]], ids=repr)
def test_what_is_no_context_is_refused(sandbox, context):
    """By every verb that takes one, and not as if none had been named."""
    verbs = [
        sandbox.interrupt,
        sandbox.get_record,
        sandbox.restart_code_context,
        sandbox.remove_code_context,
        lambda context: sandbox.run_code("1", context=context),
        lambda context: sandbox.checkpoint(context=context),
        lambda context: sandbox.to_notebook(context=context),
    ]

    for verb in verbs:
        with pytest.raises(InvalidArgumentError, match="context takes text"):
            verb(context)


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
