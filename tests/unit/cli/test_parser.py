"""The command line's own words: help for every command, and a sentence for every wrong argument."""

from __future__ import annotations

import argparse

import pytest

from fumehood.cli import main as command_line
from fumehood.cli.main import main
from fumehood.cli.parser import CommandParser


def _words() -> list[list[str]]:
    """Every command, and every verb of one, as it is typed."""
    found: list[list[str]] = []
    waiting: list[tuple[list[str], argparse.ArgumentParser]] = [([], command_line._parser())]

    while waiting:
        words, parser = waiting.pop()
        found.append(words)

        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [([*words, name], one) for name, one in action.choices.items()]

    return found


@pytest.mark.parametrize("words", _words(), ids=" ".join)
def test_every_command_has_a_help(words, capsys):
    """It says what each option is for, with whatever signs are in it."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['fumehood', *words])}")


@pytest.mark.parametrize(("command", "folder"), [("run", "the home directory"), ("chat", "/mnt/data")])
def test_the_help_says_where_files_go(command, folder, capsys):
    """Models are told that data lies elsewhere than a program finds its own."""
    with pytest.raises(SystemExit):
        main([command, "--help"])

    assert f"to DEST or its own name in {folder};" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "fumehood run: the following arguments are required: FILE"),
        (
            ["run", "-", "--timout", "3"],
            "fumehood run: there is no option '--timout'; did you mean '--timeout'?",
        ),
        (["run", "a.py", "b.py"], "fumehood run: 'b.py' is one argument too many"),
        (["run", "-", "--memory", "lots"], "fumehood run: argument --memory: 'lots' is no size"),
        (
            ["run", "-", "--isolation", "vms"],
            "--isolation 'vms' is none of none, landlock-only, namespaces",
        ),
        (
            ["run", "-", "--isolation", "vm"],
            "--isolation 'vm' is none of none, landlock-only, namespaces",
        ),
        (["dcotor"], "did you mean 'doctor'?"),
        (
            ["audit", "verfy", "x"],
            "fumehood audit: VERB 'verfy' is none of verify, export; did you mean 'verify'?",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(arguments, said, capsys):
    """Without the usage above it, with the way to the help, and with the exit code of the sandbox's other mistakes."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    shown = capsys.readouterr()
    assert ended.value.code == 64
    assert said in shown.err
    assert "--help` says what it takes" in shown.err
    assert "usage:" not in shown.err


def test_without_a_command_the_help_is_shown(capsys):
    """Whoever types the bare name wants to know what there is."""
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    """As every other program does."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("fumehood 0.")


def test_a_word_of_a_terminals_own_is_spelled_out(capsys):
    """What was typed may have been pasted from anywhere."""
    with pytest.raises(SystemExit):
        CommandParser(prog="fumehood").parse_args(["--\x1b[2J"])

    assert "\x1b" not in capsys.readouterr().err
