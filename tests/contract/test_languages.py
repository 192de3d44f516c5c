"""JavaScript and TypeScript: a Node whose variables persist from cell to cell, like those of Python."""

from __future__ import annotations

import pytest

from fumehood import InvalidArgumentError, LanguageCheckpointError

pytestmark = pytest.mark.in_guest


def _run(sandbox, code, language="javascript", **options):
    return sandbox.run_code(code, language=language, **options)


def _search(word: str) -> str:
    return word


def test_variables_persist_and_may_be_declared_anew(sandbox):
    """With any keyword: models do that all the time."""
    assert _run(sandbox, "const x = 41; class A { f() { return 1 } }\n(x + 1)").text == "42"
    assert _run(sandbox, "let x = 7; class A { f() { return 2 } }; x + new A().f()", "js").text == "9"
    assert _run(sandbox, "let x; String(x)").text == "'undefined'"


# Cells whose declarations the driver changes without the parser, and cells that only look as if it could.
DECLARATIONS = {
    "const a = 1; let b = 2; a + b": "3",
    "const a = { b: [1, 2] }; a.b.length": "2",
    "let c = 4 // const c = 5\nc": "4",
    "const d = '}const e'; d": "'}const e'",
    "const f = function () { let g = 6; return g }; f()": "6",
    "function f() { const h = 7; return h }\nlet i = f(); i": "7",
    "let total = 0\nfor (const one of [1, 2]) { total += one }\ntotal": "3",
    "const j = 1, k = 8; k": "8",
    "let l\nString(l)": "'undefined'",
    "const { m } = { m: 9 }; m": "9",
    "const n = `const o = ${10}`; n": "'const o = 10'",
    "const p = /const q = 1/; p.source": "'const q = 1'",
    "var o = { const: 11, let: 12 }; o.const + o.let": "23",
    "const é = 13; é": "13",
}
REFUSED = ("const a = 1; const a = 2", "let r = 1; var r = 2", "const s = 1; f(", "if (1) const u = 2")


def test_declarations_mean_what_they_say(sandbox):
    """Each name may be declared anew in the next cell and once in a cell; errors show the code as it was written."""
    for _ in range(2):
        assert {code: _run(sandbox, code).text for code in DECLARATIONS} == DECLARATIONS

    for code in REFUSED:
        error = _run(sandbox, code).error
        assert error.name == "SyntaxError"
        assert code in error.traceback, error.traceback


def test_modules_are_imported_in_every_way(sandbox):
    """Static and dynamic imports, `require`, and a module that lies beside."""
    sandbox.files.write("/home/user/own.mjs", "export default 5; export const six = 6")
    code = "import five, { six } from './own.mjs'\nimport * as os from 'node:os'\n[five, six, os.platform()].join()"

    assert _run(sandbox, code).text == "'5,6,linux'"
    assert _run(sandbox, "(await import('node:path')).sep + require('node:path').sep").text == "'//'"


def test_top_level_await_gives_a_result(sandbox):
    """The value of the last expression; streams are apart."""
    execution = _run(
        sandbox, "console.log('out'); console.error('err')\nawait new Promise(r => setTimeout(() => r(3), 5))"
    )

    assert (execution.text, execution.logs.stdout, execution.logs.stderr) == ("3", ["out\n"], ["err\n"])


def test_an_error_names_its_line(sandbox):
    """The frames of the driver are not shown."""
    error = _run(sandbox, "function f() {\n  throw new TypeError('boom')\n}\nf()").error

    assert (error.name, error.value) == ("TypeError", "boom")
    assert "cell_1.js:2:9" in error.traceback
    assert "node.cjs" not in error.traceback
    assert _run(sandbox, "let a = ;").error.name == "SyntaxError"
    assert _run(sandbox, "await Promise.reject(new RangeError('no'))").error.name == "RangeError"


def test_a_rejected_promise_and_an_exit_keep_the_context(sandbox):
    """`process.exit` ends the cell, and what nothing awaits is printed."""
    assert _run(sandbox, "var kept = 1; Promise.reject(new RangeError('no')); undefined").error is None
    error = _run(sandbox, "Promise.resolve().then(() => process.exit(3)); await new Promise(() => {})").error

    assert (error.name, error.value) == ("ExitCode", "3")
    assert _run(sandbox, "process.exit(0)").error is None
    assert _run(sandbox, "kept").text == "1"


def test_typescript_loses_its_types_and_keeps_its_lines(sandbox):
    """Interfaces, generics, enums; lines behind an enum are mapped back."""
    code = "interface P { a: number }\nfunction id<T>(v: T): T { return v }\nconst p: P = { a: 3 }\nid<number>(p.a)"
    late = (
        "enum F { A }\n\ninterface Q {\n  a: number\n}\n"
        "function g(n: number): never {\n  throw new Error('ts')\n}\ng(1)"
    )

    assert _run(sandbox, code, "typescript").text == "3"
    assert _run(sandbox, "enum E { A, B }; E.B", "ts").text == "1"
    trace = _run(sandbox, late, "ts").error.traceback
    assert trace.startswith("cell_3.ts:7\n  throw new Error('ts')\n  ^\n"), trace
    assert "cell_3.ts:7:9" in trace


def test_results_are_rich(sandbox):
    """By `display`, and by the symbol that Deno and Jupyter kernels share."""
    execution = _run(
        sandbox,
        "display.html('<b>x</b>'); display.table([{a: 1}]); display.image(Buffer.from('PNG'));\n"
        "({ [Symbol.for('Jupyter.display')]() { return { 'application/json': { a: 1 } } } })",
    )
    html, table, image, last = execution.results

    assert html.html == "<b>x</b>"
    assert "<td>1</td>" in table.html
    assert image.png == b"PNG"
    assert last.json == {"a": 1}


def test_output_of_both_streams_keeps_its_order(sandbox):
    """In quick bursts, of any size, beside results, and with characters that are written in pieces."""
    burst = "for (let i = 0; i < 300; i++) { console.log(`o${i}`); console.error(`e${i}`) }"
    alternating = "".join(f"o{number}\ne{number}\n" for number in range(300))

    for language in ("javascript", "typescript"):
        execution = _run(sandbox, burst, language)
        assert "".join(entry.text for entry in execution.logs.entries) == alternating

    one_of_many = (
        "console.log('a'); console.error('b'); console.log('x'.repeat(3_000_000)); console.error('c')"
    )
    execution = _run(sandbox, one_of_many)
    assert execution.logs.entries[-1].text.endswith("c\n")
    kinds = _run(sandbox, "console.error('1'); console.log('2'); display(3); console.error('4'); 5")
    assert [entry.text for entry in kinds.logs.entries] == ["1\n", "2\n", "4\n"]
    assert [result.text for result in kinds.results] == ["3", "5"]
    pieces = "process.stdout.write(Buffer.from('é').subarray(0, 1)); process.stdout.write(Buffer.from('é').subarray(1))"
    execution = _run(
        sandbox, f"console.log('1'); console.error('2'); {pieces}; process.stdout.write(Buffer.from([255]))"
    )
    assert "".join(entry.text for entry in execution.logs.entries) == "1\n2\né\ufffd"
    # What a child writes itself comes before what the cell writes after its end.
    child = "require('child_process').execSync('echo child', { stdio: 'inherit' })"
    execution = _run(sandbox, f"console.log('1'); console.error('2'); {child}; console.log('3')")
    assert "".join(entry.text for entry in execution.logs.entries).startswith("1\n")
    assert execution.logs.entries[-1].text == "3\n"


def test_output_of_both_streams_stays_in_order(sandbox):
    """Also with what child processes and direct writes add, and with a character that is divided between two writes."""
    code = """
    import { execSync } from 'node:child_process'
    const fs = require('fs')
    for (let n = 0; n < 3; n++) { console.log(`o${n}`); console.error(`e${n}`) }
    execSync('echo child', { stdio: 'inherit' }); console.error('e3')
    fs.writeSync(1, 'direct\\n'); console.error('e4')
    process.stdout.write(Buffer.from([0xc3])); process.stdout.write(Buffer.from([0xa9, 10]), () => console.error('e5'))
    await new Promise(r => setTimeout(r, 1)); undefined
    """
    seen: list[str] = []

    def note(output) -> None:
        seen.append(str(output))

    execution = _run(sandbox, code, on_stdout=note, on_stderr=note)

    assert execution.error is None
    assert "".join(seen).split() == [
        "o0",
        "e0",
        "o1",
        "e1",
        "o2",
        "e2",
        "child",
        "e3",
        "direct",
        "e4",
        "é",
        "e5",
    ]


def test_cells_print_after_the_streams_were_ended_or_cut_off(sandbox):
    """Neither the end of a stream nor an interrupt in the middle of a write silences the cells that follow."""
    for code in ("process.stdout.end('bye')", "while (true) console.log('x')"):
        _run(sandbox, code, timeout=1)
        assert "".join(_run(sandbox, "console.log('still')").logs.stdout) == "still\n"

    piped = "require('stream').Readable.from(['piped']).pipe(process.stdout); await new Promise(r => setTimeout(r, 20))"
    assert "".join(_run(sandbox, piped).logs.stdout) == "piped"
    assert "".join(_run(sandbox, "console.log('still')").logs.stdout) == "still\n"


def test_a_time_out_of_code_that_prints_keeps_the_variables(sandbox):
    """Also where it computes after it has waited: then a second thread breaks it off."""
    _run(sandbox, "var x = 5")

    for code in ("while (true) console.log('x')", "await 0; while (true) console.log('x')"):
        execution = _run(sandbox, code, timeout=1)
        assert execution.error.kind == "time_limit"
        assert not execution.state_lost

    assert _run(sandbox, "x").text == "5"


def test_variables_of_a_call_are_undone(sandbox):
    """The working directory and standard input are those of the call too."""
    sandbox.files.make_dir("/home/user/project")
    context = sandbox.create_code_context(language="ts", cwd="/home/user/project")

    assert context.language == "typescript"
    assert sandbox.run_code("process.cwd()", context=context).text == "'/home/user/project'"
    assert _run(sandbox, "process.env.FOO", envs={"FOO": "1"}).text == "'1'"
    assert _run(sandbox, "String(process.env.FOO)").text == "'undefined'"
    assert _run(sandbox, "require('fs').readFileSync(0, 'utf8')", stdin="abc").text == "'abc'"


@pytest.mark.parametrize(
    "code",
    [
        "while (true) {}",
        "await new Promise(() => {})",
        "await 0; while (true) {}",
        "await new Promise(r => setTimeout(r, 20)); while (true) {}",
    ],
)
def test_a_time_out_keeps_the_variables(sandbox, code):
    """Also where code computes after it has waited."""
    _run(sandbox, "var x = 5")
    execution = _run(sandbox, code, timeout=1)

    assert execution.error.kind == "time_limit"
    assert not execution.state_lost
    assert _run(sandbox, "x").text == "5"


def test_a_callback_of_a_timer_that_never_ends_costs_the_state(sandbox):
    """Node ends when it is interrupted there: the error says so, and the next cell has a fresh context."""
    _run(sandbox, "var x = 5; setTimeout(() => { while (true) {} }, 1); undefined")
    execution = _run(sandbox, "await new Promise(() => {})", timeout=1)

    assert execution.error is not None
    assert execution.state_lost
    assert _run(sandbox, "typeof x").text == "'undefined'"


def test_what_node_cannot_do_is_refused_before_it_begins(sandbox):
    """Checkpoints, transactions and tools; the error names the language."""
    _run(sandbox, "var x = 1")

    with pytest.raises(LanguageCheckpointError, match="javascript: Node has threads"):
        sandbox.checkpoint(context="javascript")

    with pytest.raises(InvalidArgumentError, match="javascript"):
        _run(sandbox, "x = 2", transactional=True)

    with pytest.raises(InvalidArgumentError, match="javascript"):
        _run(sandbox, "x = 2", tools={"search": _search})

    assert _run(sandbox, "x").text == "1"


def test_a_driver_that_sends_garbage_ends_its_context_alone(sandbox):
    """Also one that is killed; the next cell has a fresh one."""
    sandbox.run_code("y = 1")
    garbage = (
        "for (let fd = 3; fd < 40; fd++) { try { require('fs').writeSync(fd, BYTES) } catch {} }\n"
        "while (true) {}"
    )
    unfit = '{"type": "stream", "name": "other", "text": "x"}'
    framed = f"Buffer.from('\\0\\0\\0\\x{len(unfit):02x}{unfit}', 'latin1')"

    for content in ("'x'.repeat(64)", framed):
        assert _run(sandbox, garbage.replace("BYTES", content), timeout=5).state_lost

    assert _run(sandbox, "process.kill(process.pid, 'SIGKILL'); while (true) {}", timeout=5).state_lost
    assert _run(sandbox, "1 + 1").text == "2"
    assert sandbox.run_code("y").text == "1"


def test_code_is_as_confined_as_that_of_python(sandbox):
    """No file of the host, no network."""
    code = (
        "import net from 'node:net'\n"
        "const shadow = require('fs').existsSync('/etc/shadow')\n"
        "const socket = net.connect(53, '1.1.1.1')\n"
        "const open = await new Promise(r => socket.on('connect', () => r(1)).on('error', () => r(0)))\n"
        "let written = 1\ntry { require('fs').writeFileSync('/usr/x', '') } catch { written = 0 }\n"
        "[shadow, open, written].join()"
    )

    assert _run(sandbox, code).text == "'false,0,0'"
