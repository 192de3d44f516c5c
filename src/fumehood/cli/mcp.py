"""`fumehood mcp`: sandboxes for a host of models, over standard input and output or over HTTP.

Runs in the user's terminal, or is started by the host. It only turns flags into calls.
"""

from __future__ import annotations

import os
import sys

from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.terminal import note
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.server.settings import load_settings

# What a model may give a sandbox unless the user has said otherwise: enough for packages.
_MAX_NETWORK = "pip"


def run(options: Options) -> int:
    """Serve, and return the exit code."""
    if options.print_config:
        from fumehood.mcp.hosts import Launch, config_for, endpoint_of

        with naming_arguments({"host": "--print-config", "url": "--url"}):
            url = endpoint_of(options.url) if options.url else ""
            launch = Launch(argv=(sys.executable, "-P", "-m", "fumehood", "mcp"), url=url)
            print(config_for(options.print_config, launch))

        return 0

    require_extra("mcp", "mcp", command="mcp")
    most = options.max_network or os.environ.get("FUMEHOOD_MAX_NETWORK") or _MAX_NETWORK

    if not options.http:
        _check_unheard(options)
        # Late: only this way needs the SDK.
        from fumehood.mcp.stdio import serve_stdio

        if sys.stdin.isatty():
            note(
                "this waits for a host that speaks MCP, and no host sits at a terminal; what lets yours start it, "
                "`fumehood mcp --print-config HOST` prints; Ctrl-C ends it"
            )

        with naming_arguments(
            {"max_network": "--max-network" if options.max_network else "FUMEHOOD_MAX_NETWORK"}
        ):
            return serve_stdio(most)

    require_extra("server", "fastapi", "uvicorn", "sqlalchemy", "obstore", command="mcp --http")
    from fumehood.server.run import serve

    flags = {
        "host": options.host,
        "port": options.port,
        "max_network": most,
        "dialects": ("mcp",),
    }
    settings, _ = load_settings(flags, environ=os.environ)
    return serve(settings)


def _check_unheard(options: Options) -> None:
    """Refuse options of the address when the server does not listen."""
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
    ],
)
