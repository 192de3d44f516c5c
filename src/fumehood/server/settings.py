"""What the server may be told: flags over environment over one TOML file over defaults, read once at its start.

Runs in the server process. A `ServerSettings` that exists is valid. Each field is at once the key of the TOML
file, the variable `FUMEHOOD_<FIELD>` and the flag `--<field>`; no other module reads the environment.
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fumehood.errors import InvalidArgumentError
from fumehood.limits import MIB

DIALECTS = ("e2b", "jupyter", "fusion", "librechat", "replit")
SECRET_FIELDS = ("token",)
_PREFIX = "FUMEHOOD_"
_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _told(help_text: str, default: Any, low: float | None = None, high: float | None = None) -> Any:
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the server may be told; `help` of each field says what for."""

    host: str = _told("address to listen on; another than loopback needs a token of your own", "127.0.0.1")
    port: int = _told("port to listen on; 0 takes a free one", 8765, 0, 65_535)
    token: str = _told("token of the owner; empty: made at the first start, kept in STATE/token", "")
    state_folder: str = _told("folder for the database, files and the token; made with mode 0700", "")
    database_url: str = _told("database; empty: SQLite in the state folder", "")
    blobs_url: str = _told("where uploaded files lie (folder, s3://, az://, gs://); empty: state folder", "")
    domain: str = _told("domain under which ports are reached as {port}-{id}.DOMAIN; empty: by path only", "")
    public_ports: bool = _told("whether a host name {port}-{id}.DOMAIN needs no token", False)
    public_url: str = _told("address by which clients reach this server; empty: that of the request", "")
    allowed_hosts: tuple[str, ...] = _told("names a request may give as its Host, besides loopback", ())
    allowed_origins: tuple[str, ...] = _told("web origins that may call from a browser", ())
    dialects: tuple[str, ...] = _told("dialects that are spoken", DIALECTS)
    host_socket: str = _told("socket of a `fumehood host` that keeps the sandboxes; empty: this process", "")
    pool_size: int = _told("sandboxes of each template that are kept ready", 4, 0, 1000)
    max_sandboxes: int = _told("sandboxes that may live at once", 1000, 1, 60_000)
    max_concurrent_runs: int = _told("stateless runs at once; 0: four for each core", 0, 0, 10_000)
    max_queued_runs: int = _told("stateless runs that may wait", 1000, 0, 1_000_000)
    queue_seconds: float = _told("how long a stateless run may wait to be begun", 30.0, 0, 3600)
    sandbox_seconds: float = _told(
        "lifetime of a sandbox for which none is asked; 0: no end", 300.0, 0, 86_400 * 365
    )
    max_sandbox_seconds: float = _told(
        "longest lifetime that may be asked for; 0: no end", 86_400.0, 0, 86_400 * 365
    )
    max_body_bytes: int = _told("largest request body but for uploads of files", 64 * MIB, 1024, 1 << 40)
    max_upload_bytes: int = _told("largest file that may be uploaded", 1 << 30, 1024, 1 << 50)
    drain_seconds: float = _told("how long requests under way may go on when the server ends", 10.0, 0, 3600)
    log_level: str = _told("debug, info, warning or error", "info")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check(item.name, getattr(self, item.name), item.metadata)

        if unknown := [name for name in self.dialects if name not in DIALECTS]:
            raise InvalidArgumentError(field="dialects", value=unknown[0], allowed=", ".join(DIALECTS))

        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidArgumentError(
                field="log_level", value=self.log_level, allowed="debug, info, warning or error"
            )

        if not self.is_loopback and len(self.token) < 16:
            raise InvalidArgumentError(
                field="token",
                value=self.token and "a short token",
                allowed=f"16 characters or more when host is {self.host}, which others can reach",
            )

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the server."""
        if self.host == "localhost":
            return True

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def state_path(self) -> Path:
        """The state folder."""
        if self.state_folder:
            return Path(self.state_folder).expanduser()

        return Path("~/.local/state/fumehood").expanduser()


def load_settings(
    flags: Mapping[str, Any], *, environ: Mapping[str, str], file: str | None = None
) -> tuple[ServerSettings, dict[str, str]]:
    """Reads the settings, and where each one came from.

    Args:
        flags: Values of the command line by field; None means not given.
        environ: The environment.
        file: A TOML file; `FUMEHOOD_CONFIG` names one as well.

    Returns:
        The settings, and for each field `flag`, `environment`, `file` or `default`.

    Raises:
        InvalidArgumentError: A value is not allowed, or the file names a setting that does not exist.
    """
    chosen: dict[str, Any] = {}
    sources = {item.name: "default" for item in fields(ServerSettings)}
    path = file or environ.get(f"{_PREFIX}CONFIG")

    if base := environ.get("XDG_STATE_HOME", ""):
        chosen["state_folder"] = str(Path(base) / "fumehood")

    for name, value in (_read_file(path) if path else {}).items():
        if name not in sources:
            raise InvalidArgumentError(
                field=f"{path}: {name}", value=value, allowed="no such setting; see --print-config"
            )

        chosen[name], sources[name] = value, "file"

    for name in sources:
        if (text := environ.get(f"{_PREFIX}{name.upper()}")) is not None:
            chosen[name], sources[name] = text, "environment"

        if flags.get(name) is not None:
            chosen[name], sources[name] = flags[name], "flag"

    return ServerSettings(**{name: _typed(name, value) for name, value in chosen.items()}), sources


def print_settings(settings: ServerSettings, sources: Mapping[str, str]) -> str:
    """Returns the settings as a TOML file that could be given back; secrets are not shown."""
    lines = []

    for item in fields(settings):
        value = getattr(settings, item.name)
        shown = "***" if item.name in SECRET_FIELDS and value else value
        lines.append(f"# {item.metadata['help']} ({sources[item.name]})\n{item.name} = {_toml(shown)}\n")

    return "\n".join(lines)


def _read_file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgumentError(
            field="config", value=path, allowed=f"a TOML file that can be read ({error})"
        ) from None


def _typed(name: str, value: Any) -> Any:
    """A value of the environment or the file, in the type of its field."""
    default: Any = next(item.default for item in fields(ServerSettings) if item.name == name)

    try:
        if isinstance(default, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())

        if isinstance(default, bool):
            return _BOOLEANS[str(value).strip().lower()]

        if isinstance(default, str) and not isinstance(value, str):
            raise ValueError

        return type(default)(value)
    except (ValueError, TypeError, AttributeError, KeyError):
        raise InvalidArgumentError(
            field=name, value=value, allowed=f"a value like {default!r} ({type(default).__name__})"
        ) from None


def _check(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    low, high = metadata["low"], metadata["high"]

    if low is not None and not low <= value <= high:
        raise InvalidArgumentError(field=name, value=value, allowed=f"a number from {low:g} to {high:g}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()

    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"

    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return str(value)
