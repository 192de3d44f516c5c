"""Code by E2B's code interpreter: results in its field forms, contexts, errors, and what ends a run."""

from __future__ import annotations

import base64
import json
import threading

import httpx
import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter.charts import (
    BarChart,
    BoxAndWhiskerChart,
    Chart,
    LineChart,
    PieChart,
    ScaleType,
    ScatterChart,
    SuperChart,
)


def test_values_output_and_errors(shared):
    """The forms in which E2B's users know them."""
    heard = []
    execution = shared.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\n'quoted'",
        on_stdout=lambda message: heard.append(("out", message.line, message.error)),
        on_stderr=lambda message: heard.append(("err", message.line, message.error)),
        on_result=lambda result: heard.append(("result", result.text, result.is_main_result)),
    )

    assert execution.text == "quoted"
    assert execution.logs.stdout == ["out\n"]
    assert execution.logs.stderr == ["err\n"]
    assert sorted(heard) == [("err", "err\n", True), ("out", "out\n", False), ("result", "quoted", True)]
    before = execution.execution_count
    assert shared.run_code("'it\\'s'").execution_count == before + 1

    failed = shared.run_code("def f():\n    return 1 / 0\nf()")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "return 1 / 0" in failed.error.traceback
    assert failed.text is None
    assert shared.run_code("  x = 1\n  x").text == "1"
    assert shared.run_code("!echo from a shell").logs.stdout == ["from a shell\n"]


def test_results_have_e2bs_formats(shared):
    """Each type under its name, bytes as base64, data as columns."""
    code = """
from IPython.display import *
display(HTML('<b>x</b>'), Markdown('**x**'), SVG('<svg xmlns="http://www.w3.org/2000/svg"/>'), Latex('$x$'))
display(JSON({'a': [1, None]}), Javascript('1'))
parts = {'image/png': b'\\x89PNG', 'image/jpeg': b'\\xff\\xd8', 'application/pdf': b'%PDF', 'my/type': 'mine'}
display(parts, raw=True)
import pandas as pd
pd.DataFrame({'n': [1, 2], 'x': [0.5, float('nan')], 's': ['a', 'b']})
"""
    results = shared.run_code(code).results
    html, markdown, svg, latex, data, javascript, binary, frame = results

    assert (html.html, markdown.markdown, latex.latex) == ("<b>x</b>", "**x**", "$x$")
    assert svg.svg.startswith("<svg")
    assert data.json == {"a": [1, None]}
    assert javascript.javascript == "1"
    assert [base64.b64decode(part) for part in (binary.png, binary.jpeg, binary.pdf)] == [
        b"\x89PNG",
        b"\xff\xd8",
        b"%PDF",
    ]
    assert binary.extra == {"my/type": "mine"}
    assert [result.is_main_result for result in results] == [False] * 7 + [True]
    assert frame.data == {"n": [1, 2], "x": [0.5, None], "s": ["a", "b"]}
    assert "<table" in frame.html


def _chart(sandbox, drawing):
    code = f"import matplotlib.pyplot as plt\n{drawing}\nplt.show()"
    execution = sandbox.run_code(code)
    assert execution.error is None, execution.error
    (result,) = execution.results
    assert base64.b64decode(result.png).startswith(b"\x89PNG")
    return result.chart


def test_charts_of_every_kind_are_data(shared):
    """What the SDK's own classes read."""
    line = _chart(shared, "plt.plot([1, 2], [3, 4], label='a'); plt.xlabel('X (s)'); plt.title('T')")
    assert isinstance(line, LineChart)
    assert (line.title, line.x_label, line.x_unit, line.x_scale) == ("T", "X (s)", "s", ScaleType.LINEAR)
    assert [(item.label, item.points) for item in line.elements] == [("a", [(1, 3), (2, 4)])]

    scatter = _chart(shared, "plt.figure(); plt.scatter([1], [2])")
    assert isinstance(scatter, ScatterChart)
    assert scatter.elements[0].points == [(1, 2)]

    bar = _chart(shared, "plt.figure(); plt.bar(['u', 'v'], [5, 6])")
    assert isinstance(bar, BarChart)
    assert [(item.label, float(item.value)) for item in bar.elements] == [("u", 5), ("v", 6)]

    pie = _chart(shared, "plt.figure(); plt.pie([1, 3], labels=['p', 'q'])")
    assert isinstance(pie, PieChart)
    assert [(item.label, round(item.angle)) for item in pie.elements] == [("p", 90), ("q", 270)]

    box = _chart(shared, "plt.figure(); plt.boxplot([1, 2, 3, 4, 5])")
    assert isinstance(box, BoxAndWhiskerChart)
    assert box.elements[0].median == 3

    both = _chart(shared, "f, (a, b) = plt.subplots(2); a.plot([1], [1]); b.bar(['x'], [1])")
    assert isinstance(both, SuperChart)
    assert [type(item) for item in both.elements] == [LineChart, BarChart]

    unknown = _chart(shared, "plt.figure(); plt.imshow([[1, 2], [3, 4]])")
    assert type(unknown) is Chart
    assert unknown.elements == []


def test_contexts_are_apart(shared):
    """Made, listed, started anew and removed; each has its own names and directory."""
    context = shared.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    shared.run_code("apart = 1", context=context)
    assert shared.run_code("import os; os.getcwd(), apart", context=context).text == "('/tmp', 1)"
    assert shared.run_code("apart").error.name == "NameError"
    assert context.id in [item.id for item in shared.list_code_contexts()]

    shared.restart_code_context(context)
    assert shared.run_code("apart", context=context).error.name == "NameError"
    shared.remove_code_context(context)

    for call in (
        lambda: shared.run_code("1", context=context),
        lambda: shared.restart_code_context(context),
        lambda: shared.remove_code_context(context.id),
    ):
        with pytest.raises(NotFoundException, match=context.id):
            call()


def test_bash_keeps_its_state_and_other_languages_are_refused(shared):
    """Both languages have a default context; the rest say that they do not run here."""
    shared.run_code("cd /tmp; WORD=kept", language="bash")
    assert shared.run_code("echo $WORD $PWD", language="bash").logs.stdout == ["kept /tmp\n"]
    context = shared.create_code_context(language="bash")
    assert context.language == "bash"
    assert shared.run_code("echo [$WORD]", context=context).logs.stdout == ["[]\n"]
    assert shared.run_code("print(1)", language="python").logs.stdout == ["1\n"]

    for language in ("abap", "deno"):
        with pytest.raises(SandboxException, match=f"400.*{language}"):
            shared.run_code("1", language=language)

        with pytest.raises(SandboxException, match=f"400.*{language}"):
            shared.create_code_context(language=language)


def test_the_environment_of_one_run_is_undone(shared):
    """env_vars are there once, the sandbox's name always."""
    code = "import os; os.environ.get('ONCE'), os.environ['E2B_SANDBOX_ID']"
    assert shared.run_code(code, envs={"ONCE": "yes"}).text == f"('yes', '{shared.sandbox_id}')"
    assert shared.run_code(code).text == f"(None, '{shared.sandbox_id}')"


def test_after_a_timeout_the_context_is_free_again(shared):
    """The client's end interrupts the code; what it had made is still there."""
    shared.run_code("kept = 5")

    with pytest.raises(TimeoutException):
        shared.run_code("import time\nwhile True: time.sleep(0.01)", timeout=1)

    assert shared.run_code("kept").text == "5"


def test_a_client_that_goes_while_it_waits_runs_nothing(shared, http, headers_of, eventually):
    """Code in the queue is taken out of it."""
    shared.files.remove("go")
    headers = headers_of(shared, 49999)
    first = threading.Thread(
        target=shared.run_code,
        args=("import os, time\nopen('started', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)",),
    )
    first.start()
    eventually(lambda: shared.files.exists("started"))

    with pytest.raises(httpx.ReadTimeout):
        http.post(
            "/execute",
            json={"code": "open('never', 'w')"},
            headers=headers,
            timeout=httpx.Timeout(60, read=0.5),
        )

    shared.files.write("go", "")
    first.join(20)
    assert shared.run_code("os.path.exists('never')").text == "False"


def test_a_sandbox_that_is_killed_ends_its_code(sandbox):
    """At once, and the error says that it is gone."""
    heard, begun = [], threading.Event()

    def run():
        try:
            sandbox.run_code(
                "print('begun', flush=True)\nwhile True: pass", on_stdout=lambda _: begun.set(), timeout=0
            )
        except Exception as error:
            heard.append(error)

    running = threading.Thread(target=run)
    running.start()
    assert begun.wait(20)
    sandbox.kill()
    running.join(20)

    assert len(heard) == 1
    assert isinstance(heard[0], TimeoutException), heard

    with pytest.raises(TimeoutException, match="was not found"):
        sandbox.run_code("1")

    with pytest.raises(TimeoutException, match="was not found"):
        sandbox.list_code_contexts()


def test_lost_state_is_said(shared):
    """A context that dies is an error of the execution, not of the sandbox."""
    execution = shared.run_code("import os; os._exit(3)")
    assert execution.error.name == "ContextDied"
    assert shared.run_code("1").text == "1"


def test_the_lines_of_a_run(shared, http, headers_of):
    """What the SDKs read: JSON in every line, no empty ones, the end at the end."""
    headers = headers_of(shared, 49999)
    answer = http.post("/execute", json={"code": "print(1)\n2"}, headers=headers)
    assert answer.text.endswith("\n")
    lines = [json.loads(line) for line in answer.text.removesuffix("\n").split("\n")]
    assert [line["type"] for line in lines] == [
        "stdout",
        "result",
        "number_of_executions",
        "end_of_execution",
    ]
    assert http.get("/health", headers=headers).text == "OK"

    for body, status in (
        ({"code": "1", "context_id": "default", "language": "python"}, 400),
        ({"code": "1", "context_id": "nobody"}, 404),
        ({"code": 1}, 400),
        ({"code": "1", "env_vars": {"A": 1}}, 400),
        ({"code": "1", "env_vars": {"A=": "1"}}, 400),
        ({"code": "x" * (9 << 20)}, 400),
    ):
        refused = http.post("/execute", json=body, headers=headers)
        assert refused.status_code == status, body
        assert refused.json()["code"] == status

    assert http.post("/contexts/a/b/c", headers=headers).status_code == 404


INSIDE = """
import errno, socket
found = []
for port in (49983, 49999, 8000):
    with socket.socket() as line:
        found.append(errno.errorcode.get(line.connect_ex(("127.0.0.1", port)), "open"))
found
"""


def test_the_interpreter_is_not_reached_from_inside(shared):
    """A program cannot run code in the contexts of its own sandbox; the control is a server of its own."""
    code = "import socket\nlistener = socket.create_server(('127.0.0.1', 8000))"
    assert shared.run_code(code).error is None
    assert shared.run_code(INSIDE).text == "['ECONNREFUSED', 'ECONNREFUSED', 'open']"
    shared.run_code("listener.close()")
