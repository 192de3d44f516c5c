"""`fumehood serve`: the server in this terminal, until Ctrl-C or SIGTERM.

It only turns flags into settings: each setting is a flag of the same name.
"""

from __future__ import annotations

import os
import secrets

from fumehood.cli.extras import require_extra
from fumehood.cli.parser import Command, Option, Options
from fumehood.cli.setting_flags import given_flags, setting_flags
from fumehood.errors import InvalidArgumentError
from fumehood.refusals import naming_arguments
from fumehood.server.settings import ServerSettings, load_settings
from fumehood.setting_fields import flag_of, names_as_given, print_settings

_PRINTS = ("print_config", "print_systemd", "print_compose", "print_docker")


def run(options: Options) -> int:
    """Serve, and return the exit code."""
    asked = [name for name in _PRINTS if getattr(options, name)]

    if len(asked) > 1:
        raise InvalidArgumentError(
            field=flag_of(asked[0]),
            value="given",
            allowed=f"no place beside {flag_of(asked[1])}: give one of them",
        )

    flags = given_flags(options, ServerSettings)
    is_for_others = any(name != "print_config" for name in asked)

    is_token_given = flags["token"] is not None or "FUMEHOOD_TOKEN" in os.environ

    if is_for_others and not is_token_given:
        # The server that is described reads its token from a file; this one is never printed.
        flags["token"] = secrets.token_hex()

    settings, sources = load_settings(flags, environ=os.environ, file=options.config)

    if options.print_config:
        print(print_settings(settings, sources))
        return 0

    if is_for_others:
        if settings.is_loopback and not is_token_given:
            # It makes its own.
            sources = sources | {"token": "default"}

        # Imported late: they read files of the package.
        from fumehood.cli import service_files

        texts = {
            "print_systemd": service_files.systemd_unit,
            "print_compose": service_files.compose_file,
            "print_docker": service_files.docker_script,
        }
        print(texts[asked[0]](settings, sources), end="")
        return 0

    require_extra("server", "fastapi", "uvicorn", "sqlalchemy", "obstore", command="serve")
    # Imported late: only a server needs a web framework.
    from fumehood.server.run import serve

    # What only the start finds wrong, such as a folder that others can enter.
    with naming_arguments(names_as_given(ServerSettings, sources, options.config)):
        return serve(settings, sources)


SERVE = Command(
    "serve",
    run,
    brief="sandboxes for others, over HTTP",
    about="Serve sandboxes over HTTP: the native API, and the dialects of other products. Each "
    "setting is a flag, a variable FUMEHOOD_<SETTING>, or a key of the TOML file, in this order.",
    params=[
        *setting_flags(ServerSettings),
        Option(
            ["--print-systemd"],
            is_flag=True,
            help="print a unit of systemd that serves with these settings, without secrets, and end",
        ),
        Option(
            ["--print-compose"],
            is_flag=True,
            help="print a compose file for two containers with these settings, without secrets, and end",
        ),
        Option(
            ["--print-docker"],
            is_flag=True,
            help="print a script that starts one container with these settings, as for macOS, and end",
        ),
    ],
)
