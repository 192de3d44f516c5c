"""The configuration of common MCP hosts: for a program that they start, or a server.

Pure text, made in the user's terminal. Hosts with a window do not see the user's PATH, so a program is named by its
whole path. A key is never written out where a host can read it from the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fumehood import InvalidArgumentError

NAME = "fumehood"
KEY_VARIABLE = "FUMEHOOD_API_KEY"
_URL_VARIABLE = "FUMEHOOD_URL"
_YOUR_KEY = "YOUR_KEY"
_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")
_BETWEEN = re.compile(r",\n\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The way a host connects to this MCP server.

    Attributes:
        argv: The program and its arguments, for a host that starts it.
        url: A server's `/mcp`; empty: the host starts the program.
    """

    argv: tuple[str, ...]
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """An MCP host.

    Attributes:
        title: Its name.
        file: The path of its configuration.
        write: Makes the snippet.
    """

    title: str
    file: str
    write: Callable[[Launch], str]


def endpoint_of(url: str) -> str:
    """Return the address of a server's MCP endpoint, which may be given without its path.

    Raises:
        InvalidArgumentError: The text is not the address of a server.
    """
    parts = urlsplit(url)

    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise InvalidArgumentError(
            field="url", value=url, allowed="the address of a server, such as http://127.0.0.1:8765"
        )

    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith("/mcp") else f"{path}/mcp"))


def config_for(host: str, launch: Launch) -> str:
    """Return the snippet for a host, with its path above it.

    Raises:
        InvalidArgumentError: The host is unknown.
    """
    known = HOSTS.get(host)

    if known is None:
        raise InvalidArgumentError(field="host", value=host, allowed=", ".join(HOSTS))

    return known.write(launch)


def _program(launch: Launch) -> dict[str, Any]:
    return {"command": launch.argv[0], "args": [*launch.argv[1:]]}


def _bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


def _json(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    # Lists of words on one line, as people write them.
    return _LIST.sub(lambda found: "[" + _BETWEEN.sub(", ", found[1]) + "]", text)


def _claude_desktop(launch: Launch) -> str:
    entry = _program(launch)

    if launch.url:
        # Its file supports only programs; ours connects to the server for it.
        address = launch.url.removesuffix("/mcp")
        entry["env"] = {_URL_VARIABLE: address, KEY_VARIABLE: _YOUR_KEY}

    return _json({"mcpServers": {NAME: entry}})


def _claude_code(launch: Launch) -> str:
    entry = {"type": "stdio", **_program(launch)}

    if launch.url:
        entry = {"type": "http", "url": launch.url, "headers": _bearer(f"${{{KEY_VARIABLE}}}")}

    return _json({"mcpServers": {NAME: entry}})


def _cursor(launch: Launch) -> str:
    entry = _program(launch)

    if launch.url:
        entry = {"url": launch.url, "headers": _bearer(f"${{env:{KEY_VARIABLE}}}")}

    return _json({"mcpServers": {NAME: entry}})


def _vs_code(launch: Launch) -> str:
    if not launch.url:
        return _json({"servers": {NAME: {"type": "stdio", **_program(launch)}}})

    asked = {"type": "promptString", "id": "fumehood-key", "description": "Key of fumehood", "password": True}
    entry = {"type": "http", "url": launch.url, "headers": _bearer("${input:fumehood-key}")}
    return _json({"inputs": [asked], "servers": {NAME: entry}})


def _zed(launch: Launch) -> str:
    entry = {**_program(launch), "env": {}}

    if launch.url:
        entry = {"url": launch.url, "headers": _bearer(_YOUR_KEY)}

    return _json({"context_servers": {NAME: entry}})


def _codex(launch: Launch) -> str:
    # A string of JSON is one of TOML as well, and so is a list of them.
    lines = {name: json.dumps(value) for name, value in _program(launch).items()}

    if launch.url:
        lines = {"url": json.dumps(launch.url), "bearer_token_env_var": json.dumps(KEY_VARIABLE)}

    return "\n".join([f"[mcp_servers.{NAME}]", *(f"{name} = {value}" for name, value in lines.items())])


def _gemini(launch: Launch) -> str:
    entry = _program(launch)

    if launch.url:
        entry = {"httpUrl": launch.url, "headers": _bearer(f"${KEY_VARIABLE}")}

    return _json({"mcpServers": {NAME: entry}})


def _lm_studio(launch: Launch) -> str:
    entry = _program(launch)

    if launch.url:
        entry = {"url": launch.url, "headers": _bearer(_YOUR_KEY)}

    return _json({"mcpServers": {NAME: entry}})


HOSTS: Mapping[str, Host] = {
    "claude-desktop": Host(title="Claude Desktop", file="claude_desktop_config.json", write=_claude_desktop),
    "claude-code": Host(title="Claude Code", file=".mcp.json", write=_claude_code),
    "cursor": Host(title="Cursor", file="~/.cursor/mcp.json", write=_cursor),
    "vscode": Host(title="VS Code", file=".vscode/mcp.json", write=_vs_code),
    "zed": Host(title="Zed", file="~/.config/zed/settings.json", write=_zed),
    "codex": Host(title="Codex CLI", file="~/.codex/config.toml", write=_codex),
    "gemini": Host(title="Gemini CLI", file="~/.gemini/settings.json", write=_gemini),
    "lm-studio": Host(title="LM Studio", file="mcp.json", write=_lm_studio),
}
