"""`fumehood chat` in a real terminal, against a model that follows a script.

The sandboxes of most tests live at a server that all of them share; the first test has an engine of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pexpect
import pytest
from tests.llm.scripted_server import Call, Dialect, Reply, Request, ScriptedServer

# The terminal's process is forked while the script's server runs in a thread, which newer Pythons warn of; the child
# becomes another program at once.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

PROMPT = "you> "
FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
# What it prints is not what is written there, so that the one is not taken for the other.
ENDLESS = "n = 5\nprint('run' + 'ning', flush=True)\nwhile True: pass"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PATIENCE_SECONDS = 60


def environment(**more: str) -> dict[str, str]:
    """No terminal's own marks but those that a test gives."""
    marks = (
        "KITTY",
        "TERM",
        "LC_TERMINAL",
        "TMUX",
        "STY",
        "FUMEHOOD",
        "OPENAI",
        "ANTHROPIC",
        "COLOR",
        "NO_COLOR",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(marks)}
    keys = {"OPENAI_API_KEY": "scripted-key", "ANTHROPIC_API_KEY": "scripted-key"}
    # No talk draws enough to be worth the import of a plotting library before it.
    return kept | keys | {"TERM": "xterm-256color", "FUMEHOOD_PRELOAD": ""} | more


class Chat:
    """A chat in a terminal of its own."""

    def __init__(self, server: ScriptedServer, folder: Path, *options: str, **marks: str) -> None:
        arguments = server.arguments
        argv = ["-m", "fumehood", "chat", "--model", arguments["model"], "--base-url", arguments["base_url"]]
        self.child = pexpect.spawn(
            sys.executable,
            [*argv, "--output", str(folder), *options],
            env=environment(**marks),
            encoding="utf-8",
            timeout=_PATIENCE_SECONDS,
            dimensions=(40, 200),
        )
        # All that reached the terminal, as it came.
        self.raw = ""
        self.wait_for(PROMPT)

    def say(self, line: str) -> str:
        """Type a line and return what is shown until the next prompt."""
        self.child.sendline(line)
        return self.wait_for(PROMPT)

    def wait_for(self, text: str) -> str:
        self.child.expect_exact(text)
        self.raw += self.child.before + text
        return _COLOURS.sub("", self.child.before).replace("\r\n", "\n")

    def end(self) -> str:
        """End the chat as people do and return its last words."""
        self.child.sendeof()
        self.child.expect(pexpect.EOF)
        self.raw += self.child.before
        self.child.close()
        assert self.child.exitstatus == 0
        return _COLOURS.sub("", self.child.before)


@pytest.fixture
def shared(server) -> dict[str, str]:
    """Where sandboxes are had without starting an engine."""
    return {"FUMEHOOD_URL": server.url, "FUMEHOOD_API_KEY": server.token}


@contextmanager
def chat(
    folder: Path, *script: Reply, options: tuple[str, ...] = (), dialect: Dialect = "anthropic", **marks: str
) -> Iterator[tuple[Chat, ScriptedServer]]:
    with ScriptedServer(dialect, *script) as server:
        opened = Chat(server, folder, *options, **marks)

        try:
            yield opened, server
        finally:
            opened.child.close(force=True)


def test_a_whole_talk(tmp_path):
    """Prose, code, output, an image, an error and its repair, files in and out, and the notebook at the end."""
    (tmp_path / "sales.csv").write_text("a,b\n1,2\n")
    notebook = tmp_path / "talk.ipynb"

    def look(request: Request) -> None:
        assert "/mnt/data/sales.csv" in request.system

    script = (
        Reply(text="I draw.", calls=[Call(FIGURE)], check=look),
        Reply(calls=[Call("print('half')\nopen('/mnt/data/out.txt', 'w').write('done')\n1 / 0")]),
        Reply(calls=[Call("print('whole')")]),
        Reply(text="That is it."),
    )
    options = ("--save", str(notebook), "--file", str(tmp_path / "sales.csv"))

    with chat(tmp_path, *script, options=options) as (talk, _):
        shown = talk.say("Draw.")

        for text in (
            "I draw.",
            "plt.plot([1, 2])",
            f"image: {tmp_path}/figure-1.png",
            "half\n",
            "ZeroDivisionError",
            "may repair it",
            "new file: /mnt/data/out.txt, 4 bytes; /get out.txt brings it",
            "whole\n",
            "That is it.",
            "4 requests; 40 tokens read, 20 written",
        ):
            assert text in shown
            shown = shown.partition(text)[2]

        assert "/mnt/data/out.txt  4 bytes" in talk.say("/files")
        assert str(tmp_path / "out.txt") in talk.say("/get out.txt")
        assert "there is no /mnt/data/nothing" in talk.say("/get nothing")
        assert "/save [PATH]" in talk.say("/help")
        assert "there is no /dance" in talk.say("/dance")
        assert "4 requests" in talk.end()

    assert (tmp_path / "figure-1.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out.txt").read_text() == "done"
    saved = nbformat.read(notebook, as_version=4)
    nbformat.validate(saved)
    assert [cell.cell_type for cell in saved.cells] == [
        "markdown",
        "markdown",
        "code",
        "code",
        "code",
        "markdown",
    ]
    # Without a terminal that can show it, no picture is sent to one.
    assert "\x1b_G" not in talk.raw
    assert "\x1b]" not in talk.raw


def test_ctrl_c_interrupts_what_goes_on_and_not_the_chat(tmp_path, shared):
    """A line at the prompt, a model that writes, a cell that runs; a second Ctrl-C does no harm."""

    def look(request: Request) -> None:
        assert "interrupted" in request.said[1][1]
        assert request.outputs == []

    code = "first = 1\nsecond = 2\n" + "third = 3" * 3
    script = (
        Reply(text="I write.", calls=[Call(code)], hold=True),
        Reply(text="Yes.", check=look),
        Reply(calls=[Call(ENDLESS)]),
        Reply(calls=[Call("print(n + 1)")]),
        Reply(text="Six."),
    )

    with chat(tmp_path, *script, dialect="openai", **shared) as (talk, server):
        talk.child.send("half a li")
        talk.wait_for("half a li")
        talk.child.sendintr()
        talk.wait_for(PROMPT)

        talk.child.sendline("Write.")
        # Code is seen line by line, in colours, while the model still writes it.
        assert "first = 1" in talk.wait_for("second")
        assert _COLOURS.search(talk.raw.partition("I write.")[2])
        assert server.holding.wait(_PATIENCE_SECONDS)
        talk.child.sendintr()
        assert "interrupted" in talk.wait_for(PROMPT)
        assert server.left.wait(_PATIENCE_SECONDS)
        assert "Yes." in talk.say("Well?")

        talk.child.sendline("Run.")
        talk.wait_for("running")
        talk.child.sendintr()
        talk.child.sendintr()
        assert "interrupted" in talk.wait_for(PROMPT)
        talk.child.sendline("And now?")

        # The second Ctrl-C may have met the prompt, and brought another one.
        while "6\n" not in talk.wait_for(PROMPT):
            pass

        talk.end()


def test_images_are_shown_where_the_terminal_can(tmp_path, shared):
    """Inside the terminal, and saved as well."""
    with chat(tmp_path, Reply(calls=[Call(FIGURE)]), Reply(text="Seen."), **shared, KITTY_WINDOW_ID="1") as (
        talk,
        _,
    ):
        shown = talk.say("Draw.")
        talk.end()

    begins = "\x1b_Ga=T,f=100,q=2,m=1;iVBOR"
    assert begins in talk.raw
    assert "\x1b\\" in talk.raw.partition(begins)[2]
    assert "image: " in shown
    assert (tmp_path / "figure-1.png").exists()


def test_no_escape_of_a_model_or_its_code_reaches_the_terminal(tmp_path, shared):
    """Titles, cursors, links and markup are spelled out wherever they come from."""
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/] :smile: \u202e"
    code = f"print({evil!r}); import sys; print({evil!r}, file=sys.stderr); open({evil!r}, 'w').write('x')\n{evil!r}"
    broken = f"raise ValueError({evil!r})"
    script = (
        Reply(text=evil, calls=[Call(code), Call(f"# {evil}\n1")]),
        Reply(calls=[Call(broken)]),
        Reply(calls=[Call(arguments=evil)]),
        Reply(text=evil, error="overloaded_error"),
    )

    with chat(tmp_path, *script, dialect="openai", **shared) as (talk, _):
        shown = talk.say("Be evil.")
        talk.say("/files")
        talk.end()

    for forbidden in ("\x1b]", "\x1b[2J", "\x07", "\u202e"):
        assert forbidden not in talk.raw.replace(talk.raw[: talk.raw.index(PROMPT)], "")

    assert "\\x1b]0;owned" in shown
    assert "[bold red]x[/] :smile:" in shown


def test_refusals_are_said_and_talk_is_forgotten_and_saved(tmp_path, shared):
    """A refusal comes with the way out, and the same question can be asked again; `/reset` and `/save` do as told."""

    def look(request: Request) -> None:
        assert [role for role, _ in request.said] == ["user"]

    refused = Reply(status=401, error="authentication_error", text="bad key")

    with chat(tmp_path, refused, Reply(text="One."), Reply(text="Two.", check=look), **shared) as (talk, _):
        shown = talk.say("First?")
        assert "refused the key" in shown
        assert "ANTHROPIC_API_KEY" in shown
        assert "One." in talk.say("First?")
        assert "forgotten" in talk.say("/reset")
        talk.say("Second?")
        assert "saved" in talk.say(f"/save {tmp_path}/second.ipynb")
        assert "No such file" in talk.say(f"/save {tmp_path}/nowhere/x.ipynb")
        talk.child.sendline("/quit")
        talk.child.expect(pexpect.EOF)

    saved = nbformat.read(tmp_path / "second.ipynb", as_version=4)
    assert [cell.source for cell in saved.cells] == ["**You:** Second?", "Two."]


@pytest.mark.parametrize("output", [["--output", "."], []], ids=["output", "no output"])
def test_without_a_terminal_it_answers_line_by_line(tmp_path, shared, output):
    """Questions from a pipe, plain text out: no prompt, no colours; new files are there if they were asked for.

    Their names are the guest's: one beside a project of the user could be run by its tools.
    """
    script = (
        Reply(calls=[Call("print(6 * 7); open('/mnt/data/conftest.py', 'w').write('kept')")]),
        Reply(text="It is 42."),
    )

    with ScriptedServer("openai-chat", *script) as server:
        arguments = server.arguments
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "fumehood",
                "chat",
                "--base-url",
                arguments["base_url"],
                *output,
            ],
            input="How much?\n",
            cwd=tmp_path,
            env=environment(FUMEHOOD_MODEL=arguments["model"], **shared),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert "42\n" in done.stdout
    assert "It is 42." in done.stdout
    assert "\x1b" not in done.stdout
    assert PROMPT not in done.stdout

    if output:
        assert (tmp_path / "conftest.py").read_text() == "kept"
    else:
        assert list(tmp_path.iterdir()) == []
        assert "not brought, and gone with the sandbox: /mnt/data/conftest.py; --output DIR" in done.stdout


def test_a_script_is_reported_that_nobody_answered(tmp_path):
    """By the exit code: nobody reads what was said meanwhile."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fumehood",
            "chat",
            "--base-url",
            "http://127.0.0.1:9/v1",
            "--output",
            str(tmp_path),
        ],
        input="Who is there?\n",
        # Without a key: a server of one's own may need none.
        env=environment(FUMEHOOD_MODEL="openai-chat:nobody", OPENAI_API_KEY=""),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be reached" in done.stdout + done.stderr
    assert "hint: check `--base-url` and the network" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "--model is missing"),
        (["--model", "openai:m"], "OPENAI_API_KEY is missing"),
        (["--model", "anthropic:m"], "ANTHROPIC_API_KEY is missing"),
        (["--model", "gpt-x"], "model='gpt-x' is refused"),
        (["--model", "openai:x", "--raw"], "there is no option '--raw'"),
    ],
    ids=["no model", "no key", "no other key", "no dialect", "raw"],
)
def test_wrong_options_are_reported_at_once(options, told):
    """With what is allowed instead."""
    done = subprocess.run(
        [sys.executable, "-m", "fumehood", "chat", *options],
        env=environment(
            **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), "") if "KEY" in told else {}
        ),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 64
    assert told in done.stderr
    assert "Provider" not in done.stderr
