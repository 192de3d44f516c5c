"""The words of the command line: commands, options and arguments as data, their help, and a sentence for a wrong one.

It recognises click's exceptions by type and never by message. A wrong argument gives one sentence with the word that
was probably meant, without the usage above it, and the exit code 64, since click's own 2 is a code that programs of the
user end with as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import click
from click.exceptions import Exit
from click.shell_completion import CompletionItem

from fumehood.text import visible

# EX_USAGE of sysexits.h, so that it is not taken for a code of the user's code.
EXIT_USAGE = 64
_WIDTH = 110
# The most words that are listed beside the suggested one.
_FEW_CHOICES = 8

# The values of the options and arguments of a command, by name.
Options = SimpleNamespace


class WrongWordError(click.UsageError):
    """A wrong word on the command line, refused with a message for the user."""


class Option(click.Option):
    """An option, listed in the help under a heading.

    Args:
        names: The names of the option in click's form, such as `["-o", "--output"]`.
        heading: The group of options that it belongs to in the help.
        others: Arguments of `click.Option`.
    """

    def __init__(self, names: Sequence[str], *, heading: str = "options", **others: Any) -> None:
        super().__init__(names, **others)
        self.heading = heading


class Argument(click.Argument):
    """An argument with a line in the help.

    Args:
        name: Its name in the options of the command.
        about: Its description.
        others: Arguments of `click.Argument`.
    """

    def __init__(self, name: str, *, about: str, **others: Any) -> None:
        super().__init__([name], **others)
        self.about = about


class PathWord(click.ParamType[str]):
    """The name of a file or a folder, completed by the shell; its existence is not checked here."""

    name = "path"

    def __init__(self, *, is_folder: bool = False) -> None:
        self._kind = "dir" if is_folder else "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the path."""
        return [CompletionItem(incomplete, type=self._kind)]


class OneOf(click.ParamType[str]):
    """A word that must be one of a few.

    Args:
        words: The allowed words.
    """

    name = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, or refuse it with the list of those that are allowed."""
        if value not in self.words:
            name = "argument" if param is None else _shown_name(param)
            raise WrongWordError(_about_choice(name, value, self.words), ctx)

        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the words that begin with the typed text."""
        return [CompletionItem(word) for word in self.words if word.startswith(incomplete)]


class _Help(click.Command):
    """Writes the help: arguments, then options under their headings."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), prefix="usage: ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write arguments and options."""
        arguments = [(one.make_metavar(ctx), one.about) for one in self.params if isinstance(one, Argument)]

        if arguments:
            with formatter.section("arguments"):
                formatter.write_dl(arguments)

        headings: dict[str, list[tuple[str, str]]] = {}

        for one in self.get_params(ctx):
            if not isinstance(one, click.Argument) and (record := one.get_help_record(ctx)) is not None:
                headings.setdefault(getattr(one, "heading", "options"), []).append(record)

        for heading in sorted(headings, key=lambda name: name != "options"):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option that shows the help."""
        option = super().get_help_option(ctx)

        if option is not None:
            option.help = "show this text, and end"

        return option

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: arguments are written with the options."""


class Command(_Help):
    """A command whose options are handed to a function as one object.

    Args:
        name: The name as it is typed.
        run: Called with the options; returns the exit code.
        brief: The line in the list of commands.
        about: The text of its help; the brief line unless given.
        epilog: Text below the options.
        params: Its options and arguments.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Options], int],
        *,
        brief: str,
        params: Sequence[click.Parameter] = (),
        about: str = "",
        epilog: str | None = None,
    ) -> None:
        super().__init__(
            name,
            params=list(params),
            short_help=brief,
            help=about or brief,
            epilog=epilog,
            context_settings={"max_content_width": _WIDTH},
        )
        self._run = run

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words; a word that no argument takes is refused."""
        ctx.allow_extra_args = True

        try:
            left = super().parse_args(ctx, args)
        except click.UsageError as error:
            # The parser of options does not know which command they belong to.
            error.ctx = error.ctx or ctx
            raise

        if left and not ctx.resilient_parsing:
            raise WrongWordError(f"{left[0]!r} is one argument too many", ctx)

        return left

    def invoke(self, ctx: click.Context) -> int:
        """Run the command and return the exit code."""
        return self._run(Options(**ctx.params))


class Verbs(_Help, click.Group):
    """A command that has commands: `fumehood template build`.

    Args:
        name: The name as it is typed.
        commands: The verbs.
        brief: The line in the list of commands.
        about: The text of its help; the brief line unless given.
        default: The verb that runs when none is given; None: a verb must be given.
    """

    def __init__(
        self, name: str, commands: Sequence[Command], *, brief: str, about: str = "", default: str = ""
    ) -> None:
        super().__init__(
            name,
            {str(one.name): one for one in commands},
            short_help=brief,
            help=about or brief,
            no_args_is_help=False,
            subcommand_metavar="VERB ...",
            context_settings={"max_content_width": _WIDTH},
        )
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which they were given."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own words; options without a verb belong to the default verb."""
        if not args and not self._default and not ctx.resilient_parsing:
            verbs = ", ".join(self.list_commands(ctx))
            raise WrongWordError(f"the following arguments are required: VERB, one of {verbs}", ctx)

        is_default = self._default and (
            not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        )
        return super().parse_args(ctx, [self._default, *args] if is_default else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or refuse the word."""
        verbs = self.list_commands(ctx)

        if len(verbs) == 1 and "." in args[0] and not ctx.resilient_parsing:
            # A file: the only verb has been forgotten.
            command = f"{ctx.command_path} {verbs[0]} {args[0]}"
            raise WrongWordError(f"there is no verb {args[0]!r}; did you mean `{command}`?", ctx)

        _check_command("VERB", args[0], verbs, ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs."""
        with formatter.section("verbs"):
            formatter.write_dl([(name, one.get_short_help_str(200)) for name, one in self.commands.items()])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options and verbs."""
        _Help.format_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class LazyGroup(_Help, click.Group):
    """The root command; the module of a subcommand is imported when it runs, not when it is listed.

    Args:
        name: The name of the program.
        listed: The brief line of each command, by command, under each heading of the help.
        load: Imports and returns a command.
        others: Arguments of `click.Group`.
    """

    def __init__(
        self,
        name: str,
        listed: Mapping[str, Mapping[str, str]],
        load: Callable[[str], click.Command],
        **others: Any,
    ) -> None:
        super().__init__(
            name,
            invoke_without_command=True,
            subcommand_metavar="COMMAND ...",
            # Commands inherit the names of their group.
            context_settings={"max_content_width": _WIDTH, "help_option_names": ["-h", "--help"]},
            **others,
        )
        self._listed = listed
        self._load = load
        self._names = [name for commands in listed.values() for name in commands]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return self._names

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command and return it, or None for an unknown name."""
        return self._load(cmd_name) if cmd_name in self._names else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or refuse the word."""
        if args[0] not in self._names:
            # Others have commands of the names of these options.
            _check_command("COMMAND", args[0], [*self._names, "--help", "--version"], ctx)

        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, then the options."""
        for heading, commands in self._listed.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))

        _Help.format_options(self, ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer commands without importing them."""
        commands = [
            CompletionItem(name, help=brief)
            for listed in self._listed.values()
            for name, brief in listed.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


def start(command: click.Command, program: str, words: Sequence[str]) -> int:
    """Read the words of a command and run it.

    Returns:
        The exit code.

    Raises:
        SystemExit: The help was printed, or a word is wrong: then the fault was printed, and the exit code is 64.
    """
    try:
        with command.make_context(program, list(words)) as context:
            return int(command.invoke(context) or 0)
    except click.UsageError as error:
        path = program if error.ctx is None else error.ctx.command_path
        text = f"{path}: {_sentence(error)}\n\nhint: `{path} --help` says what it takes"
        print(visible(text), file=sys.stderr)
        raise SystemExit(EXIT_USAGE) from None
    except Exit as ended:
        raise SystemExit(ended.exit_code) from None


def _sentence(error: click.UsageError) -> str:
    match error:
        case click.NoSuchOption():
            known = [] if error.ctx is None else _option_names(error.ctx)
            return f"there is no option {error.option_name!r}{_meant(error.option_name, known)}"
        case click.MissingParameter() if error.param is not None:
            words = error.param.type.words if isinstance(error.param.type, OneOf) else ()
            one_of = f", one of {', '.join(words)}" if words else ""
            return f"the following arguments are required: {_shown_name(error.param)}{one_of}"
        case click.BadParameter() if error.param is not None:
            return f"argument {_shown_name(error.param)}: {error.message}"

    return error.message


def _option_names(ctx: click.Context) -> list[str]:
    return [name for one in ctx.command.get_params(ctx) if isinstance(one, click.Option) for name in one.opts]


def _shown_name(param: click.Parameter) -> str:
    """Returns an option as it is typed, or an argument as its command's usage shows it."""
    return "/".join(param.opts) if isinstance(param, click.Option) else param.human_readable_name


def _check_command(kind: str, word: str, known: Sequence[str], ctx: click.Context) -> None:
    if word not in known and not ctx.resilient_parsing:
        raise WrongWordError(_about_choice(kind, word, known), ctx)


def _about_choice(name: str, word: str, choices: Sequence[str]) -> str:
    """Returns the message for a wrong word; if there are many choices, it names only the similar one."""
    meant = _meant(word, choices)

    if meant and len(choices) > _FEW_CHOICES:
        return f"there is no {name.lower()} {word!r}{meant}"

    return f"{name} {word!r} is not one of {', '.join(choices)}{meant}"


def _meant(word: str, known: Sequence[str]) -> str:
    # Imported late: only a wrong word needs it.
    from difflib import get_close_matches

    names = {_letters(name): name for name in known}
    letters = _letters(word)
    begun = [one for one in names if letters and one.startswith(letters)]
    close = begun if len(begun) == 1 else get_close_matches(letters, names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def _letters(name: str) -> str:
    """Returns a name for comparison, without the dashes that all options share."""
    return name.lower().replace("_", "").replace("-", "")
