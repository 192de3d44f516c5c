"""Languages whose cells are whole programs, in contexts and judged: compiled if need be, run once, without state."""

from __future__ import annotations

import os
import shutil

import pytest

from fumehood import InvalidArgumentError, LanguageCheckpointError, LanguageUnavailableError
from fumehood.values.languages import CONTEXT_LANGUAGES

pytestmark = pytest.mark.in_guest

# Of each language a program that reads a number and prints the next one.
NEXT = {
    "c": '#include <stdio.h>\nint main(void) { int a; scanf("%d", &a); printf("%d\\n", a + 1); }',
    "cpp": "#include <bits/stdc++.h>\nint main() { int a; std::cin >> a; std::cout << a + 1 << std::endl; }",
    "go": 'package main\nimport "fmt"\nfunc main() { var a int; fmt.Scan(&a); fmt.Println(a + 1) }',
    "rust": "use std::io;\nfn main() { let mut s = String::new(); io::stdin().read_line(&mut s).unwrap();\n"
    'println!("{}", s.trim().parse::<i32>().unwrap() + 1); }',
    "csharp": "using System; using System.Linq;\nclass P { static void Main() {\n"
    "Console.WriteLine(new[] { int.Parse(Console.ReadLine()), 1 }.Sum()); } }",
    "php": '<?php fscanf(STDIN, "%d", $a); echo $a + 1, "\\n";',
    "ruby": "puts gets.to_i + 1",
    "lua": 'print(io.read("n") + 1)',
    "perl": 'print <STDIN> + 1, "\\n"',
    "ocaml": 'let () = Scanf.scanf " %d" (fun a -> Printf.printf "%d\\n" (a + 1))',
    "racket": "#lang racket\n(displayln (+ 1 (read)))",
    "fortran": 'program p\n integer :: a\n read(*,*) a\n print "(I0)", a + 1\nend program',
    "verilog": "module m; integer a, r; initial begin\n"
    'r = $fscanf(32\'h8000_0000, "%d", a); $display("%0d", a + 1); $finish; end endmodule',
    "sql": "select 41 + 1;",
    "d": 'import std.stdio;\nvoid main() { int a; readf("%d", a); writeln(a + 1); }',
    "pascal": "var a: integer; begin read(a); writeln(a + 1); end.",
    "scheme": "(display (+ 1 (read))) (newline)",
    "lisp": '(format t "~a~%" (+ 1 (read)))',
    "tcl": "gets stdin a; puts [expr $a + 1]",
    "cobol": "       IDENTIFICATION DIVISION.\n       PROGRAM-ID. P.\n       DATA DIVISION.\n"
    "       WORKING-STORAGE SECTION.\n       01 A PIC 99.\n       PROCEDURE DIVISION.\n           ACCEPT A.\n"
    "           ADD 1 TO A.\n           DISPLAY A.\n           STOP RUN.\n",
    "erlang": "-module(main).\n-export([main/0]).\n"
    'main() -> {ok, [A]} = io:fread("", "~d"), io:format("~p~n", [A + 1]).',
    "elixir": 'IO.puts(String.to_integer(String.trim(IO.gets(""))) + 1)',
    "clojure": "(println (inc (Integer/parseInt (read-line))))",
    "haskell": 'main = interact (\\s -> show (read s + 1) ++ "\\n")',
    "ada": "with Ada.Text_IO; with Ada.Integer_Text_IO; procedure Main is A : Integer;\n"
    "begin Ada.Integer_Text_IO.Get(A); Ada.Text_IO.Put_Line(Integer'Image(A + 1)); end Main;",
}
# `make languages` installs all of them, a gigabyte; what `make programs` installs is tried each time.
FEW = ("c", "cpp", "csharp", "lua", "perl", "php", "sql")
TRIED = NEXT if "EVERY_LANGUAGE" in os.environ else FEW
# Where sandboxes find programs.
PATH = "/usr/local/bin:/usr/bin:/bin"
MISSING = [
    program
    for name in TRIED
    for program in CONTEXT_LANGUAGES[name].source.programs
    if shutil.which(program, path=PATH) is None
]


@pytest.mark.skipif(bool(MISSING), reason=f"needs the programs {MISSING}: `make programs` installs them")
def test_each_language_runs_a_program(sandbox):
    """Compiled if need be, with its standard input."""
    for name in TRIED:
        execution = sandbox.run_code(NEXT[name], language=name, stdin="41\n", timeout=60)
        assert execution.error is None, (name, execution.error, execution.logs)
        assert "".join(execution.logs.stdout).strip() == "42", name


def test_a_program_is_whole_and_leaves_nothing(sandbox):
    """The compiler's own words with the lines of the cell, exit codes, signals, a time-out, variables of the call."""

    def run(code, **options):
        return sandbox.run_code(code, language="c", **options)

    failed = run("int main(void) {\n  return x;\n}")
    assert (failed.error.name, failed.error.value) == ("CompilationError", "gcc ended with status 1")
    assert "main.c:2:10: error: " in "".join(failed.logs.stderr)

    ended = run('#include <stdio.h>\nint main(void) { puts("a"); fputs("b", stderr); return 7; }')
    assert (ended.error.name, ended.error.value, ended.error.kind) == ("ExitCode", "7", "exception")
    assert ("".join(ended.logs.stdout), "".join(ended.logs.stderr)) == ("a\n", "b")

    crashed = run("int main(void) { volatile int *p = 0; return *p; }")
    assert (crashed.error.value, crashed.state_lost) == ("139", False)
    assert "SIGSEGV" in crashed.error.traceback

    late = run("int main(void) { for (;;); }", timeout=1)
    assert (late.error.kind, late.state_lost) == ("time_limit", False)
    assert late.usage.wall_seconds < 5

    shown = run(
        '#include <stdlib.h>\n#include <stdio.h>\nint main(void) { puts(getenv("A")); }', envs={"A": "1"}
    )
    assert shown.logs.stdout == ["1\n"]

    # A process that a program leaves behind ends with it, and so does its folder.
    left = run("#include <unistd.h>\nint main(void) { if (fork() == 0) for (;;) pause(); }")
    assert left.error is None
    names = sandbox.run_code("!ps -e -o comm=; ls -a /tmp").logs
    assert "program" not in "".join(names.stdout)

    with pytest.raises(LanguageCheckpointError, match="each of its cells is a whole program"):
        sandbox.checkpoint(context="c")

    with pytest.raises(InvalidArgumentError, match="its compiler is no package of Debian"):
        sandbox.run_code("x", language="cuda")

    with pytest.raises(LanguageUnavailableError, match="`swiftc`"):
        sandbox.run_code("x", language="swift")


def test_one_node_runs_cells_programs_and_commands(sandbox):
    """That of the template, which brings its own; programs in TypeScript need no other tool."""
    version = sandbox.run_code("process.version", language="js").text.strip("'")
    assert sandbox.commands.run("node --version").stdout.strip() == version
    (judged,) = sandbox.judge("console.log(process.version)", [("", version)], language="js")
    assert judged.verdict == "accepted"

    code = """
import fs from 'node:fs'
enum Step { one = 1 }
const read = (): number => Number(fs.readFileSync(0, 'utf8'))
console.log(read() + Step.one)
"""
    cases = sandbox.judge(code, [("41", "42"), ("1", "3")], language="ts")
    assert [case.verdict for case in cases] == ["accepted", "wrong_answer"]


def test_detached_children_are_judged_too(sandbox):
    """A child that has left the program's session, by a double fork, counts while it runs and once it has ended.

    It does not outlive the case either. In the control it does the same with little memory.
    """
    code = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    long mebibytes; char done; int pipes[2], stays;
    if (scanf("%ld %d", &mebibytes, &stays) != 2 || pipe(pipes)) return 1;
    if (fork() == 0) {
        setsid();
        if (fork() != 0) _exit(0);
        char *all = malloc(mebibytes << 20);
        if (all) memset(all, 1, mebibytes << 20);
        write(pipes[1], all ? all + 5 : "-", 1);
        if (stays) pause();
        _exit(0);
    }
    read(pipes[0], &done, 1);
    puts("done");
}
"""
    cases = [(f"{mebibytes} {stays}", "done") for mebibytes in (1, 300) for stays in (0, 1)]
    judged = sandbox.judge(code, cases, language="c", timeout=10, memory_bytes=256 << 20, concurrency=1)
    assert [case.verdict for case in judged] == ["accepted", "accepted", "memory_limit", "memory_limit"]
    assert judged[3].run.error.startswith("MemoryError: took 3")
    running = sandbox.run_code("!cat /proc/[0-9]*/comm").logs.stdout
    assert "program" not in "".join(running).split()


def test_a_compiled_program_is_judged(sandbox):
    """Compiled once for all cases; verdicts as for Python, and the files are as before."""
    code = """
#include <cstdio>
#include <cstdlib>
#include <vector>
int main() {
    int a;
    std::scanf("%d", &a);
    if (a == 2) for (;;);
    if (a == 3) return 1;
    if (a == 4) { std::vector<char> all(1 << 30, 'x'); std::printf("%d", all[5]); }
    if (a == 7) { std::vector<char> all(300 << 20, 'x'); a = all[5] * 0 + 7; }
    std::system("echo x >> cases.txt");
    std::printf("%d\\n", a + 1);
}
"""
    cases = [("1", "2"), ("2", "3"), ("3", "4"), ("4", "5"), ("5", "7"), ("6", "7\n"), ("7", "8")]
    judged = sandbox.judge(code, cases, language="c++", timeout=3, memory_bytes=256 << 20)
    verdicts = [case.verdict for case in judged]
    assert verdicts == [
        "accepted",
        "time_limit",
        "runtime_error",
        "memory_limit",
        "wrong_answer",
        "accepted",
        "memory_limit",
    ]
    assert judged[6].run.error.startswith("MemoryError: took 3")
    assert "bad_alloc" in judged[3].run.stderr
    assert not sandbox.files.exists("cases.txt")
    assert "judge" not in "".join(sandbox.run_code("!ls -a /tmp").logs.stdout)

    for case in sandbox.judge("int main( {", cases[:2], language="cpp"):
        assert (case.verdict, case.run.error) == (
            "runtime_error",
            "CompilationError: g++ ended with status 1",
        )
        assert "main.cpp:1:" in case.run.stderr

    # Whole programs, also of a language whose contexts keep state.
    assert [
        case.verdict for case in sandbox.judge("read a; echo $((a + 1))", [("1\n", "2")], language="sh")
    ] == ["accepted"]

    with pytest.raises(LanguageUnavailableError, match="`swiftc`"):
        sandbox.judge("x", cases, language="swift")

    with pytest.raises(InvalidArgumentError):
        sandbox.judge("x", cases, language="kernel:ir")
