"""A scan never raises and never hangs, whatever it is given; what is asked to block fails closed."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fumehood import scan, wrap_output

_PIECES = st.sampled_from(
    [
        "import os\n",
        "os",
        ".",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        '"',
        "'''",
        '"""',
        "f'",
        "\\",
        "\n",
        "    ",
        "!",
        "%",
        "%%bash\n",
        "%%time\n",
        "?",
        ";",
        ",",
        "=",
        "+",
        "*",
        "**",
        "exec",
        "eval",
        "getattr",
        "__import__",
        "base64.b64decode(",
        "lambda:",
        "x := ",
        "def f():\n",
        "while True:\n",
        "class A:\n",
        "await ",
        "yield ",
        "match x:\n case ",
        "\u202e",
        "\U000e0041",
        "\ud800",
        "\x00",
        "\r",
        "\x0c",
        "9" * 50,
        "1e999",
        "'sys' + 'tem'",
        "if x:\n",
        "import *",
        "from os import *\n",
        "%run ",
        "x = !",
        "# -*- coding: ",
        "a" * 200,
        "\\x41" * 20,
        "QUJD" * 60,
        ">>> ",
        "In [1]: ",
    ]
)


@given(st.one_of(st.text(st.characters(), max_size=300), st.lists(_PIECES, max_size=40).map("".join)))
def test_any_text_gets_a_verdict(code):
    findings = scan(code, block="danger")

    assert isinstance(findings.blocks, bool)
    assert findings.blocks == bool(findings.reason)

    for finding in findings:
        assert finding.line >= 1
        assert finding.column >= 1
        assert finding.snippet.isprintable()

    if not findings.blocks and not any(sign in code for sign in "!%?>,;/") and "In [" not in code:
        # Nothing was passed over: what is let through is Python, as it is or without its indentation.
        lines = code.splitlines()
        ast.parse(code if not code[:1].isspace() else "if 1:\n x\n" if lines else "")


@given(st.text(st.characters(), max_size=400), st.none() | st.integers(100, 300))
def test_any_output_is_wrapped(text, max_characters):
    wrapped = wrap_output(text, max_characters=max_characters)
    head, tail = wrapped.text.partition("\n")[0], wrapped.text.rpartition("\n")[2]

    assert head == f"<{wrapped.delimiter}>"
    assert tail == f"</{wrapped.delimiter}>"
    assert wrapped.text.count(wrapped.delimiter) == 2
    wrapped.text.encode()


@pytest.mark.parametrize(
    "code",
    [
        "x = " + "[" * 90 + "1" + "]" * 90,
        "a = b + c\n" * 20_000,
        "".join(f"a{n} = a{n + 1} + a{n + 1}\n" for n in range(2_000)) + "import os\ngetattr(os, a0)",
        "a = 'x'\n" + "a += a\n" * 500 + "exec(a)",
        "exec(" * 90 + "x" + ")" * 90,
        "x = '" + "A" * 900_000 + "'",
        "x = '" + "\\x41" * 200_000 + "'",
        "# " + "ghp_" * 200_000,
        "# " + "curl " * 200_000,
        "!" + "curl " * 100_000,
        "!" + "nc " * 100_000,
        "!" + "rm -" * 100_000,
        "!" + ":" * 300_000,
        "!" + "eval $(" * 50_000,
        "!ls\n" * 50_000,
        "?\n" * 100_000,
        "!x\n'" + "\\" * 500_000,
        "!x\n" + "'''a" * 100_000,
        "\u200b" * 500_000,
        "x = '" + "❤\ufe0f\u200d" * 200_000 + "'",
        "# " + "\u043ea " * 200_000,
        "\u043eа = 1\n" * 30_000,
        "'/etc/../" + "../" * 200_000 + "'",
        "open('" + "../" * 200_000 + "')",
        "a://" + "a:" * 300_000,
        "-----BEGIN " + "A" * 500_000,
        "(a" + ", a" * 80_000 + ")",
        "a" + " if a else a" * 3_000,
        "f'" + "{a}" * 10_000 + "'",
        "import os\n" + "os" + ".path" * 900,
        "é;" + "os.system();" * 10_000 + "import os",
        "a = '" + "x" * 60_000 + "'.join([" + "'y'," * 1_900 + "])",
        "".join(f"a{n} = '{'x' * 60_000}' + '{n}'\nexec(a{n})\n" for n in range(15)),
        "a = "
        + repr("b = " + repr("c = 'x = 1;' * 9" * 900) + "\n" + "exec(b)\n" * 19)
        + "\n"
        + "exec(a)\n" * 19,
        "''.join([" + "'a'," * 60_000 + "])",
        "'a'.replace('a', 'b' * 10**9).replace('', 'c' * 60000)",
        "''.replace('', 'c').join(['a'] * 10**9)",
        "import zlib\nexec(zlib.decompress(b'" + "\\x00" * 10_000 + "'))",
    ],
    ids=lambda code: f"{code[:14]!r}{len(code)}",
)
def test_large_and_twisted_code_ends(code):
    """Each of these would take minutes in a scan that looks twice at what it has seen."""
    scan(code, block="danger")
