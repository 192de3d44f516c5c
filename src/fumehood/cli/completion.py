"""`fumehood completion SHELL`: a script with which a shell completes commands, options and files.

The script calls `fumehood` again, with the words typed so far in variables; `main` then answers with what may follow.
It only prints.
"""

from __future__ import annotations

import sys

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from fumehood.cli.parser import Argument, Command, OneOf, Options

VARIABLE = "_FUMEHOOD_COMPLETE"
_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


def run(options: Options) -> int:
    """Print the script and return the exit code."""
    context = click.get_current_context().find_root()
    shell = _SHELLS[options.shell](context.command, {}, str(context.info_name), VARIABLE)
    sys.stdout.write(shell.source())
    return 0


def answer(command: click.Command, program: str, instruction: str) -> int:
    """Print what may follow the words that the shell's script has put into its variables; return the exit code."""
    shell = _SHELLS.get(instruction.removesuffix("_complete"))

    if shell is None:
        return 1

    print(shell(command, {}, program, VARIABLE).complete())
    return 0


COMPLETION = Command(
    "completion",
    run,
    brief="print a script with which a shell completes commands and options",
    about="Print a script with which a shell completes commands, options and files. "
    'For bash, `eval "$(fumehood completion bash)"` in ~/.bashrc; for zsh, the same with zsh in ~/.zshrc; for fish, '
    "`fumehood completion fish > ~/.config/fish/completions/fumehood.fish`.",
    params=[Argument("shell", metavar="SHELL", type=OneOf(list(_SHELLS)), about="bash, zsh or fish")],
)
