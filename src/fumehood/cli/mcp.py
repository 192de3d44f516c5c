"""`fumehood mcp`: sandboxes for a host of models, over standard input and output or over HTTP.

Runs in the user's terminal, or is started by the host. It only turns flags into calls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fumehood.cli.extras import require_extra
from fumehood.cli.options import check_folder, read_envs, read_sizes, read_uploads, sandbox_options
from fumehood.cli.parser import Command, Option, Options, PathWord
from fumehood.cli.terminal import note
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.server.settings import load_settings
from fumehood.values.guest_paths import DATA_PATH
from fumehood.values.limits import Limits

if TYPE_CHECKING:
    from fumehood.mcp.setup import Setup

# The most network that a model may give a sandbox by default: enough for packages.
_MAX_NETWORK = "pip"
_OF_SANDBOXES = (
    "--template",
    "--timeout",
    "--memory",
    "--disk",
    "--env",
    "--file",
    "--strict",
    "--isolation",
)
_OF_HERE = ("--folder", "--output", "--tools")
_UNSET: tuple[object, ...] = (None, "", (), [], False, "default")


def run(options: Options) -> int:
    """Serve, and return the exit code."""
    if options.print_config:
        from fumehood.mcp.hosts import Launch, config_for, endpoint_of

        with naming_arguments({"host": "--print-config", "url": "--url"}):
            url = endpoint_of(options.url) if options.url else ""
            launch = Launch(
                argv=(sys.executable, "-P", "-m", "fumehood", "mcp", *_launch_words(options)), url=url
            )
            print(config_for(options.print_config, launch))

        return 0

    require_extra("mcp", "mcp", command="mcp")
    most = options.max_network or os.environ.get("FUMEHOOD_MAX_NETWORK") or _MAX_NETWORK

    if not options.http:
        _check_unheard(options)
        # Imported late: only this way needs the SDK.
        from fumehood.mcp.stdio import serve_stdio

        if sys.stdin.isatty():
            note(
                "this waits for a host that speaks MCP, and no host sits at a terminal; what lets yours start it, "
                "`fumehood mcp --print-config HOST` prints; Ctrl-C ends it"
            )

        with naming_arguments(
            {
                "max_network": "--max-network" if options.max_network else "FUMEHOOD_MAX_NETWORK",
                "tools": "--tools",
            }
        ):
            return serve_stdio(most, _setup(options), tools=_words(options.tools))

    _check_made_here(options)
    require_extra("server", "fastapi", "uvicorn", "sqlalchemy", "obstore", command="mcp --http")
    from fumehood.server.run import serve

    flags = {
        "host": options.host,
        "port": options.port,
        "max_network": most,
        "dialects": ("mcp",),
    }
    settings, sources = load_settings(flags, environ=os.environ)
    # What this command chooses by itself was not given.
    sources["dialects"] = "default"

    if not options.max_network:
        sources["max_network"] = "environment" if os.environ.get("FUMEHOOD_MAX_NETWORK") else "default"

    return serve(settings, sources)


def _words(given: Sequence[str]) -> list[str]:
    return [word for words in given for word in words.replace(",", " ").split()]


def _setup(options: Options) -> Setup:
    """Return the default options of sandboxes.

    Raises:
        InvalidArgumentError: A value is refused.
        OSError: A file cannot be read.
    """
    # Imported late: it needs the engine's types.
    from fumehood.mcp.setup import Setup, files_of

    if options.folder:
        files_of(options.folder)

    if options.output:
        check_folder(options.output, "--output")

    with naming_arguments({"limits.wall_seconds": "--timeout"}):
        seconds = Limits() if options.timeout is None else Limits(wall_seconds=options.timeout)

    return Setup(
        template=options.template,
        limits=read_sizes(options),
        envs=read_envs(options.env),
        strict=options.strict,
        isolation=options.isolation,
        run_seconds=seconds.wall_seconds,
        folder=options.folder,
        files=read_uploads(options.file, folder=DATA_PATH),
        output=options.output,
    )


def _given(options: Options) -> dict[str, list[str]]:
    """Return the options about sandboxes that were given, by name, with their values as words."""
    given: dict[str, list[str]] = {}

    for option in (*_OF_SANDBOXES, *_OF_HERE):
        value = getattr(options, option.removeprefix("--"))

        if value not in _UNSET:
            given[option] = (
                [str(word) for word in value] if isinstance(value, (list, tuple)) else [str(value)]
            )

    return given


def _launch_words(options: Options) -> list[str]:
    """Return the command line for a host with the same options; paths are absolute, since it starts elsewhere."""
    words: list[str] = ["--max-network", options.max_network] if options.max_network else []

    for option, values in _given(options).items():
        for value in values:
            path, colon, destination = value.partition(":") if option == "--file" else (value, "", "")
            is_path = option in ("--file", "--folder", "--output")
            words += (
                [option]
                if value == "True"
                else [option, (os.path.abspath(path) if is_path else path) + colon + destination]
            )

    return words


def _check_made_here(options: Options) -> None:
    """Refuse options of sandboxes if the sandboxes are not made by this process."""
    for option, values in _given(options).items():
        raise InvalidArgumentError(
            field=option,
            value=values[0],
            allowed="a value without --http alone: there, each caller asks for sandboxes of its own",
        )


def _check_unheard(options: Options) -> None:
    """Refuse `--host` and `--port` when the server does not listen on an address."""
    for name in ("host", "port"):
        if (value := getattr(options, name)) is not None:
            raise InvalidArgumentError(field=f"--{name}", value=value, allowed="a value beside --http alone")


MCP = Command(
    "mcp",
    run,
    brief="sandboxes as tools of a host that speaks MCP",
    about="Serve sandboxes over the Model Context Protocol: on standard input and output, for a host that "
    "starts this command, or over HTTP with --http. A running `fumehood serve` has the same tools at /mcp.",
    params=[
        Option(["--http"], is_flag=True, help="listen at http://HOST:PORT/mcp instead"),
        Option(["--host"], metavar="ADDRESS", help="with --http: address to listen on (default: 127.0.0.1)"),
        Option(["--port"], metavar="PORT", help="with --http: port to listen on (default: 8765)"),
        Option(
            ["--max-network"],
            metavar="LEVEL",
            help="most network that a sandbox may be given: none, pip (the package index), listed, internet "
            f"(default: {_MAX_NETWORK})",
        ),
        Option(
            ["--print-config"],
            metavar="HOST",
            help="print what stands in the configuration of a host, and end",
        ),
        Option(
            ["--url"],
            metavar="URL",
            default="",
            help="with --print-config: the server that the host should use; /mcp is added where it is missing",
        ),
        Option(
            ["--tools"],
            multiple=True,
            metavar="NAMES",
            help="serve these tools alone, such as run_code,list_files; may be repeated (default: all)",
        ),
        Option(
            ["--folder"],
            type=PathWord(is_folder=True),
            metavar="DIR",
            default="",
            help="copy the files of this folder into each sandbox, read-only at /mnt/data; nothing in DIR is changed",
        ),
        Option(
            ["--output"],
            type=PathWord(is_folder=True),
            metavar="DIR",
            default="",
            help="bring files that are made in sandboxes into this folder",
        ),
        *sandbox_options(files_go_to=DATA_PATH, only=_OF_SANDBOXES),
    ],
)
