"""Options that commands share, and their way into `Limits`.

A value is only given its type here; whether it is allowed is decided where the value is made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fumehood.bounds import BOUNDS, GIB, MIB, read_size
from fumehood.cli.parser import OneOf, Option, Options, PathWord
from fumehood.cli.terminal import CountedReader, waiting_for
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.values.languages import CONTEXT_LANGUAGES
from fumehood.values.limits import Limits
from fumehood.values.network import PRESETS, Network, meant_network, read_network
from fumehood.values.sandbox import DEFAULT_ISOLATION, ISOLATION_LEVELS
from fumehood.values.template import Template

if TYPE_CHECKING:
    from fumehood.api.sandbox import Sandbox

# A user who runs a file wants its output; the default of the library is meant for the context of a model.
_STDOUT_BYTES = 64 * MIB

# Words of `--network` that may stand without a dot.
_NETWORK_WORDS = ("none", "internet", "localhost", *PRESETS)

# The names of arguments in errors: on the command line they are options.
_OPTIONS = {
    "template": "--template",
    "limits.wall_seconds": "--timeout",
    "timeout": "--lifetime",
    "limits.memory_bytes": "--memory",
    "limits.disk_bytes": "--disk",
    "envs name": "--env",
    "isolation": "--isolation",
    "network.allow": "--network",
}


class Seconds(click.ParamType[float]):
    """A number of seconds; the code that uses the number checks its range."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or refuse the word."""
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds, such as 90 or 2.5", param, ctx)


class Size(click.ParamType[int]):
    """A number of bytes with a unit."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes, or refuse the word."""
        size = read_size(str(value))

        if size is None:
            self.fail(f"{value!r} is no size; write a number and K, M, G or T, such as 512M", param, ctx)

        return size


def sandbox_options(
    *, files_go_to: str = "the home directory", only: Collection[str] | None = None
) -> list[Option]:
    """Return the options of a new sandbox.

    Args:
        files_go_to: A description of the folder for uploaded files.
        only: The names of the options; None: all of them.
    """
    default = Limits()
    group: dict[str, Any] = {"heading": "sandbox"}
    options = [
        Option(
            ["--template"],
            default="default",
            metavar="NAME",
            help="what it starts from; see `fumehood template list`",
            **group,
        ),
        Option(
            ["--timeout"],
            type=Seconds(),
            metavar="SECONDS",
            help=f"time of one execution (default: {default.wall_seconds:g})",
            **group,
        ),
        Option(
            ["--lifetime"],
            type=Seconds(),
            metavar="SECONDS",
            help="how long the sandbox lives on should this command be cut off from it; while the command runs, its "
            "life is renewed (default: the server's, or no end without a server)",
            **group,
        ),
        Option(
            ["--memory"],
            type=Size(),
            metavar="SIZE",
            help=f"memory, such as 512M or 2G (default: {_size_text(default.memory_bytes)})",
            **group,
        ),
        Option(
            ["--disk"],
            type=Size(),
            metavar="SIZE",
            help=f"room of the writable directories (default: {_size_text(default.disk_bytes)})",
            **group,
        ),
        Option(
            ["--env"],
            multiple=True,
            metavar="NAME=VALUE",
            help="environment variable; may be repeated",
            **group,
        ),
        Option(
            ["--file"],
            multiple=True,
            type=PathWord(),
            metavar="PATH[:DEST]",
            help=f"upload a file or folder first, to DEST or its own name in {files_go_to}; may be repeated",
            **group,
        ),
        Option(
            ["--strict"],
            is_flag=True,
            help="refuse to start when a layer of isolation is missing",
            **group,
        ),
        Option(
            ["--isolation"],
            type=OneOf(ISOLATION_LEVELS),
            metavar="LEVEL",
            help=f"the weakest isolation that will do: {', '.join(ISOLATION_LEVELS)} (default: {DEFAULT_ISOLATION})",
            **group,
        ),
        Option(
            ["--network"],
            multiple=True,
            metavar="WHAT",
            help="what it may reach: a rule such as api.example.com or '*.example.org:443', pip, or internet; "
            "may be repeated (default: nothing)",
            **group,
        ),
    ]
    return [option for option in options if only is None or option.opts[0] in only]


def language_option() -> Option:
    """Return the option for the language of code whose file name does not show it."""
    return Option(
        ["--language"],
        type=OneOf([name for language in CONTEXT_LANGUAGES.values() for name in language.names]),
        metavar="NAME",
        help="what the code is written in (default: what the name of its file says, else python)",
    )


def raw_option() -> Option:
    """Return the option that passes a guest's text on as it is."""
    return Option(["--raw"], is_flag=True, help="pass terminal escapes of the code on to this terminal")


def check_folder(path: str, option: str) -> None:
    """Make the folder for results and check that it can be written, before anything runs.

    Raises:
        InvalidArgumentError: The folder cannot be made or written to.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            field=option, value=path, allowed=f"a folder that can be made here ({error.strerror})"
        ) from None

    if not os.access(path, os.W_OK | os.X_OK):
        raise InvalidArgumentError(field=option, value=path, allowed="a folder that you may write to")


def check_file(path: str, option: str) -> None:
    """Check that a file can be written, before anything runs.

    Raises:
        InvalidArgumentError: The path is a folder, or is in a folder that does not exist or cannot be written.
    """
    folder = os.path.dirname(path) or "."

    if os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidArgumentError(
            field=option,
            value=path,
            allowed="the name of a file in a folder that is there and that you may write to",
        )


def open_sandbox(
    options: Options, preload: tuple[str, ...] | None = None, *, folder: str = "", **limits: float
) -> Sandbox:
    """Start the sandbox that the options describe, the only one of this process, and upload the files that they name.

    Args:
        options: The options of the command.
        preload: The modules of the default template to import before the code runs; None: all in its preload list.
        folder: Where files without a DEST go; empty: the home directory.
        limits: Limits for which there is no option.
    """
    # Imported late: `--help` needs no engine.
    from fumehood.assemble import begin_start, chosen_backend, has_server, read_settings

    uploads = read_uploads(options.file, folder=folder)
    arguments = sandbox_arguments(options, **limits)

    # A server has imported them already.
    if arguments["template"] == Template().name and not has_server():
        preload = read_settings().preload if preload is None else preload
        arguments["template"] = Template(preload=preload)
        begin_start(arguments["template"])

    # While those processes start.
    from fumehood.api.sandbox import Sandbox

    with naming_arguments(_OPTIONS):
        sandbox = Sandbox(**arguments, backend=chosen_backend(has_pool=False))

    if not uploads:
        return sandbox

    try:
        with waiting_for("uploading", sum(os.path.getsize(path) for path, _ in uploads)) as step:
            for path, destination in uploads:
                with open(path, "rb") as file:
                    sandbox.files.write(destination, CountedReader(file, step))
    except BaseException:
        sandbox.kill()
        raise

    return sandbox


def sandbox_arguments(options: Options, **limits: float) -> dict[str, Any]:
    """Return the arguments of a new sandbox, by name."""
    with naming_arguments(_OPTIONS):
        return {
            "template": options.template,
            "limits": _limits(options, limits),
            "timeout": options.lifetime,
            "envs": read_envs(options.env),
            "strict": options.strict,
            "isolation": options.isolation,
            "network": read_network_words(options.network),
        }


def read_network_words(words: Sequence[str]) -> Network:
    """Read the words of `--network`.

    Raises:
        InvalidArgumentError: A word is no rule, or a name without a dot and without a port: more often a mistyped `pip`
            than a host, which would be allowed without a word.
    """
    for word in words:
        if word not in _NETWORK_WORDS and not set(word) & set(".:"):
            allowed = (
                "pip, internet, or a rule such as api.example.com; a host whose name has no dot is given with its "
                f"port, such as wiki:80{meant_network(word)}"
            )
            raise InvalidArgumentError(field="--network", value=word, allowed=allowed)

    return read_network([*words])


def read_uploads(given: Sequence[str], *, folder: str = "") -> list[tuple[str, str]]:
    """Read options of the form PATH[:DEST]: files of this machine, or folders of them, each with its path inside.

    Args:
        given: The words.
        folder: Where files without a DEST go; empty: the home directory.

    Raises:
        InvalidArgumentError: A word names no file.
        OSError: A file cannot be read.
    """
    return [pair for word in given for pair in _uploads(word, folder)]


def _uploads(given: str, folder: str) -> list[tuple[str, str]]:
    """Return files of this machine, each with its path inside; checks before a sandbox starts that they can be read."""
    path, destination = split_upload(given)
    destination = destination if ":" in given or not folder else f"{folder}/{destination}"
    found = [(path, destination)]

    if os.path.isdir(path):
        # Imported late: few upload folders.
        from fumehood.api.transfers import local_files

        found = [(str(file), inside) for file, inside in local_files(Path(path), destination)]

    for file, _ in found:
        with open(file, "rb"):
            pass

    return found


def split_upload(given: str) -> tuple[str, str]:
    """Return the path on this machine that PATH[:DEST] names, and its path inside; no file is accessed.

    Raises:
        InvalidArgumentError: The text names no file.
    """
    path, _, destination = given.partition(":")

    if not path:
        raise InvalidArgumentError(
            field="--file",
            value=given,
            allowed="PATH or PATH:DEST: a file or folder of this machine, and its path inside",
        )

    return path, destination or os.path.basename(path.rstrip("/"))


def read_sizes(options: Options) -> dict[str, float]:
    """Return the sizes that were given, by the names of the limits.

    Raises:
        InvalidArgumentError: A size is smaller than a sandbox can be.
    """
    sizes: dict[str, float] = {}

    # The error names units, because a plain number of bytes is seldom meant.
    for option, least in (
        ("memory", BOUNDS["memory_bytes"].low),
        ("disk", BOUNDS["disk_bytes"].low),
    ):
        size = getattr(options, option)

        if size is not None and size < least:
            allowed = f"a size such as 512M or 2G, of {int(least) // MIB}M or more; a number alone is bytes"
            raise InvalidArgumentError(field=f"--{option}", value=size, allowed=allowed)

        if size is not None:
            sizes[f"{option}_bytes"] = size

    return sizes


def _limits(options: Options, others: Mapping[str, Any]) -> Limits:
    default = Limits()
    sizes = read_sizes(options)
    return Limits(
        wall_seconds=default.wall_seconds if options.timeout is None else options.timeout,
        memory_bytes=int(sizes.get("memory_bytes", default.memory_bytes)),
        disk_bytes=int(sizes.get("disk_bytes", default.disk_bytes)),
        stdout_bytes=_STDOUT_BYTES,
        stderr_bytes=_STDOUT_BYTES,
        **others,
    )


def read_envs(given: Sequence[str], option: str = "--env") -> dict[str, str]:
    """Read options of the form NAME=VALUE."""
    envs: dict[str, str] = {}

    for pair in given:
        name, equals, value = pair.partition("=")

        if not equals or not name:
            raise InvalidArgumentError(field=option, value=pair, allowed="NAME=VALUE")

        envs[name] = value

    return envs


def _size_text(size_bytes: int) -> str:
    return f"{size_bytes // GIB}G" if size_bytes % GIB == 0 else f"{size_bytes // MIB}M"
