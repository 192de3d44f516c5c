"""`%%fumehood` in a real IPython: cells run in a sandbox, variables go in and come out, nothing of it runs here."""

from __future__ import annotations

import subprocess
import sys

from fumehood import Sandbox

# Runs cells as a kernel does, and prints what each leaves.
PROGRAM = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "fumehood")

def run(cell):
    shell.run_cell(cell)

"""


def played(*cells: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM + "\n".join(f"run({cell!r})" for cell in cells) + "\nrun('%fumehood_reset')"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )


def test_cells_share_a_sandbox():
    """What a cell defines is there for the next; it is not here, and this process is not there."""
    done = played(
        "%%fumehood\nx = 6 * 7; print('inside', x)",
        "%%fumehood\nimport os; x, os.getpid()",
        "'x' in globals()",
    )
    assert "inside 42" in done.stdout
    assert "(42, " in done.stdout
    assert "False" in done.stdout
    assert done.stderr == ""


def test_variables_go_in_and_come_out():
    """In by pickle, which only the sandbox reads; out as JSON and as tables."""
    done = played(
        "import pandas as pd; frame = pd.DataFrame({'a': [1, 2]}); word = 'ada'",
        "%%fumehood -i frame,word -o total,wide,names\n"
        "total = int(frame.a.sum()); wide = frame.assign(b=frame.a * 2); names = {word: [1, None]}",
        "print(total, type(wide).__name__, wide.b.tolist(), names)",
    )
    assert "3 DataFrame [2, 4] {'ada': [1, None]}" in done.stdout


def test_a_hostile_variable_stays_inside():
    """An object whose pickle would run code here comes out as an error; its text is spelled out."""
    done = played(
        "%%fumehood -o bad\n"
        "class Bad:\n"
        "    def __reduce__(self): return print, ('ran on' + ' the host',)\n"
        "    def __repr__(self): return '\\x1b[2J'\n"
        "bad = Bad()",
        "print('bad' in globals())",
    )
    assert "ran on the host" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "--out='bad' is refused" in done.stderr
    assert "False" in done.stdout


def test_errors_are_those_of_the_cell():
    """Code that fails shows its own frames; an argument that is refused shows its hint, and no frames of ours."""
    done = played(
        "%%fumehood\n1 / 0",
        "%%fumehood -i nothing\n1",
        "%%fumehood -t 0.2\nwhile True: pass",
    )
    assert "ZeroDivisionError" in done.stderr
    assert "--in='nothing' is refused" in done.stderr
    assert "ipython_magic.py" not in done.stdout + done.stderr
    assert "TimeLimitExceeded" in done.stderr or "KeyboardInterrupt" in done.stderr


def test_pictures_and_shells():
    """Figures are shown as pictures; bash runs too; a fresh sandbox knows nothing of the one before."""
    done = played(
        "%%fumehood\nimport matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show(); y = 1",
        "%%fumehood -l bash\necho from $0",
        "%%fumehood --new\n'y' in globals()",
        "print(type(get_ipython().run_line_magic('fumehood_sandbox', '')).__name__)",
    )
    assert "Result(" in done.stdout or "Figure" in done.stdout
    assert "from " in done.stdout
    assert "False" in done.stdout
    assert Sandbox.__name__ in done.stdout
