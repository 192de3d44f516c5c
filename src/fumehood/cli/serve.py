"""`fumehood serve`: the server in this terminal, until Ctrl-C or SIGTERM.

Runs in the user's terminal. It only turns flags into settings: each setting is a flag of the same name.
"""

from __future__ import annotations

import os

from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Command, Options
from fumehood.cli.setting_flags import given_flags, setting_flags
from fumehood.server.settings import ServerSettings, load_settings
from fumehood.setting_fields import print_settings


def run(options: Options) -> int:
    """Serve, and return the exit code."""
    flags = given_flags(options, ServerSettings)
    settings, sources = load_settings(flags, environ=os.environ, file=options.config)

    if options.print_config:
        print(print_settings(settings, sources))
        return 0

    require_extra("server", "fastapi", "uvicorn", "sqlalchemy", "obstore", command="serve")
    # Late: only a server needs a web framework.
    from fumehood.server.run import serve

    return serve(settings)


SERVE = Command(
    "serve",
    run,
    brief="sandboxes for others, over HTTP",
    about="Serve sandboxes over HTTP: the native API, and the dialects of other products. Each "
    "setting is a flag, a variable FUMEHOOD_<SETTING>, or a key of the TOML file, in this order.",
    params=setting_flags(ServerSettings),
)
