"""input() and getpass()."""

from __future__ import annotations


def answers(context, *lines):
    left = list(lines)

    def on_message(header, _payload):
        if header["type"] == "input_request":
            context.answer(left.pop(0))

    return on_message


def test_input_is_answered(context):
    """The prompt goes out, the line comes back, without its newline."""
    outcome = context.run(
        "print('before', end='')\nname = input('Name? ')\nage = input()\n[name, age]",
        allow_stdin=True,
        on_message=answers(context, "Ada\n", "36"),
    )
    assert outcome.kinds == ["stream", "input_request", "input_request", "execute_result"]
    assert outcome.of("input_request")[0][1] == b"Name? "
    assert outcome.text == "['Ada', '36']"


def test_getpass_is_marked(context):
    """A password is asked for as such."""
    outcome = context.run(
        "import getpass\ngetpass.getpass('Key: ')", allow_stdin=True, on_message=answers(context, "secret")
    )
    assert outcome.of("input_request")[0][0]["password"] is True
    assert outcome.text == "'secret'"


def test_without_stdin_it_is_an_eof_error(context):
    """An execution that may not ask fails at once, and the message names the way out."""
    outcome = context.run("input('?')")
    assert outcome.error[0] == "EOFError"
    assert "on_input" in outcome.error[1]
    assert context.run("import sys\nsys.stdin.read()").text == "''"


def test_an_interrupted_question(context):
    """An interrupt ends the wait; an answer that comes too late is dropped."""

    def on_message(header, _payload):
        if header["type"] == "input_request":
            context.interrupt()

    outcome = context.run("input()", allow_stdin=True, on_message=on_message)
    assert outcome.error[0] == "KeyboardInterrupt"
    assert context.run("input()", allow_stdin=True, on_message=answers(context, "x")).text == "'x'"


def test_only_the_main_thread_may_ask(context):
    """Another thread gets an EOFError."""
    outcome = context.run(
        "import threading\nfound = []\n"
        "def ask():\n    try: input()\n    except EOFError as error: found.append(str(error))\n"
        "t = threading.Thread(target=ask); t.start(); t.join(); found",
        allow_stdin=True,
    )
    assert "main thread" in outcome.text
