"""Cells: values, displays, counts and errors, with the semantics of Jupyter."""

from __future__ import annotations

import json

import pytest
from guest_driver import Zygote


def test_the_last_expression_is_the_result(context):
    """The value of the last expression is shown with the number of its cell; an assignment shows nothing."""
    context.run("x = 20")
    outcome = context.run("y = 1\nx * 2 + y")
    assert outcome.text == "41"
    assert outcome.of("execute_result")[0][0]["execution_count"] == 2
    assert context.run("x = 1").kinds == []


@pytest.mark.parametrize(
    "code", ["5;", "5; # why", "x = 5", "None", "", "   \n", "# only a comment", "for _ in range(2): 5"]
)
def test_what_shows_nothing(context, code):
    """A semicolon, a statement, None and an empty cell show nothing."""
    assert context.run(code).kinds == []


def test_a_semicolon_inside_of_a_string_shows_the_value(context):
    """Only a final semicolon hides the value."""
    assert context.run("'a;'").text == "'a;'"


def test_execution_count_counts_what_is_stored(context):
    """Cells count, silent and unstored ones do not."""
    assert context.run("1").reply["execution_count"] == 1
    assert context.run("2").reply["execution_count"] == 2
    assert context.run("3", store_history=False).reply["execution_count"] == 2
    assert context.run("4", silent=True).kinds == []
    assert context.run("5").reply["execution_count"] == 3
    assert context.run("1/0").reply["execution_count"] == 4


def test_the_error_of_a_thread_shows_the_users_frames_alone(context):
    """Neither those that start a thread nor those of the guest, such as of `open` and `input`; `sys.exit()` is none."""
    outcome = context.run(
        """
import sys, threading
def missing():
    open("/none")
def ask():
    input()
for work in (missing, ask, sys.exit, lambda given: 1):
    thread = threading.Thread(target=work, name=work.__name__)
    thread.start()
    thread.join()
"""
    )
    text = outcome.stderr
    assert "Exception in thread missing:\n" in text
    assert "Cell In[1], line 3, in missing\n" in text
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/none'\n" in text
    assert "Exception in thread ask:\n" in text
    assert "EOFError: " in text
    assert "Exception in thread <lambda>:\nTypeError: " in text
    assert not any(one in text for one in ("threading.py", "fumehood_guest", "IPython", "SystemExit"))


def test_history_variables(context):
    """`_`, `__`, `Out`, `In` and `_i` work as in IPython."""
    context.run("40")
    context.run("_ + 2")
    assert context.run("[_, __, Out[1], In[1], _i]").text == "[42, 40, 40, '40', '_ + 2']"


def test_display_of_every_format(context):
    """The representation methods of an object all travel, pictures as raw bytes and JSON as JSON text."""
    outcome = context.run(
        """
class Rich:
    def _repr_html_(self): return '<b>ä</b>'
    def _repr_markdown_(self): return '*m*'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_jpeg_(self): return b'\\xff\\xd8'
    def _repr_pdf_(self): return b'%PDF'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'a': [1, float('nan')]}
    def _repr_javascript_(self): return 'alert(1)'
    def __repr__(self): return 'plain'
Rich()
"""
    )
    (parts,) = outcome.results
    assert parts == {
        "text/plain": b"plain",
        "text/html": "<b>ä</b>".encode(),
        "text/markdown": b"*m*",
        "image/svg+xml": b"<svg/>",
        "image/png": b"\x89PNG",
        "image/jpeg": b"\xff\xd8",
        "application/pdf": b"%PDF",
        "text/latex": b"$x$",
        "application/json": b'{"a":[1,null]}',
        "application/javascript": b"alert(1)",
    }


def test_mime_bundles_of_plotting_libraries(context):
    """A bundle with vendor types, as plotly and altair make them, travels as JSON."""
    outcome = context.run(
        "class Plot:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'application/vnd.plotly.v1+json': {'data': [1]}, "
        "'application/vnd.vegalite.v5+json': {'mark': 'bar'},"
        " 'application/geo+json': {'type': 'Point'}}, {'application/geo+json': {'expanded': True}}\n"
        "display(Plot())"
    )
    ((header, _),) = outcome.of("display_data")
    (parts,) = outcome.results
    assert json.loads(parts["application/vnd.plotly.v1+json"]) == {"data": [1]}
    assert json.loads(parts["application/vnd.vegalite.v5+json"]) == {"mark": "bar"}
    assert header["metadata"] == {"application/geo+json": {"expanded": True}}


def test_formatters_of_the_user(context):
    """A formatter that a cell registers is used, for plain types too; so is a transformer of its syntax."""
    assert context.run("[1, 'x']").results == [{"text/plain": b"[1, 'x']"}]
    context.run(
        "formatters = get_ipython().display_formatter.formatters\n"
        "formatters['text/html'].for_type(int, lambda n: f'<i>{n}</i>')"
    )
    assert context.run("5").results == [{"text/plain": b"5", "text/html": b"<i>5</i>"}]
    context.run(
        "get_ipython().input_transformer_manager.cleanup_transforms"
        ".append(lambda lines: [line.replace('ZWEI', '2') for line in lines])"
    )
    assert context.run("'ZWEI'").text == "'2'"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("    x = 3\n    x", "3"),
        ("\n\nx = 4\nx", "4"),
        (">>> x = 5\n>>> x", "5"),
        ("In [1]: 6", "6"),
        ('x = """\n%time\n!ls\n"""\nlen(x)', "11"),
        ("y = 5; y  # what?", "5"),
        ("a = %pwd\ntype(a).__name__", "'str'"),
        ("if True:\n    %time z = 7\nz", "7"),
    ],
)
def test_syntax_of_ipython(context, code, value):
    """Indented cells, prompts, magics among statements and look-alikes mean what they mean in IPython."""
    assert context.run(code).text == value


def test_base64_pictures_become_bytes(context):
    """A raw bundle with base64 text, the custom of Jupyter, travels as bytes."""
    (parts,) = context.run("display({'image/png': 'iVBORw=='}, raw=True)").results
    assert parts == {"image/png": b"\x89PNG"}


def test_display_and_update(context):
    """A display with an id can be updated in a later cell."""
    first = context.run("h = display(1, display_id=True)")
    update = context.run("h.update(2)")
    ((shown, _),) = first.of("display_data")
    ((updated, _),) = update.of("update_display_data")
    assert shown["display_id"] == updated["display_id"]
    assert update.results == [{"text/plain": b"2"}]


def test_clear_output(context):
    """clear_output travels in order, with its wait flag."""
    outcome = context.run(
        "from IPython.display import clear_output\n"
        "print(1); clear_output(wait=True); print(2); clear_output()"
    )
    assert outcome.kinds == ["stream", "clear_output", "stream", "clear_output"]
    assert [header["wait"] for header, _ in outcome.of("clear_output")] == [True, False]


def test_streams_and_displays_keep_their_order(context):
    """Text, displays and the other stream come in the order in which they were made."""
    outcome = context.run(
        "import sys\nprint('a', end='')\nsys.stderr.write('b')\ndisplay(1)\nprint('c', end='')\n2"
    )
    seen = [
        payload.decode() if header["type"] == "stream" else header["type"]
        for header, payload in outcome.messages
    ]
    assert seen == ["a", "b", "display_data", "c", "execute_result"]
    times = [header["at"] for header, _ in outcome.messages]
    assert times == sorted(times)


def test_magics(context):
    """Line and cell magics work, capture too."""
    assert "loop" in context.run("%timeit -n1 -r1 1").stdout
    assert context.run("%%capture held\nprint('hidden')").stdout == ""
    assert context.run("held.stdout").text == "'hidden\\n'"
    assert context.run("%matplotlib inline").error is None
    assert context.run("%%time\nx = 5").error is None
    assert context.run("x").text == "5"
    assert context.run("%who").stdout.split() == ["held", "x"]


def test_writing_and_running_a_file(context):
    """%%writefile and %run work; an error in the script fails the cell."""
    context.run("%%writefile /tmp/fumehood_script.py\nz = 7\nprint('from script')")
    assert context.run("%run /tmp/fumehood_script.py").stdout == "from script\n"
    assert context.run("z").text == "7"


def test_help_is_displayed(context):
    """`obj?` shows its text as a display, not in a pager."""
    assert b"Docstring" in context.run("len?").results[0]["text/plain"]


def test_an_error_has_name_value_and_the_lines_of_the_cell(context):
    """The traceback is plain text with the cell's lines and without frames of IPython or ours."""
    outcome = context.run("def half(x):\n    return x / 0\n\nhalf(3)")
    assert outcome.error == ("ZeroDivisionError", "division by zero")
    assert outcome.reply["status"] == "error"
    text = outcome.traceback
    assert "Cell In[1], line 4\n" in text
    assert "----> 4 half(3)" in text
    assert "Cell In[1], line 2, in half" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "\x1b" not in text
    assert "IPython" not in text
    assert "fumehood" not in text


def test_state_survives_an_error(context):
    """What ran before the error stays."""
    context.run("a = 1\nraise ValueError('x')\na = 2")
    assert context.run("a").text == "1"


def test_library_frames_are_shown(context):
    """A library's frame has file, line, function and the line of code."""
    text = context.run("import json\njson.loads('{')").traceback
    assert "json/decoder.py:" in text
    assert "in raw_decode" in text


def test_chained_exceptions(context):
    """Cause and context are shown, causes first."""
    text = context.run(
        "try:\n    {}['k']\nexcept KeyError as error:\n    raise ValueError('bad') from error"
    ).traceback
    assert text.index("KeyError: 'k'") < text.index("direct cause") < text.index("ValueError: bad")
    text = context.run("try:\n    {}['k']\nexcept KeyError:\n    int('x')").traceback
    assert "During handling of the above exception" in text
    assert (
        "During"
        not in context.run("try:\n    {}['k']\nexcept KeyError:\n    raise ValueError from None").traceback
    )


def test_syntax_errors(context):
    """A syntax error shows the line and the place."""
    outcome = context.run("x = 1\nif x\n    pass")
    assert outcome.error[0] == "SyntaxError"
    assert "Cell In[1], line 2" in outcome.traceback
    assert "^" in outcome.traceback
    assert context.run("  x = 1\n y = 2").error[0] == "IndentationError"
    assert context.run("return 5").error[0] == "SyntaxError"


@pytest.mark.parametrize(
    ("code", "value"),
    [("exit()", ""), ("import sys; sys.exit(3)", "3"), ("quit", ""), ("raise SystemExit('no')", "no")],
)
def test_system_exit_is_an_error_and_not_the_end(context, code, value):
    """Leaving the interpreter ends the cell; the context lives on."""
    outcome = context.run("kept = 1\n" + code if code != "quit" else code)
    assert outcome.error == ("SystemExit", value)
    assert outcome.stderr == ""
    assert context.run("1").text == "1"


def test_a_wrong_magic_is_an_error(context):
    """UsageError of IPython fails the cell."""
    assert context.run("%nosuchmagic").error[0] == "UsageError"


def test_a_repr_that_raises_is_an_error(context):
    """A broken repr at the end of a cell is the cell's error; inside display() it is text on stderr."""
    context.run("class Bad:\n    def __repr__(self): raise RuntimeError('broken repr')")
    assert context.run("Bad()").error == ("RuntimeError", "broken repr")
    outcome = context.run("display(Bad())\n'after'")
    assert outcome.text == "'after'"
    assert "broken repr" in outcome.stderr
    assert context.run("1").text == "1"


def test_an_exception_whose_str_raises(context):
    """A broken __str__ of an exception does no harm."""
    outcome = context.run("class E(Exception):\n    def __str__(self): 1/0\nraise E")
    assert outcome.error[0] == "E"
    assert "ZeroDivisionError" in outcome.error[1]


def test_deep_recursion_gives_a_short_traceback(context):
    """Thousands of frames are shown as a few."""
    outcome = context.run("def f(n):\n    return f(n + 1)\nf(0)")
    assert outcome.error[0] == "RecursionError"
    assert "frames left out" in outcome.traceback
    assert len(outcome.traceback) < 20_000


def test_a_huge_message_is_bounded(context):
    """An exception with a message of 50 MB is reported, shortened."""
    outcome = context.run("raise ValueError('x' * 50_000_000)")
    assert outcome.error[0] == "ValueError"
    assert len(outcome.error[1]) < 64 * 1024
    assert len(outcome.traceback) < 1 << 20


def test_a_message_of_many_lines_is_bounded(context):
    """A message of a million lines, of the widest characters, or of those that are escaped, fits the wire."""
    for message in (r"'x\n'", r"'\U0001f600'", r"'\x01'", r"'\ud800'"):
        assert context.run(f"raise ValueError({message} * 1_000_000)").error[0] == "ValueError"


def test_a_long_chain_of_escaped_messages_is_bounded(context):
    """All characters together have more bytes than the traceback may have."""
    outcome = context.run(
        "error = None\nfor n in range(20):\n    later = ValueError('\\x01' * 9_000)\n"
        "    later.__cause__ = error; error = later\nraise error"
    )
    assert outcome.error[0] == "ValueError"
    assert "characters left out" in outcome.traceback
    assert len(outcome.traceback) > 20_000


def test_a_traceback_keeps_its_characters(context):
    """What has no encoding comes as it is, as everything else."""
    outcome = context.run(r"raise ValueError('\u20ac\U0001f600\ud800\x01')")
    assert outcome.traceback.endswith("ValueError: \u20ac\U0001f600\ud800\x01")


def test_circular_causes_end(context):
    """A chain of exceptions that is a circle is shown once."""
    outcome = context.run(
        "a = ValueError('a'); b = ValueError('b')\na.__cause__ = b; b.__cause__ = a\nraise a"
    )
    assert outcome.error == ("ValueError", "a")


@pytest.mark.skipif("sys.version_info < (3, 11)")
def test_exception_groups_and_notes(context):
    """The members of a group and the notes of an exception are shown."""
    text = context.run(
        "e = ValueError('inner'); e.add_note('a note')\nraise ExceptionGroup('many', [e, TypeError('other')])"
    ).traceback
    assert "ValueError: inner" in text
    assert "a note" in text
    assert "TypeError: other" in text


def test_an_error_shown_by_hand_does_not_fail_the_cell(context):
    """get_ipython().showtraceback() in an except block writes to stderr."""
    outcome = context.run("try:\n    1/0\nexcept Exception:\n    get_ipython().showtraceback()\n'on'")
    assert outcome.error is None
    assert "ZeroDivisionError" in outcome.stderr
    assert outcome.text == "'on'"


def test_envs_hold_for_one_execution(context):
    """Variables of a request are there during it, also for children, and undone after it."""
    context.run("import os, subprocess\nos.environ['A'] = 'old'")
    code = "[os.environ['A'], os.environ['B'], subprocess.check_output('echo $B', shell=True, text=True)]"
    assert context.run(code, envs={"A": "new", "B": "two"}).text == "['new', 'two', 'two\\n']"
    assert context.run("[os.environ['A'], os.environ.get('B')]").text == "['old', None]"
    context.run("1/0", envs={"A": "new"})
    assert context.run("os.environ['A']").text == "'old'"


def test_results_over_the_limit_are_named(context):
    """A format that is too large is left out and listed; the small ones travel."""
    outcome = context.run(
        "display({'text/plain': 'small', 'text/html': 'x' * 5000}, raw=True)\n'y' * 5000", result_bytes=1000
    )
    shown, value = outcome.results
    assert shown == {"text/plain": b"small"}
    assert b"5,002 bytes" in value["text/plain"]
    assert [header["truncated"] for header, _ in outcome.messages] == [
        [["text/html", 5000]],
        [["text/plain", 5002]],
    ]


def test_results_over_the_count_are_counted(context):
    """More results than allowed are counted and not sent."""
    outcome = context.run("for n in range(10): display(n)", result_count=3)
    assert len(outcome.results) == 3
    assert outcome.reply["dropped"]["results"] == 7


def test_usage(context):
    """The reply tells CPU seconds, those of children included, and peak memory."""
    reply = context.run(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'sum(range(3_000_000))'])"
    ).reply
    assert reply["user_cpu_seconds"] > 0.02
    assert reply["peak_memory_bytes"] > 5_000_000
    assert context.run("1").reply["user_cpu_seconds"] < 0.02


def test_values_that_cannot_be_encoded(context):
    """Lone surrogates in text, results and errors do no harm."""
    outcome = context.run("print('a\\ud800b')\n'\\udfff'")
    assert outcome.stdout == "a\\ud800b\n"
    assert context.run("raise ValueError('\\ud800')").error[0] == "ValueError"


def test_main_module(context):
    """Cells run in `__main__`, so that what they define can be pickled."""
    context.run("import pickle, __main__\nclass C:\n    pass\ndef f(): return 5")
    assert context.run(
        "[__name__, type(pickle.loads(pickle.dumps(C()))) is C, "
        "pickle.loads(pickle.dumps(f))(), __main__.f is f]"
    ).text == ("['__main__', True, 5, True]")


def test_the_working_directory_is_importable(bare_zygote: Zygote, tmp_path):
    """A module in the working directory can be imported, also after a change of directory."""
    (tmp_path / "beside.py").write_text("value = 11")
    context = bare_zygote.start(cwd=str(tmp_path), envs={"GIVEN": "yes"})
    assert context.run("import beside, os\nbeside.value, os.environ['GIVEN']").text == "(11, 'yes')"
    assert context.run("os.getcwd()").text == repr(str(tmp_path))
    assert context.close() == 0


def test_nothing_of_the_rehearsal_is_left(bare_zygote: Zygote):
    """The prepared shell has one thread, no open file of its own, and a namespace without leftovers."""
    assert bare_zygote.state["threads"] == 1
    assert {"f", "sys", "asyncio"}.isdisjoint(bare_zygote.state["names"])
    assert "matplotlib" not in bare_zygote.state["modules"]
    context = bare_zygote.start()
    assert (
        context.run("[_i, _ih, Out, In]").text
        == "['', ['', '[_i, _ih, Out, In]'], {}, ['', '[_i, _ih, Out, In]']]"
    )
    assert context.close() == 0


def test_open_descriptors(context):
    """A context has standard descriptors, the channel, the loop of asyncio, and nothing of its parents."""
    context.run("import os")
    text = context.run(
        "found = []\n"
        "for fd in os.listdir('/proc/self/fd'):\n"
        "    try: found.append((int(fd), os.readlink(f'/proc/self/fd/{fd}').split(':')[0]))\n"
        "    except FileNotFoundError: pass\n"
        "found"
    ).text
    names = dict(eval(text))
    assert [names[fd] for fd in range(4)] == ["/dev/null", "pipe", "pipe", "socket"]
    assert set(names.values()) <= {"/dev/null", "pipe", "socket", "anon_inode"}
    assert len(names) <= 8


def test_shutdown_request_ends_the_context(bare_zygote: Zygote):
    """The host may ask a context to end."""
    from fumehood_wire.frames import encode

    context = bare_zygote.start()
    context._sock.sendall(encode({"type": "shutdown_request"}))
    assert context.close() == 0
