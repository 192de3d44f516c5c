"""IPython 8, the last one for Python 3.9 and 3.10: imported without what it rarely needs, and the same in use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from guest_driver import SOURCE, Context, Zygote

# What IPython 9 does not import either.
DEFERRED = {
    *("cProfile", "jedi", "pstats", "pydoc", "pygments.formatters", "pygments.lexers", "pygments.styles"),
    *("stack_data", "urllib.request", "prompt_toolkit", "IPython.terminal.interactiveshell"),
}
PLANTED = (
    "jedi",
    "parso",
    "stack_data",
    "executing",
    "pydoc",
    "cProfile",
    "pstats",
    "prompt_toolkit",
    "pexpect",
)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory) -> Iterator[Zygote]:
    """A zygote whose IPython is of version 8."""
    folder = tmp_path_factory.mktemp("ipython")
    packages = ["ipython==8.39.0", "decorator==5.3.1"]
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(folder), *packages]

    # As in the Makefile: uv reads nothing of pip's configuration, and may find no index.
    if subprocess.run([sys.executable, "-m", "uv", *install], check=False).returncode != 0:
        subprocess.run([sys.executable, "-m", *install], check=True)

    one = Zygote(env={"PYTHONPATH": f"{SOURCE}:{folder}"})
    yield one
    one.close()


@pytest.fixture
def context(zygote) -> Iterator[Context]:
    one = zygote.start()
    yield one
    assert one.close() == 0


def test_what_is_rarely_needed_is_not_imported(zygote, context):
    """More than half of the start of such a Python; IPython itself is complete, and no placeholder is left about."""
    assert DEFERRED.isdisjoint(zygote.state["modules"])
    assert {"IPython.core.completer", "IPython.core.magics"} <= set(zygote.state["modules"])
    assert context.run("import IPython; IPython.__version__").text == "'8.39.0'"
    code = (
        "import sys; [name for name, one in list(sys.modules.items()) if 'laceholder' in type(one).__name__]"
    )
    assert context.run(code).text == "[]"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from IPython import embed; embed.__module__", "'IPython.terminal.embed'"),
        ("import IPython; IPython.embed is IPython.terminal.embed.embed", "True"),
        (
            "from IPython.terminal import embed; embed.InteractiveShellEmbed.__name__",
            "'InteractiveShellEmbed'",
        ),
        ("import IPython.terminal.ipapp as one; one.TerminalIPythonApp.__name__", "'TerminalIPythonApp'"),
        ("from IPython.terminal.debugger import TerminalPdb as one; one.__name__", "'TerminalPdb'"),
        ("from IPython.terminal.embed import no_such_name", None),
        ("IPython.terminal.interactiveshell.TerminalInteractiveShell.__name__", "'TerminalInteractiveShell'"),
        ("hasattr(IPython, 'no_such_name'), hasattr(IPython.terminal, 'no_such_name')", "(False, False)"),
        ("from IPython.core.oinspect import pylight; '<span' in pylight('x = 1')", "True"),
        (
            "from IPython.core import ultratb; ultratb.stack_data.LINE_GAP is __import__('stack_data').LINE_GAP",
            "True",
        ),
        ("import cProfile, pydoc, urllib.request; type(cProfile) is type(pydoc) is type(sys)", "True"),
        ("from IPython.core.magics import code; code.urlopen('data:,hello').read()", "b'hello'"),
        (
            "from IPython.core import completer; completer.JEDI_INSTALLED, 'jedi' in sys.modules",
            "(True, False)",
        ),
        (
            "completer.jedi.Interpreter.__name__, __import__('jedi').settings.case_insensitive_completion",
            "('Interpreter', False)",
        ),
    ],
)
def test_it_is_there_at_its_first_use(context, code, expected):
    """As if it had been imported at once."""
    assert context.run("import sys, IPython; from IPython.core import completer").reply["status"] == "ok"
    assert context.run(code).text == expected


def test_magics_that_need_it(context):
    """Profiles, frames with their source, completions by jedi, and descriptions."""
    assert b"function calls" in context.run("%prun sum(range(10))").results[0]["text/plain"]
    context.run("def ratio(x):\n    return 1 / x\n")
    shown = context.run(
        "import sys\ntry:\n    ratio(0)\nexcept ZeroDivisionError:\n"
        "    tb = get_ipython().InteractiveTB\n    tb.set_mode('Verbose')\n    print(tb.text(*sys.exc_info()))"
    ).stdout
    assert "return 1 / x" in shown
    assert "x = 0" in shown
    context.run("%config Completer.use_jedi = True\nnumber_of_parts = 3")
    assert "number_of_parts" in context.complete("number_of")[0]
    assert context.run("completer = get_ipython().Completer; completer.use_jedi").text == "True"
    assert (
        "Twice"
        in context.run('def double(x):\n    """Twice."""\n\n%pdoc double').results[0]["text/plain"].decode()
    )


def test_files_of_the_user_are_no_part_of_a_start(zygote, tmp_path):
    """A module that has the name of a deferred one runs when it is used, in that context, and never before."""
    marks = tmp_path / "marks"

    for name in PLANTED:
        code = f"import os\nwith open({str(marks)!r}, 'a') as file:\n    print(__name__, os.getpid(), file=file)\n"
        (tmp_path / f"{name}.py").write_text(code)

    for _ in range(2):
        one = zygote.start(cwd=str(tmp_path))
        one.run("1 / 0")
        one.complete("impo")
        assert not marks.exists()
        pid = one.run("import os; os.getpid()").text
        # The control.
        one.run("import pstats")
        assert marks.read_text() == f"pstats {pid}\n"
        marks.unlink()
        assert one.close() == 0
