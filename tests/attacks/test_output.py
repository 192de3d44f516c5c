"""R06, R07, H06, H08 to H10: what a guest shows is bounded, never carried out, and shown harmlessly."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.test_wire import SPEAKER

import fumehood
from fumehood import Limits, SlowReaderError

MIB = 1 << 20
FLOODS = {
    "python": "import sys\npiece = 'x' * (1 << 20)\nfor _ in range(256): sys.stdout.write(piece)",
    "one endless line": "import os\npiece = b'x' * (1 << 20)\nfor _ in range(256): os.write(1, piece)",
    "tiny writes": "import os\nfor _ in range(300_000): os.write(1, b'x\\n' * 4)",
    "tiny prints": "for number in range(300_000): print('12345')",
    "standard error": "import os\npiece = b'x' * (1 << 20)\nfor _ in range(256): os.write(2, piece)",
    "both": "import os\npiece = b'x' * (1 << 16)\nfor _ in range(1024): os.write(1, piece); os.write(2, piece)",
    "no text": "import os\npiece = b'\\xff\\xfe\\x80' * (1 << 18)\nfor _ in range(128): os.write(1, piece)",
}


@pytest.mark.parametrize("flood", FLOODS)
def test_r06_output_is_bounded(flood, make, host_memory):
    """Hundreds of megabytes: cut at the limit, marked with how much, and the next cell works."""
    mine = make(limits=Limits(stdout_bytes=MIB, stderr_bytes=MIB))
    mine.run("1")
    before = host_memory()
    execution = mine.sandbox.run_code(FLOODS[flood], timeout=60)
    assert execution.error is None, execution.error
    kept = sum(len(text.encode()) for text in (*execution.logs.stdout, *execution.logs.stderr))
    # With a notice of what is missing in each stream.
    assert kept <= 2 * MIB + 200
    assert execution.truncated.stdout_bytes + execution.truncated.stderr_bytes > 100_000
    assert host_memory() - before < 64 * MIB
    assert mine.run("print(1)") == "1\n"


def test_r06_output_of_commands_and_terminals_is_bounded(make, host_memory):
    """The same for a command, and for a terminal that nobody reads."""
    mine = make(limits=Limits(stdout_bytes=MIB, stderr_bytes=MIB))
    before = host_memory()
    result = mine.sandbox.commands.run("head -c 256M /dev/zero")
    # And a line between head and tail that says how much is missing.
    assert len(result.stdout) <= MIB + 100
    assert result.truncated.stdout_bytes == 255 * MIB
    terminal = mine.sandbox.pty.create()
    terminal.send("yes\n")
    assert mine.run("import time; time.sleep(0.3); print(1)") == "1\n"
    assert host_memory() - before < 64 * MIB


def test_r06_a_callback_that_is_slower_than_updates_holds_a_bounded_number_of_them(make):
    """Code cannot be told to wait: it is ended, and the error says so when what was waiting has come."""
    mine = make()
    code = (
        "handle = display({'text/plain': ''}, raw=True, display_id=True)\n"
        "try:\n"
        "    for _ in range(300): handle.update({'text/plain': 'x' * (1 << 20)}, raw=True)\n"
        "finally:\n"
        "    open('/tmp/over', 'w').close()"
    )
    seen = []

    def wait_for_its_end(result):
        seen.append(result.size_bytes)

        while not mine.sandbox.files.exists("/tmp/over"):
            continue

    with pytest.raises(SlowReaderError):
        mine.sandbox.run_code(code, on_result=wait_for_its_end, timeout=60)

    assert 80 * MIB < sum(seen) < 90 * MIB
    assert mine.run("print(1)") == "1\n"


def test_r06_what_comes_between_cells_is_bounded_by_what_it_costs(make):
    """Values of JSON cost thirty times their text, and a thread sends them while nobody runs anything."""
    mine = make()
    mine.run(SPEAKER)
    shown = "frame({'type': 'display_data', 'id': earlier(), 'at': 1.0, 'parts': [], 'metadata': {'a': [{}] * 3000}})"
    mine.run(
        "import threading\n"
        "told = threading.Event()\n"
        "def tell():\n"
        "    told.wait()\n"
        f"    one = {shown}\n"
        "    raw(*[one] * 300)\n"
        "    open('/tmp/told', 'w').close()\n"
        "threading.Thread(target=tell).start()\n"
    )
    mine.run("import IPython; IPython.get_ipython().events.register('post_run_cell', lambda *_: told.set())")

    while not mine.sandbox.files.exists("/tmp/told"):
        continue

    # Fewer than ten are kept. What the host has not read yet when the next cell begins counts as that cell's: no more
    # than a socket and a receive buffer hold, 20 and 28 of these.
    execution = mine.sandbox.run_code("1")
    assert 1 < len(execution.results) < 100


def test_r06_outside_nothing_stops_a_flood():
    """The control: a plain subprocess gives all of it."""
    done = subprocess.run([sys.executable, "-c", FLOODS["python"]], stdout=subprocess.PIPE, check=True)
    assert len(done.stdout) == 256 * MIB


RESULTS = {
    "representation": "class R:\n    def __repr__(self): return 'x' * (50 << 20)\nR()",
    "html": "from IPython.display import HTML\nHTML('x' * (50 << 20))",
    "picture": "from IPython.display import Image\nImage(b'\\x89PNG' + bytes(50 << 20), format='png')",
    "many": "for number in range(20_000): display(number)",
    "updates": "h = display(0, display_id=True)\nfor number in range(5_000): h.update('x' * 1000)",
    "traceback": "def deep(n):\n    return deep(n + 1)\ndeep(0)",
    "message": "raise ValueError('x' * (50 << 20))",
    "name": "raise type('E' * 1_000_000, (Exception,), {})",
    "number": "10 ** 4000 * 7",
    "long number": "import sys; sys.set_int_max_str_digits(0); 10 ** 100_000",
    "cycle": "a = []; a.append(a); b = {1: a}; a.append(b); a",
    "nested": "deep = []\nfor _ in range(100_000): deep = [deep]\ndeep",
    "evil metadata": "display({'text/plain': 'x'}, metadata={'a': 'x' * (20 << 20)}, raw=True)",
    "evil mime": "display({'x' * 1000: 'x', 'text/plain\\nevil: 1': 'y', '': 'z', 'text/plain': 'w'}, raw=True)",
    "surrogates": "print('\\ud800'); display({'text/plain': '\\udfff'}, raw=True); '\\ud800'",
    "zero": "print('\\0'); '\\0'",
}


@pytest.mark.parametrize("result", RESULTS)
def test_r07_results_are_bounded(result, make, host_memory):
    """Huge, many, deep or cyclic: cut, left out and named, or an error of the code's own; the next cell works."""
    mine = make(limits=Limits(result_bytes=MIB, result_count=50))
    before = host_memory()
    execution = mine.sandbox.run_code(RESULTS[result], timeout=60)
    assert len(execution.results) <= 50
    assert sum(one.size_bytes for one in execution.results) <= 50 * MIB
    assert execution.error is None or execution.error.kind == "exception", execution.error
    assert execution.error is None or len(execution.error.traceback) + len(execution.error.value) < 2 * MIB
    assert host_memory() - before < 128 * MIB
    assert mine.run("print(1)") == "1\n"

    if result == "many":
        assert execution.truncated.results == 20_000 - 50

    if result in ("representation", "html", "picture"):
        assert any(one.truncated for one in execution.results)


def test_h06_nothing_of_a_guest_is_carried_out_by_the_host(attacked, tmp_path):
    """Pickles, marshalled code and objects in results and files come back as what they are: bytes and text."""
    mark = tmp_path / "carried-out"
    said = attacked.sandbox.run_code(
        f"import marshal, os, pickle\n"
        f"class Evil:\n"
        f"    def __reduce__(self): return (os.system, ('touch {mark}',))\n"
        f"    def __repr__(self): return 'shown'\n"
        f"    def _repr_mimebundle_(self, **_): return {{'application/x-python-pickle': pickle.dumps(self).hex()}}\n"
        f"open('evil.pickle', 'wb').write(pickle.dumps(Evil()))\n"
        f"open('evil.pyc', 'wb').write(marshal.dumps(compile('import os', '', 'exec')))\n"
        f"Evil()\n"
    )
    assert said.error is None
    assert attacked.sandbox.files.read("evil.pickle", format="bytes").startswith(b"\x80")
    assert not mark.exists()

    import pickle

    pickle.loads(attacked.sandbox.files.read("evil.pickle", format="bytes"))
    assert mark.exists()


def test_h06_the_host_has_no_call_that_could():
    """Host code neither unpickles, unmarshals, evaluates, imports by name nor decodes pictures."""
    forbidden = {
        "pickle",
        "marshal",
        "shelve",
        "dill",
        "cloudpickle",
        "yaml",
        "PIL",
        "nbconvert",
        "pandas",
        "numpy",
    }
    called = {"eval", "exec", "compile", "__import__", "import_module"}
    root = Path(fumehood.__file__).parent
    found = []

    # The attacker's program runs in guests: the host copies it, and knows none of it.
    attacker = root / "scorecard" / "attack"
    # In the kernel of the user's notebook: it writes pickles, reads none (tests/rules), and makes tables of numbers.
    # What Python has compiled of our own sources: it writes them anew, and reads none (tests/rules).
    writers = {root / "ipython_magic.py", root / "runtimes" / "namespaces" / "guest_bytecode.py"}
    assert all(path.is_file() for path in writers)
    paths = [path for path in root.rglob("*.py") if path.parent != attacker and path not in writers]

    for path in [*paths, *(root.parent / "fumehood_wire").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [
                    (path.name, alias.name) for alias in node.names if alias.name.split(".")[0] in forbidden
                ]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in forbidden:
                found.append((path.name, str(node.module)))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in called:
                found.append((path.name, node.func.id))

    assert found == []


PICTURES = {
    "bomb": "b'\\x89PNG\\r\\n\\x1a\\n' + bytes.fromhex('0000000d49484452') + b'\\xff' * 8 + bytes(64)",
    "no picture": "b'<script>alert(1)</script>'",
    "empty": "b''",
}


@pytest.mark.parametrize("picture", PICTURES)
def test_h10_the_host_decodes_nothing(picture, attacked):
    """What claims to be a PNG is handed on as it came, whatever it is."""
    execution = attacked.sandbox.run_code(f"display({{'image/png': {PICTURES[picture]}}}, raw=True)")
    assert execution.error is None
    assert [one.png for one in execution.results if one.png] in ([eval(PICTURES[picture])], [])


def test_h10_a_drawing_that_grows_is_text(attacked):
    """An SVG of nested entities is not expanded by anybody."""
    lines = "".join(f"<!ENTITY a{n + 1} '{f'&a{n};' * 10}'>" for n in range(30))
    execution = attacked.sandbox.run_code(f"display({{'image/svg+xml': {lines!r}}}, raw=True)")
    (result,) = execution.results
    assert result.svg == lines


ESCAPES = [
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x1bP+q\x1b\\",
    "\x9b31m",
    "\x08\x08\x08",
    "‮",
]


@pytest.mark.parametrize("place", ["stdout", "stderr", "error", "result"])
def test_h09_terminal_escapes_are_made_visible(place, tmp_path):
    """What the command line shows holds no control character of the guest's, unless it is asked for."""
    text = "".join(ESCAPES)
    code = {
        "stdout": f"print({text!r})",
        "stderr": f"import sys; print({text!r}, file=sys.stderr)",
        "error": f"raise type({text!r}, (Exception,), {{}})({text!r})",
        "result": f"class R:\n    def __repr__(self): return {text!r}\nR()",
    }[place]
    (tmp_path / "code.py").write_text(code)
    words = [sys.executable, "-m", "fumehood", "run"]
    shown = subprocess.run([*words, str(tmp_path / "code.py")], capture_output=True, text=True)
    said = shown.stdout + shown.stderr
    assert not set(said) & {"\x1b", "\x07", "\x9b", "\x08", "‮"}, ascii(said)

    if place == "stdout":
        raw = subprocess.run([*words, "--raw", str(tmp_path / "code.py")], capture_output=True, text=True)
        assert "\x1b" in raw.stdout


def test_h08_names_and_output_forge_no_lines(make, tmp_path, capfd):
    """Line ends and lookalikes in names of files, errors and displays stay within their field."""
    mine = make()
    name = "a\r\nINFO forged log line\x1b[31m"
    mine.sandbox.files.write(name, "x")
    assert name in {info.name for info in mine.sandbox.files.list()}
    execution = mine.sandbox.run_code(f"raise type({name!r}, (Exception,), {{}})({name!r})")
    assert execution.error is not None
    assert "\n" not in execution.error.name
    assert "\x1b" not in execution.error.name

    with pytest.raises(fumehood.FileError) as caught:
        mine.sandbox.files.read(name + "/below")

    assert "\n" not in str(caught.value).split("\n\nhint")[0]
    assert "\x1b" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
