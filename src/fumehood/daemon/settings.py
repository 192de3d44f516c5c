"""What the host daemon may be told: flags over environment over one TOML file over defaults, as for the server.

Runs in the host daemon. `FUMEHOOD_HOST_SOCKET` tells the daemon and the server alike where they meet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fumehood.bounds import TIB
from fumehood.errors import InvalidArgumentError
from fumehood.server.setting_fields import (
    check_bounds,
    check_log_format,
    check_log_level,
    load,
    setting,
    state_path,
)
from fumehood.values.sandbox import DEFAULT_ISOLATION, check_isolation

# What the kernel takes as the path of a unix socket, with the NUL at its end.
_MAX_SOCKET_BYTES = 107
AUTOMATIC = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What the host daemon may be told; `help` of each field says what for."""

    STATE_NAME: ClassVar[str] = "fumehood-host"
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    socket: str = setting(
        "unix socket to listen on; empty: fumehood/engine.sock in XDG_RUNTIME_DIR, or host.sock in the state folder",
        "",
        variable="FUMEHOOD_HOST_SOCKET",
    )
    state_folder: str = setting(
        "folder for the name of this host; made with mode 0700", "", variable="FUMEHOOD_HOST_STATE_FOLDER"
    )
    host_id: str = setting(
        "name of this host, six lower-case letters and digits; empty: made at the first start and kept", ""
    )
    pool_size: int = setting("sandboxes of each template that are kept ready", 4, 0, 1000)
    max_sandboxes: int = setting("sandboxes that may live at once", 1000, 1, 60_000)
    memory_reserve_bytes: int = setting(
        "memory that stays free; -1: 3 % of it, and 256 MiB at least", AUTOMATIC, AUTOMATIC, TIB
    )
    max_cpu_pressure: int = setting(
        "percentage of time in which tasks may wait for a processor before no sandbox is made; 101: any",
        95,
        1,
        101,
    )
    isolation: str = setting(
        "isolation that a sandbox must reach whose caller names no level: landlock-only or namespaces",
        DEFAULT_ISOLATION,
    )
    audit_folder: str = setting(
        "folder in which the audit record of each sandbox is kept as a file; empty: in memory alone", ""
    )
    own_interpreters: bool = setting(
        "whether each sandbox of every template has an interpreter of its own, and so its own addresses",
        False,
    )
    drain_seconds: float = setting("how long calls under way may go on when the daemon ends", 10.0, 0, 3600)
    log_level: str = setting("least level of the log: debug, info, warning or error", "info")
    log_format: str = setting("how lines of the log are written: console or json", "console")
    slow_request_seconds: float = setting(
        "how long an answer may take to begin until it is logged as slow; 0: any time", 30.0, 0, 86_400
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        check_log_level(self.log_level)
        check_log_format(self.log_format)
        check_isolation("isolation", self.isolation)

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
    """Reads the settings of a host daemon, and where each one came from; see `load`."""
    given = dict(flags)
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    settings, sources = load(HostSettings, given, environ=environ, file=file)

    if not settings.socket:
        folder = Path(runtime) / "fumehood" if os.path.isabs(runtime) else settings.state_path
        settings, _ = load(
            HostSettings, {**given, "socket": str(folder / "host.sock")}, environ=environ, file=file
        )

    return settings, sources
