"""Cells are read as IPython takes them: the same Python, and the same commands for a shell."""

import ast

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from fumehood.advice.cells import outside_strings, read_cell

CELLS = [
    "%matplotlib inline\nx = 1",
    "!ls -la\nfiles = !ls *.csv\nfor f in files:\n    !wc -l {f}\n",
    "a, b = !echo it's\nprint(a)",
    "if True:\n    %time sum(range(3))\nelse:\n    !echo 'x'",
    "%timeit -n 10 -r 3 [n for n in range(10)]",
    "df?\ndf.head??\n?print\nx = '?'",
    "text = '''\n!not a command\n%not a magic\n'''\n!echo yes",
    'text = """\n?\n"""\n%pwd',
    "x = [\n    1 % 2,\n]\n%pwd",
    "# it's a comment\n%pwd",
    "x = 5 \\\n  % 3\n%pwd",
    "!echo one \\\n  two\nx = 1",
    ">>> x = 1\n>>> if x:\n...     x = 2\n",
    "In [1]: x = 1\n   ...: y = 2\n   ...: !ls\n",
    "    x = 1\n    !ls\n",
    "\n\n%%time\nx = 1\n!ls",
    "%%bash\necho 'it\nfor",
    "%%capture out\nprint(1)",
    "/print 1\n,print a b\n;print a b",
    "f'{x!r:>10}'\n%pwd",
    "x = %pwd\nz: int = 3",
    "def f():\n    '''It's.'''\n    files = !ls\n    return files\n",
    "%pip install x\n%cd /tmp\n",
]


def commands_of(python: str) -> list[str]:
    """The texts that IPython's Python gives to a shell."""
    return [
        node.args[0].value
        for node in ast.walk(ast.parse(python))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("system", "getoutput")
        and isinstance(node.args[0], ast.Constant)
    ]


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_read_as_ipython_reads_it(cell):
    theirs = TransformerManager().transform_cell(cell)
    ours = read_cell(cell)

    ast.parse(theirs)
    ast.parse(ours.python)
    assert ours.unknown == ""

    if "%%" not in cell and "%pip" not in cell:
        assert [" ".join(text.split()) for text, _ in ours.shell] == [
            " ".join(text.split()) for text in commands_of(theirs)
        ]


@pytest.mark.parametrize(
    "cell", ["x = (", "!ls\ndef", "%%perl\nprint 1", "%%script perl\nprint 1", "%what", "x ! y", "x = !!=\n)"]
)
def test_what_is_not_understood_is_not_taken_as_harmless(cell):
    ours = read_cell(cell)

    try:
        ast.parse(ours.python)
    except SyntaxError:
        return

    assert ours.unknown


def test_lines_stay_where_they_are():
    ours = read_cell("%%time\n!ls\n\nx = 1\n%pip install x\n!a \\\n b\ny = 2\n")
    lines = ours.python.split("\n")

    assert lines[3] == "x = 1"
    assert lines[7] == "y = 2"
    assert [line for _, line in ours.shell] == [2, 5, 6]
    assert ours.installs == [5]


def test_strings_and_comments_are_blanked():
    assert outside_strings("a = 'b' # c\nd = '''e\nf''' + g") == "a =        \nd =     \n     + g"
