"""The settings of the server: flags over environment over one TOML file over defaults, read once at its start.

A `ServerSettings` that exists is valid. Each field is at once the key of the TOML file, the variable `FUMEHOOD_<FIELD>`
and the flag `--<field>`; no other module of the server reads a setting of it from the environment.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fumehood.bounds import MIB
from fumehood.engine.process_settings import ProcessSettings
from fumehood.errors import InvalidArgumentError
from fumehood.setting_fields import (
    HIDDEN,
    load,
    other_default,
    setting,
    state_path,
)
from fumehood.values.network import NETWORK_LEVELS, check_address_rule

DIALECTS = ("e2b", "jupyter", "fusion", "librechat", "replit", "openai", "mcp")
# The shortest owner token of a server that other machines can reach.
SHORTEST_TOKEN = 16

_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(ProcessSettings):
    """The settings of the server; `help` of each field describes it."""

    STATE_NAME: ClassVar[str] = "fumehood"
    GROUPS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "address and access": (
            "host",
            "port",
            "token",
            "public_url",
            "domain",
            "public_ports",
            "interpreter_inside",
            "allowed_hosts",
            "allowed_origins",
            "trusted_proxies",
            "wrong_tokens_per_minute",
            "login_hours",
            "dialects",
            "console",
            "shares",
        ),
        "storage": (
            "state_folder",
            "database_url",
            "blobs_url",
            "audit_folder",
            "records",
            "records_folder",
            "records_bytes",
            "records_count",
            "records_days",
        ),
        "sandboxes": (
            "host_socket",
            "cluster",
            "cluster_token_file",
            "host_id",
            "pool_size",
            "preload",
            "max_sandboxes",
            "sandbox_seconds",
            "max_sandbox_seconds",
            "isolation",
            "template_memory_bytes",
            "own_interpreters",
            "max_network",
            "private_networks",
            "template_builds",
            "replit_template",
            "replit_filename",
            "replit_run_command",
            "replit_envs",
        ),
        "load": (
            "requests_per_minute",
            "max_concurrent_runs",
            "max_queued_runs",
            "queue_seconds",
            "memory_reserve_bytes",
            "max_cpu_pressure",
            "max_body_bytes",
            "max_upload_bytes",
        ),
        "operation": ("drain_seconds", "log_level", "log_format", "slow_request_seconds"),
    }

    pool_size: int = other_default(ProcessSettings, "pool_size", 4)
    host: str = setting("address to listen on; another than loopback needs a token of your own", "127.0.0.1")
    port: int = setting("port to listen on; 0 takes a free one", 8765, 0, 65_535)
    token: str = setting("token of the owner; empty: made at the first start, kept in STATE/token", "")
    state_folder: str = setting("folder for the database, files and the token; made with mode 0700", "")
    database_url: str = setting("database; empty: SQLite in the state folder", "")
    blobs_url: str = setting(
        "where uploaded files lie (folder, s3://, az://, gs://); empty: state folder", ""
    )
    domain: str = setting(
        "domain under which ports are reached as {port}-{id}.DOMAIN; empty: by path only", ""
    )
    public_ports: bool = setting("whether a host name {port}-{id}.DOMAIN needs no token", False)
    interpreter_inside: bool = setting(
        "whether programs in sandboxes of E2B's clients reach the interpreter at localhost:49999", False
    )
    public_url: str = setting("address by which clients reach this server; empty: that of the request", "")
    allowed_hosts: tuple[str, ...] = setting("names a request may give as its Host, besides loopback", ())
    allowed_origins: tuple[str, ...] = setting(
        "web origins whose pages may call from a browser, such as https://app.example.org; empty: none", ()
    )
    trusted_proxies: tuple[str, ...] = setting(
        "addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed", ()
    )
    wrong_tokens_per_minute: int = setting(
        "wrong tokens that a client address may send in a minute; 0: any number", 60, 0, 1_000_000
    )
    login_hours: float = setting(
        "how long a browser stays logged in to the console without using it", 12.0, 0.01, 168
    )
    requests_per_minute: int = setting(
        "requests that a key may make in a minute, the owner's token any number; 0: any number",
        60_000,
        0,
        100_000_000,
    )
    dialects: tuple[str, ...] = setting("dialects that are spoken", DIALECTS)
    console: bool = setting("whether the page at /console/ is shown", True)
    shares: bool = setting(
        "whether keys with `sandboxes` may hand on read-only views of their sandboxes, without an account",
        True,
    )
    host_socket: str = setting(
        "socket of a `fumehood host` that keeps the sandboxes; empty: this process", ""
    )
    cluster: str = setting(
        "address of Ray's head, HOST:PORT: sandboxes live on the machines of that cluster; empty: on this one",
        "",
    )
    cluster_token_file: str = setting("file with the token of that cluster", "")
    max_concurrent_runs: int = setting(
        "stateless runs at once; 0: four for each core, of all machines of a cluster", 0, 0, 10_000
    )
    max_queued_runs: int = setting("stateless runs that may wait", 1000, 0, 1_000_000)
    queue_seconds: float = setting("how long a stateless run may wait to be begun", 30.0, 0, 3600)
    sandbox_seconds: float = setting(
        "lifetime of a sandbox for which none is asked; 0: no end", 300.0, 0, 86_400 * 365
    )
    max_sandbox_seconds: float = setting(
        "longest lifetime that may be asked for; 0: no end", 86_400.0, 0, 86_400 * 365
    )
    max_network: str = setting(
        "most network that a sandbox may be given: none, pip, listed or internet", "none"
    )
    private_networks: tuple[str, ...] = setting(
        "addresses that are not public and may be listed all the same", ()
    )
    template_builds: bool = setting(
        "whether the owner may build templates over HTTP, which runs code of packages as this server's user",
        False,
    )
    replit_template: str = setting(
        "template that calls of Replit's code-exec run in, such as one of a container image", "default"
    )
    replit_filename: str = setting("file that such a call's code is written to", "main.py")
    replit_run_command: str = setting("line for the shell that runs it; empty: python3 with that file", "")
    replit_envs: tuple[str, ...] = setting("environment variables of such runs, as NAME=VALUE", ())
    max_body_bytes: int = setting("largest request body but for uploads of files", 64 * MIB, 1024, 1 << 40)
    max_upload_bytes: int = setting("largest file that may be uploaded", 1 << 30, 1024, 1 << 50)

    def __post_init__(self) -> None:
        # Not by `super()`: a dataclass with slots is another class than the one that it is written in.
        ProcessSettings.__post_init__(self)

        if unknown := [name for name in self.dialects if name not in DIALECTS]:
            raise InvalidArgumentError(field="dialects", value=unknown[0], allowed=", ".join(DIALECTS))

        if not _PLAIN_FILE.fullmatch(self.replit_filename):
            raise InvalidArgumentError(
                field="replit_filename",
                value=self.replit_filename,
                allowed="the name of a file, without folders",
            )

        for text in self.replit_envs:
            if not text.partition("=")[0] or "=" not in text or "\0" in text:
                raise InvalidArgumentError(field="replit_envs", value=text, allowed="NAME=VALUE")

            if text.partition("=")[2] == HIDDEN:
                allowed = "the value itself: what is printed of settings has *** in its place"
                raise InvalidArgumentError(field="replit_envs", value=text, allowed=allowed)

        if self.max_network not in NETWORK_LEVELS:
            raise InvalidArgumentError(
                field="max_network", value=self.max_network, allowed=", ".join(NETWORK_LEVELS)
            )

        for text in self.trusted_proxies:
            _check_proxy(text)

        for text in self.private_networks:
            check_address_rule("private_networks", text)

        if self.cluster:
            _check_cluster(self)

        if not self.is_loopback and len(self.token) < SHORTEST_TOKEN:
            raise InvalidArgumentError(
                field="token",
                value="a short token" if self.token else ...,
                allowed=f"a secret of {SHORTEST_TOKEN} characters or more, such as `openssl rand -hex 32` makes; "
                "FUMEHOOD_TOKEN may hold it",
                problem=f"a server on {self.host}, which others can reach, needs a token of "
                f"{SHORTEST_TOKEN} characters or more: {'the one given is shorter' if self.token else 'none is given'}",
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
        return state_path(self.state_folder, self.STATE_NAME)


def _check_cluster(settings: ServerSettings) -> None:
    host, _, port = settings.cluster.rpartition(":")

    if not host or not port.isdecimal():
        raise InvalidArgumentError(field="cluster", value=settings.cluster, allowed="HOST:PORT of Ray's head")

    if settings.host_socket:
        raise InvalidArgumentError(
            field="host_socket",
            value=settings.host_socket,
            allowed="not beside `cluster`, whose machines have hosts",
        )

    if not os.path.isabs(settings.cluster_token_file):
        raise InvalidArgumentError(
            field="cluster_token_file",
            value=settings.cluster_token_file,
            allowed="the absolute path of the file with the cluster's token",
        )


def _check_proxy(text: str) -> None:
    try:
        # Strictly, as the server compares it: `10.1.2.3/8` would be taken and would match no proxy.
        ipaddress.ip_network(text)
    except ValueError:
        raise InvalidArgumentError(
            field="trusted_proxies",
            value=text,
            allowed="an address, or a network without bits of a host, such as 127.0.0.1 or 10.0.0.0/8",
        ) from None


def load_settings(
    flags: Mapping[str, Any], *, environ: Mapping[str, str], file: str | None = None
) -> tuple[ServerSettings, dict[str, str]]:
    """Reads the settings of a server from flags, environment and file; returns them, and the source of each field."""
    return load(ServerSettings, flags, environ=environ, file=file)
