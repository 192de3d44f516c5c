"""`fumehood console`: an address that opens the console of a server, logged in.

The code in the address works once and for ten minutes; it follows the `#`, where no log and no proxy sees it. Without
`--url` and FUMEHOOD_URL, the server is the one that this user runs on this machine, whose token is in its state folder.
"""

from __future__ import annotations

import os
import webbrowser

from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.saved import SERVER_OPTIONS
from fumehood.cli.terminal import note
from fumehood.refusals import naming_arguments


def run(options: Options) -> int:
    """Print the address, and open it in a browser if that is asked for; return the exit code."""
    from fumehood.assemble import ask_server

    url, api_key = options.url, options.api_key

    if url is None and "FUMEHOOD_URL" not in os.environ:
        url, own_token = _own_server()
        api_key = api_key or os.environ.get("FUMEHOOD_API_KEY") or own_token

    with naming_arguments({"url": "--url", "api_key": "--api-key"}):
        made = ask_server(url, api_key, "POST", "/v1/login/codes", json={})

    print(made["url"])

    if options.open and not webbrowser.open(made["url"]):
        note("no browser could be opened: open the address yourself, within ten minutes")

    return 0


def _own_server() -> tuple[str, str | None]:
    """Return the address and the token of the server that this user runs here, by its settings in the environment."""
    from fumehood.server.settings import load_settings

    settings, _ = load_settings({}, environ=os.environ)
    file = settings.state_path / "token"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host

    try:
        token = settings.token or file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        token = None

    return f"http://{host}:{settings.port}", token


CONSOLE = Command(
    "console",
    run,
    brief="print an address that opens the console of a server",
    about="Print an address that opens the console of a server in a browser, logged in with your token: once, within "
    "ten minutes.",
    params=[*SERVER_OPTIONS, Option(["--open"], is_flag=True, help="open it in a browser too")],
)
