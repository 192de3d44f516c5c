"""Java: a JShell whose declarations persist from cell to cell."""

from __future__ import annotations

import shutil

import pytest

from fumehood import InvalidArgumentError, LanguageCheckpointError

pytestmark = [
    pytest.mark.in_guest,
    pytest.mark.skipif(
        not shutil.which("javac"), reason="needs the program javac: `make programs` installs it"
    ),
]

_HOLDS_A_LOCK = """
CountDownLatch held = new CountDownLatch(1);
Thread holder = new Thread(() -> {
  synchronized (Display.class.getEnclosingClass()) {
    held.countDown();
    try { Thread.sleep(600_000); } catch (InterruptedException end) { }
  }
});
holder.start();
held.await();
"""


_BOTH_STREAMS = """
for (int n = 0; n < 200; n++) { System.out.println("o" + n); System.err.println("e" + n); }
new ProcessBuilder("echo", "child").inheritIO().start().waitFor();
System.err.println("last");
"""


@pytest.fixture
def java(sandbox):
    """Runs cells of Java."""
    return lambda code, **options: sandbox.run_code(code, language="java", **options)


def test_both_streams_of_java_stay_in_order(java):
    """Also with what a child process has written to the other one before."""
    seen: list[str] = []
    java(
        _BOTH_STREAMS,
        on_stdout=lambda text: seen.append(str(text)),
        on_stderr=lambda text: seen.append(str(text)),
    )
    assert "".join(seen).split() == [
        *(f"{stream}{n}" for n in range(200) for stream in "oe"),
        "child",
        "last",
    ]


def test_cells_of_java(sandbox, java):
    """Methods and records over several cells, streams, results, errors with lines, and the compiler's own words."""
    assert java("int x = 41;\nx + 1").text == "42"
    assert java("record P(int a, String b) {}\nint twice(P p) { return 2 * p.a(); }").error is None
    assert java('twice(new P(x, "q"))').text == "82"
    assert java("int x = 7; x").text == "7"

    execution = java('System.out.print("a"); System.err.println("b"); System.out.println("é");')
    assert ("".join(execution.logs.stdout), "".join(execution.logs.stderr)) == ("aé\n", "b\n")
    assert java('Display.html("<b>x</b>")').results[0].html == "<b>x</b>"

    error = java('void f() {\n  throw new IllegalStateException("boom");\n}\n\nf();').error
    assert (error.name, error.value) == ("java.lang.IllegalStateException", "boom")
    assert "f (cell_7.java:2)" in error.traceback
    assert "cell_7.java:5" in error.traceback

    error = java("int a = 1;\nint b = missing(a);").error
    assert error.name == "CompilationError"
    assert error.traceback.startswith("cell_8.java:2: error: cannot find symbol")
    assert java("class A {\n  int g() { return h(); }\n}").logs.stderr == [
        "A cannot be used until method h() is declared\n"
    ]

    # A call's own variables, directory and input.
    assert java('System.getProperty("FOO")', envs={"FOO": "1"}).text == '"1"'
    assert java('System.getProperty("FOO")').text == "null"
    assert java('System.getProperty("user.dir")').text == '"/home/user"'
    assert java("new String(System.in.readAllBytes())", stdin="ab").text == '"ab"'

    # What Java cannot do is refused before it begins.
    with pytest.raises(LanguageCheckpointError, match="java: a JVM has threads"):
        sandbox.checkpoint(context="java")

    with pytest.raises(InvalidArgumentError, match="'java'"):
        java("1", transactional=True)

    # As confined as Python.
    confined = (
        'boolean shadow = new File("/etc/shadow").exists();\nboolean out = true;\n'
        'try { new Socket("1.1.1.1", 53); } catch (IOException e) { out = false; }\nshadow + "," + out'
    )
    assert java(confined).text == '"false,false"'

    # Replies take no lock that code may hold, and that one of its threads could leave behind when it is stopped.
    assert java(_HOLDS_A_LOCK, timeout=20).error is None

    # A time-out keeps the state, whether code computes, waits or shows something.
    for code in (
        "while (true) {}",
        "Thread.sleep(60_000)",
        'while (true) Display.html("x".repeat(100_000));',
    ):
        execution = java(code, timeout=1)
        assert (execution.error.kind, execution.state_lost) == ("time_limit", False)
        assert java("x").text == "7"

    # A JVM that ends takes its context along, and no other.
    sandbox.run_code("y = 1")
    assert java("System.exit(3)").state_lost
    assert sandbox.run_code("y").text == "1"
    assert java("1 + 1").text == "2"
