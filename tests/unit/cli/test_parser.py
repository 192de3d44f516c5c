"""The command line's own words: help for every command, and a sentence for every wrong argument."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import click
import pytest

from fumehood.cli.main import COMMANDS, PROGRAM, main, root
from fumehood.cli.parser import Command, Option, Verbs, start
from fumehood.cli.setting_flags import setting_flags
from fumehood.server.settings import ServerSettings
from fumehood.values.limits import Limits


def _words() -> list[list[str]]:
    """Every command, and every verb of one, as it is typed."""
    found: list[list[str]] = []
    waiting: list[tuple[list[str], click.Command]] = [([], root())]

    while waiting:
        words, command = waiting.pop()
        found.append(words)

        if isinstance(command, click.Group):
            context = click.Context(command)
            names = command.list_commands(context)
            waiting += [([*words, name], command.get_command(context, name)) for name in names]

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
        (["completion"], "are required: SHELL, one of bash, zsh, fish"),
        (
            ["run", "-", "--timout", "3"],
            "fumehood run: there is no option '--timout'; did you mean '--timeout'?",
        ),
        (["doctor", "b.py"], "fumehood doctor: 'b.py' is one argument too many"),
        (["run", "-c"], "fumehood run: Option '-c' requires an argument."),
        (["run", "-c", "1", "--flag"], "fumehood run: there is no option '--flag'"),
        (["run", "a.py", "--flag", "b"], "fumehood run: there is no option '--flag'"),
        (["run", "-", "--memory", "lots"], "fumehood run: argument --memory: 'lots' is no size"),
        (
            ["run", "-", "--isolation", "vms"],
            "--isolation 'vms' is not one of none, landlock-only, namespaces",
        ),
        (
            ["run", "-", "--isolation", "vm"],
            "--isolation 'vm' is not one of none, landlock-only, namespaces",
        ),
        (["dcotor"], "fumehood: there is no command 'dcotor'; did you mean 'doctor'?"),
        (["serv"], "did you mean 'serve'?"),
        (["run", "-", "--no_daemon"], "there is no option '--no_daemon'; did you mean '--no-daemon'?"),
        (["run", "-", "--nodaemon"], "did you mean '--no-daemon'?"),
        (["run", "-", "--mem", "1G"], "did you mean '--memory'?"),
        (["notebook", "nosuch.ipynb"], "did you mean `fumehood notebook run nosuch.ipynb`?"),
        (
            ["audit", "verfy", "x"],
            "fumehood audit: VERB 'verfy' is not one of verify, export, server; did you mean 'verify'?",
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


@pytest.mark.parametrize("word", ["-t", "--o", "--x"])
def test_dashes_make_no_word_like_another(word, capsys):
    """What all options have in common is no reason to name one of them."""
    with pytest.raises(SystemExit):
        main(["run", word, "a", "b.py"])

    assert "did you mean" not in capsys.readouterr().err


def test_without_a_command_the_help_is_shown(capsys):
    """Whoever types the bare name wants to know what there is."""
    assert main([]) == 0
    assert "commands:" in capsys.readouterr().out


def test_the_version_is_reported(capsys):
    """As every other program does."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("fumehood 0.")


def test_a_word_of_a_terminals_own_is_spelled_out(capsys):
    """What was typed may have been pasted from anywhere."""
    for words in (["--\x1b[2J"], ["\x1b[2J"], ["run", "-", "--memory", "\x1b[2J"]):
        with pytest.raises(SystemExit):
            main(words)

        assert "\x1b" not in capsys.readouterr().err


def test_the_list_of_commands_says_what_each_says_of_itself():
    """The list is read without the commands; it must not say something else."""
    group = root()
    context = click.Context(group)

    for name, brief in (item for listed in COMMANDS.values() for item in listed.items()):
        command = group.get_command(context, name)
        assert (command.name, command.short_help) == (name, brief)


def test_help_and_version_import_no_command():
    """They cost a start of Python and of click, and nothing else of ours."""
    for word in ("--help", "--version", "dcotor"):
        code = f"import sys\nfrom fumehood.cli.main import main\ntry: main([{word!r}])\nexcept SystemExit: pass\n"
        code += "print(*sorted(name for name in sys.modules if name.startswith('fumehood')), file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert set(done.stderr.splitlines()[-1].split()) <= {
            "fumehood",
            "fumehood.bounds",
            "fumehood.cli",
            "fumehood.cli.full_output",
            "fumehood.cli.terminal",
            "fumehood.cli.main",
            "fumehood.cli.parser",
            "fumehood.errors",
            "fumehood.text",
        }


@pytest.mark.parametrize("command", ["run", "serve"])
def test_the_help_of_a_command_starts_no_engine(command):
    """Nor does it load the web framework of a server."""
    code = f"import sys\nfrom fumehood.cli.main import main\ntry: main([{command!r}, '--help'])\n"
    code += "except SystemExit: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"asyncio", "fastapi", "fumehood.portal", "fumehood.engine.backend"} & set(done.stderr.split())


def test_settings_are_listed_under_headings(capsys):
    """Each under one, and the headings name settings that exist."""
    with pytest.raises(SystemExit):
        main(["serve", "--help"])

    shown = capsys.readouterr().out
    grouped = [name for names in ServerSettings.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {item.name for item in fields(ServerSettings)}

    for heading, names in ServerSettings.GROUPS.items():
        (section,) = re.findall(rf"^{heading}:\n((?:  .*\n)+)", shown, re.MULTILINE)
        assert all(f"  --{name.replace('_', '-')} " in section for name in names)


def test_defaults_are_those_of_the_library(capsys):
    """The help reads them where they are declared."""
    with pytest.raises(SystemExit):
        main(["run", "--help"])

    shown = " ".join(capsys.readouterr().out.split())
    assert f"time of one execution (default: {Limits().wall_seconds:g})" in shown
    assert "512M or 2G (default: 1G)" in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_its_script(shell, capsys):
    """The script calls the program back for what may follow."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_FUMEHOOD_COMPLETE={shell}_complete" in script
    assert PROGRAM in script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("fumehood do", {"doctor"}),
        ("fumehood run --isol", {"--isolation"}),
        ("fumehood run --isolation name", {"namespaces"}),
        ("fumehood template ", {"build", "list", "prune", "remove"}),
        ("fumehood completion z", {"zsh"}),
    ],
)
def test_bash_completes_what_is_typed(typed, offered, tmp_path):
    """By the script itself, in a real shell."""
    program = tmp_path / "fumehood"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fumehood "$@"\n')
    program.chmod(0o755)
    script = f"""
        PATH={tmp_path}:$PATH
        eval "$(fumehood completion bash)"
        COMP_WORDS=({typed} {"''" if typed.endswith(" ") else ""})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _fumehood_completion fumehood
        printf '%s\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


def test_options_alone_are_those_of_the_default_verb():
    """`demo --fast` is `demo time-travel --fast`; help stays the group's."""
    given = []
    show = Command(
        "show",
        lambda options: given.append(options.fast) or 0,
        brief="b",
        params=[Option(["--fast"], is_flag=True)],
    )
    demo = Verbs("demo", [show], brief="b", default="show")

    for words in ([], ["--fast"], ["show", "--fast"]):
        assert start(demo, "demo", words) == 0

    assert given == [False, True, True]

    with pytest.raises(SystemExit):
        start(demo, "demo", ["--help"])


def test_settings_are_listed_as_they_are_grouped():
    """What most want to set stands first."""
    names = [name for option in setting_flags(ServerSettings) for name in option.opts]
    assert names[2:5] == ["--host", "--port", "--token"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["help"], "there is no command 'help'; did you mean '--help'?"),
        (["version"], "there is no command 'version'; did you mean '--version'?"),
        (["kernel"], "the following arguments are required: VERB, one of install, list, remove, start"),
    ],
    ids=["help", "version", "verb"],
)
def test_words_of_other_programs_lead_to_ours(words, said, capsys):
    """What is typed first at a program that one does not know yet."""
    with pytest.raises(SystemExit):
        main(words)

    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["run"], ["template", "build"]], ids=["root", "command", "verb"])
def test_the_short_option_shows_the_help(words, capsys):
    """As nearly everywhere."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "-h"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: fumehood", *words]))
