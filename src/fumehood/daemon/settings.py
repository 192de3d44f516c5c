"""The settings of the host daemon: flags over environment over one TOML file over defaults, as for the server.

`FUMEHOOD_HOST_SOCKET` is the socket for the daemon and the server alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fumehood.engine.process_settings import ProcessSettings
from fumehood.errors import InvalidArgumentError
from fumehood.setting_fields import (
    load,
    other_default,
    setting,
    state_path,
)

# The maximum path of a unix socket, with the NUL at its end.
_MAX_SOCKET_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(ProcessSettings):
    """The settings of the host daemon; `help` of each field describes it."""

    STATE_NAME: ClassVar[str] = "fumehood-host"
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    pool_size: int = other_default(ProcessSettings, "pool_size", 4)
    socket: str = setting(
        "unix socket to listen on; empty: host.sock, in fumehood/ of XDG_RUNTIME_DIR or else in the state folder",
        "",
        variable="FUMEHOOD_HOST_SOCKET",
    )
    state_folder: str = setting(
        "folder for the name of this host; made with mode 0700", "", variable="FUMEHOOD_HOST_STATE_FOLDER"
    )

    def __post_init__(self) -> None:
        # Not by `super()`: a dataclass with slots is another class than the one that it is written in.
        ProcessSettings.__post_init__(self)

        if len(os.fsencode(self.socket)) > _MAX_SOCKET_BYTES:
            raise InvalidArgumentError(
                field="socket", value=self.socket, allowed=f"a path of at most {_MAX_SOCKET_BYTES} bytes"
            )

    @property
    def state_path(self) -> Path:
        """The state folder."""
        return state_path(self.state_folder, self.STATE_NAME)


def load_host_settings(
    flags: Mapping[str, Any], *, environ: Mapping[str, str], file: str | None = None
) -> tuple[HostSettings, dict[str, str]]:
    """Reads the settings of a host daemon like `load`, and places its socket if no setting names one."""
    given = dict(flags)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    settings, sources = load(HostSettings, given, environ=environ, file=file)

    if not settings.socket:
        folder = Path(runtime) / "fumehood" if os.path.isabs(runtime) else settings.state_path
        settings, _ = load(
            HostSettings, {**given, "socket": str(folder / "host.sock")}, environ=environ, file=file
        )

    return settings, sources
