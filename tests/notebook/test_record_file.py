"""Records as notebooks, scripts and reports: of ordinary code, and of code that wants to break what shows it."""

from __future__ import annotations

import ast
import html.parser
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import nbformat
import pytest

from fumehood import Execution, ExecutionError, LogEntry, Logs, Record, RecordedCell, Result, Sandbox, Usage
from fumehood.notebook.ipynb import notebook_of, notebook_text
from fumehood.notebook.record_file import script_of, write_whole
from fumehood.notebook.report import report_of

EVIL = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\x00 & \"'"
PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 20


def executed(**values) -> Execution:
    return Execution(id="e", context_id="default", started_at=datetime(2026, 11, 21, tzinfo=UTC), **values)


def record_of(*cells: RecordedCell, **values) -> Record:
    return Record(sandbox_id="s", context_id="default", language="python", cells=cells, **values)


HOSTILE = record_of(
    RecordedCell(
        code=f"# {EVIL}\r\n%magic {EVIL}\x85import os\u2028import sys",
        execution=executed(
            logs=Logs(entries=(LogEntry(stream="stdout", text=EVIL + "\udcff", at_seconds=0.0),)),
            results=(
                Result(parts={"text/html": b"<script>1</script>", "text/plain": EVIL.encode()}),
                Result(parts={"image/png": b'"><script>alert(1)</script>', "text/plain": b"no picture"}),
                Result(parts={"image/svg+xml": b"<svg onload='alert(1)'/>"}, metadata={EVIL: float("nan")}),
                Result(
                    parts={
                        "application/javascript": b"alert(1)",
                        "odd\n": b"1",
                        "A/B": b"1",
                        "x/x+json": b"NaN",
                    }
                ),
                Result(parts={"application/json": b"[NaN, 1e999", "image/png": PNG}, is_main_result=True),
                Result(parts={"application/json": b'{"a": [NaN, 1e999, "\\ud800"]}', "text/plain": b"\xff"}),
                Result(parts={"application/vnd.fumehood.data+json": json.dumps({EVIL: [EVIL, 1]}).encode()}),
                Result(parts={}),
            ),
            error=ExecutionError(kind="exception", name=EVIL, value=EVIL + "\udcff", traceback=EVIL),
            usage=Usage(),
        ),
    ),
    RecordedCell(code="x = 1\n", execution=executed(), outputs_dropped=True, is_undone=True),
    dropped_cells=3,
    dropped_outputs=1,
)


class Tags(html.parser.HTMLParser):
    """The tags and addresses that a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs


def test_a_hostile_record_is_a_valid_notebook():
    text = notebook_text(notebook_of(HOSTILE))
    text.encode()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert "NaN" not in text.replace("x/x+json", "")
    cell = notebook.cells[0]
    assert cell.id == "cell-4"
    kinds = [output.output_type for output in cell.outputs]
    assert kinds == ["stream", *["display_data"] * 7, "execute_result", "error"]
    assert cell.outputs[5].data["application/json"] == {"a": [None, None, "?"]}
    assert set(cell.outputs[4].data) == {"application/javascript"}
    assert notebook.metadata.fumehood.dropped_cells == 3
    assert notebook.cells[1].metadata.tags == ["undone", "skip-execution"]
    assert notebook.cells[1].metadata.fumehood.outputs_dropped


def test_nothing_of_a_guest_becomes_part_of_the_report():
    page = report_of(HOSTILE)
    page.encode()
    seen = Tags(page)
    allowed = {"html", "head", "meta", "title", "style", "body", "h1", "p", "pre", "section", "header", "img"}
    assert seen.tags <= allowed | {"table", "tr", "th", "td"}
    assert {name for name, _ in seen.attributes} <= {
        "lang",
        "charset",
        "http-equiv",
        "content",
        "class",
        "alt",
        "src",
    }
    sources = [value for name, value in seen.attributes if name == "src"]
    assert len(sources) == 2
    assert all(
        source.startswith(("data:image/png;base64,", "data:image/svg+xml;base64,")) for source in sources
    )
    assert "default-src 'none'" in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "What it did was undone." in page
    assert "3 older cells are missing" in page


def test_a_hostile_record_is_a_script_that_does_nothing():
    script = script_of(HOSTILE)
    code = [
        line for line in script.replace("\x00", "").splitlines() if not line.startswith("#") and line.strip()
    ]
    assert code == ["import os", "import sys"], "each a line of the code as it was, and no other"


def test_a_script_keeps_python_and_comments_the_rest():
    codes = ["x = 1\nif x:\n    print(x)", "%timeit x\n!ls\ny = !ls\nz = x % 2", "%%bash\necho 1", "x?"]
    script = script_of(record_of(*(RecordedCell(code=code, execution=executed()) for code in codes[:3])))
    ast.parse(script)
    refused = executed(error=ExecutionError(kind="exception", name="SyntaxError", value="no", traceback=""))
    whole = script_of(
        record_of(
            RecordedCell(code="def f(:\n    1", execution=refused),
            RecordedCell(code="y = 'a\0b'\nlist.sort??\n# why?", execution=executed()),
        )
    )
    assert [ast.unparse(node) for node in ast.parse(whole).body] == [r"y = 'a\x00b'"]
    assert "# def f(:\n#     1\n" in whole
    assert "    print(x)" in script
    assert "\n# %timeit x\n# !ls\n# y = !ls\nz = x % 2\n" in script
    assert "\n# %%bash\n# echo 1\n" in script
    bash = replace(record_of(RecordedCell(code="echo 1\n", execution=executed())), language="bash")
    assert "# %%bash\n# echo 1" in script_of(bash)
    assert json.loads(notebook_text(notebook_of(bash)))["cells"][0]["source"] == "%%bash\necho 1\n"


@pytest.fixture(scope="module")
def real() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        sandbox.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
        sandbox.run_code(
            "import pandas as pd\nprint('before')\npd.DataFrame({'a': [1, 2], 'b': ['x', None]})"
        )
        sandbox.run_code(
            "from IPython.display import display, HTML, Markdown\ndisplay(HTML('<b>x</b>'))\n{'a': 1}"
        )
        sandbox.run_code("import sys\nprint('o'); print('e', file=sys.stderr); print('o')\n1 / 0")
        yield sandbox


def test_all_outputs_of_real_code_are_there(real):
    notebook = nbformat.reads(real.to_notebook(), as_version=4)
    nbformat.validate(notebook)
    figure, table, shown, failed = (cell.outputs for cell in notebook.cells)
    assert figure[-1].data["image/png"].startswith("iVBOR")
    assert table[0].text == "before\n"
    assert table[1].output_type == "execute_result"
    assert "<table" in table[1].data["text/html"]
    assert shown[0].data["text/html"] == "<b>x</b>"
    assert [output.get("name") for output in failed] == ["stdout", "stderr", "stdout", None]
    assert (failed[3].ename, failed[3].evalue) == ("ZeroDivisionError", "division by zero")
    assert [cell.execution_count for cell in notebook.cells] == [1, 2, 3, 4]
    metadata = notebook.cells[0].metadata
    began, ended = (metadata.execution[name] for name in ("iopub.execute_input", "shell.execute_reply"))
    assert datetime.fromisoformat(began) < datetime.fromisoformat(ended)
    assert metadata.fumehood.usage.wall_seconds > 0


def test_nbconvert_opens_it(real, tmp_path):
    real.to_notebook(tmp_path / "x.ipynb")
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(tmp_path / "x.ipynb")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert "ZeroDivisionError" in (tmp_path / "x.html").read_text()


def test_the_report_of_real_code(real, tmp_path):
    page = real.to_notebook(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text() == page
    assert "<td>1</td><td>x</td>" in page
    assert "data:image/png;base64,iVBOR" in page
    assert "<b>" not in page
    assert "&lt;IPython.core.display.HTML object&gt;" in page, (
        "HTML that was shown is there as its plain text"
    )
    assert "ZeroDivisionError" in page


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "x.py").write_text("old")

    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "nothing" / "x.py", "new")

    write_whole(tmp_path / "x.py", "new\udcff")
    assert (tmp_path / "x.py").read_text() == "new?"
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]
