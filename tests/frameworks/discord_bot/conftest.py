"""A stand-in for Discord: its gateway and the part of its REST API that a bot uses, for the library as it is.

The library is told where it is by the two addresses that it has built in; nothing else of it is changed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import discord
import pytest
import yarl
from aiohttp import WSMsgType, web

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

BOT = {"id": "1", "username": "bot", "discriminator": "0", "avatar": None, "bot": True, "global_name": None}
GUILD, CHANNEL, THREAD, DIRECT = "100", "200", "300", "400"
_SECONDS = 30
_JOINED = "2026-01-01T00:00:00+00:00"


def person(number: int) -> dict[str, Any]:
    return {
        "id": str(number),
        "username": f"user{number}",
        "discriminator": "0",
        "avatar": None,
        "global_name": None,
    }


def _member(user: dict[str, Any]) -> dict[str, Any]:
    return {
        "user": user,
        "roles": [],
        "joined_at": "2026-01-01T00:00:00+00:00",
        "deaf": False,
        "mute": False,
        "flags": 0,
    }


_CHANNEL = {
    "id": CHANNEL,
    "type": 0,
    "guild_id": GUILD,
    "name": "general",
    "position": 0,
    "permission_overwrites": [],
    "parent_id": None,
}
_THREAD = {
    "id": THREAD,
    "type": 11,
    "guild_id": GUILD,
    "parent_id": CHANNEL,
    "owner_id": "2",
    "name": "thread",
    "message_count": 0,
    "member_count": 1,
    "thread_metadata": {
        "archived": False,
        "auto_archive_duration": 60,
        "archive_timestamp": "2026-01-01T00:00:00+00:00",
        "locked": False,
    },
}
_ROLE = {
    "id": GUILD,
    "name": "@everyone",
    "color": 0,
    "colors": {"primary_color": 0, "secondary_color": None, "tertiary_color": None},
    "hoist": False,
    "position": 0,
    "permissions": "0",
    "managed": False,
    "mentionable": False,
    "flags": 0,
}
_GUILD = {
    "id": GUILD,
    "name": "guild",
    "icon": None,
    "splash": None,
    "discovery_splash": None,
    "owner_id": "2",
    "afk_channel_id": None,
    "afk_timeout": 60,
    "verification_level": 0,
    "default_message_notifications": 0,
    "explicit_content_filter": 0,
    "roles": [_ROLE],
    "emojis": [],
    "stickers": [],
    "features": [],
    "mfa_level": 0,
    "application_id": None,
    "system_channel_id": None,
    "system_channel_flags": 0,
    "rules_channel_id": None,
    "vanity_url_code": None,
    "description": None,
    "banner": None,
    "premium_tier": 0,
    "preferred_locale": "en-US",
    "public_updates_channel_id": None,
    "nsfw_level": 0,
    "premium_progress_bar_enabled": False,
    "safety_alerts_channel_id": None,
    "joined_at": "2026-01-01T00:00:00+00:00",
    "large": False,
    "unavailable": False,
    "member_count": 2,
    "voice_states": [],
    "members": [_member(BOT), _member(person(2))],
    "channels": [_CHANNEL],
    "threads": [_THREAD],
    "presences": [],
    "stage_instances": [],
    "guild_scheduled_events": [],
    "soundboard_sounds": [],
}


def _json(value: Any, status: int = 200) -> web.Response:
    # The library looks at the type exactly as Discord writes it.
    return web.Response(
        body=json.dumps(value).encode(), status=status, headers={"Content-Type": "application/json"}
    )


@dataclass
class Sent:
    """A message of the bot."""

    channel: str
    payload: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return str(self.payload.get("content") or "")


class Discord:
    """The server: what the bot sends is in `sent`, what it asked for is in `asked`."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[Sent] = asyncio.Queue()
        self.asked: list[str] = []
        self.commands: list[dict[str, Any]] = []
        self.identified: dict[str, Any] = {}
        self.heartbeats = asyncio.Event()
        self.url = ""
        self._numbers = itertools.count(1000)
        self._socket: web.WebSocketResponse | None = None
        self._sequence = itertools.count(1)
        self._uploads: dict[str, bytes] = {}
        self.app = web.Application(client_max_size=64 * 1024 * 1024)
        self.app.add_routes(
            [
                web.get("/gateway", self._gateway),
                web.get("/cdn/{name}", self._cdn),
                web.get("/api/users/@me", self._me),
                web.get("/api/oauth2/applications/@me", self._application),
                web.put("/api/applications/1/commands", self._take_commands),
                web.post("/api/channels/{channel}/typing", self._typing),
                web.post("/api/channels/{channel}/messages", self._take_message),
                web.post("/api/interactions/{id}/{token}/callback", self._callback),
                web.post("/api/webhooks/1/{token}", self._take_message),
            ]
        )

    async def say(
        self,
        text: str,
        *,
        channel: str = CHANNEL,
        author: int = 2,
        files: dict[str, bytes] | None = None,
        mention: bool = True,
    ) -> None:
        """Let a user write a message, by default one that mentions the bot."""
        self._uploads |= files or {}
        is_direct = channel == DIRECT
        message = self._message(
            channel, f"<@1> {text}" if mention and not is_direct else text, person(author)
        )
        message["mentions"] = [BOT] if mention and not is_direct else []
        message["attachments"] = [
            {
                "id": str(next(self._numbers)),
                "filename": name,
                "size": len(content),
                "url": f"{self.url}/cdn/{name}",
                "proxy_url": f"{self.url}/cdn/{name}",
            }
            for name, content in (files or {}).items()
        ]

        if not is_direct:
            message |= {
                "guild_id": GUILD,
                "member": {key: value for key, value in _member({}).items() if key != "user"},
            }

        await self.dispatch("MESSAGE_CREATE", message)

    async def command(self, name: str, *, author: int = 2, **options: str) -> None:
        """Let a user give a slash command in the channel."""
        registered = next(command for command in self.commands if command["name"] == name)
        given = [{"name": key, "type": 3, "value": value} for key, value in options.items()]
        number = str(next(self._numbers))
        await self.dispatch(
            "INTERACTION_CREATE",
            {
                "id": number,
                "application_id": "1",
                "type": 2,
                "token": f"token{number}",
                "version": 1,
                "guild_id": GUILD,
                "guild": {"id": GUILD, "locale": "en-US", "features": []},
                "channel_id": CHANNEL,
                "channel": {**_CHANNEL, "permissions": "0"},
                "member": {**_member(person(author)), "permissions": "0"},
                "locale": "en-US",
                "guild_locale": "en-US",
                "app_permissions": "0",
                "entitlements": [],
                "authorizing_integration_owners": {},
                "context": 0,
                "attachment_size_limit": 10485760,
                "data": {"id": registered["id"], "name": name, "type": 1, "options": given},
            },
        )

    async def next(self) -> Sent:
        """The next message of the bot."""
        return await asyncio.wait_for(self.sent.get(), _SECONDS)

    async def dispatch(self, event: str, data: dict[str, Any]) -> None:
        assert self._socket is not None
        await self._socket.send_str(json.dumps({"op": 0, "t": event, "s": next(self._sequence), "d": data}))

    def _message(self, channel: str, text: str, author: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": str(next(self._numbers)),
            "channel_id": channel,
            "author": author,
            "content": text,
            "timestamp": "2026-01-01T00:00:00+00:00",
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": [],
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": 0,
        }

    async def _gateway(self, request: web.Request) -> web.WebSocketResponse:
        self._socket = socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        await socket.send_str(json.dumps({"op": 10, "d": {"heartbeat_interval": 300}}))

        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                continue

            frame = json.loads(message.data)

            if frame["op"] == 1:
                await socket.send_str(json.dumps({"op": 11}))
                self.heartbeats.set()
            elif frame["op"] == 2:
                self.identified = frame["d"]
                ready = {
                    "v": 10,
                    "user": BOT,
                    "guilds": [{"id": GUILD, "unavailable": True}],
                    "session_id": "session",
                    "resume_gateway_url": self.url.replace("http", "ws"),
                    "application": {"id": "1", "flags": 0},
                }
                await self.dispatch("READY", ready)
                await self.dispatch("GUILD_CREATE", _GUILD)

        return socket

    async def _cdn(self, request: web.Request) -> web.Response:
        return web.Response(body=self._uploads[request.match_info["name"]])

    async def _me(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bot a-token":
            return _json({"message": "401: Unauthorized", "code": 0}, status=401)

        return _json(BOT)

    async def _application(self, request: web.Request) -> web.Response:
        told = {
            "id": "1",
            "name": "bot",
            "icon": None,
            "description": "",
            "rpc_origins": [],
            "bot_public": True,
        }
        more = {
            "bot_require_code_grant": False,
            "verify_key": "",
            "flags": 0,
            "owner": person(2),
            "team": None,
        }
        return _json({**told, **more})

    async def _take_commands(self, request: web.Request) -> web.Response:
        given = await request.json()
        self.commands = [
            {**command, "id": str(next(self._numbers)), "application_id": "1", "version": "1"}
            for command in given
        ]
        return _json(self.commands)

    async def _typing(self, request: web.Request) -> web.Response:
        self.asked.append("typing")
        return web.Response(status=204)

    async def _callback(self, request: web.Request) -> web.Response:
        sent = await self._read(request, "interaction")
        self.asked.append(f"callback {sent.payload['type']}")

        # 5 is "it will take a while": the answer comes to the webhook.
        if sent.payload["type"] == 4:
            self.sent.put_nowait(Sent("interaction", sent.payload["data"], sent.files))

        number = request.match_info["id"]
        told = {"id": number, "type": 2, "response_message_id": "9", "response_message_loading": True}
        return _json({"interaction": told, "resource": {"type": sent.payload["type"]}})

    async def _take_message(self, request: web.Request) -> web.Response:
        sent = await self._read(request, request.match_info.get("channel", "interaction"))
        self.sent.put_nowait(sent)
        channel = CHANNEL if sent.channel == "interaction" else sent.channel
        return _json(self._message(channel, sent.text, BOT))

    async def _read(self, request: web.Request, channel: str) -> Sent:
        if not request.content_type.startswith("multipart/"):
            return Sent(channel, await request.json())

        payload: dict[str, Any] = {}
        files: dict[str, bytes] = {}

        async for part in await request.multipart():
            content = bytes(await part.read())

            if part.name == "payload_json":
                payload = json.loads(content)
            else:
                files[part.filename or ""] = content

        return Sent(channel, payload, files)


@pytest.fixture
def on_discord(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a bot against a server of its own."""

    @asynccontextmanager
    async def run(bot: discord.Client) -> AsyncIterator[Discord]:
        server = Discord()
        runner = web.AppRunner(server.app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        monkeypatch.setattr(discord.http.Route, "BASE", f"{server.url}/api")
        gateway = yarl.URL(f"{server.url.replace('http', 'ws')}/gateway")
        monkeypatch.setattr(discord.gateway.DiscordWebSocket, "DEFAULT_GATEWAY", gateway)
        # How long the library waits for more guilds.
        bot._connection.guild_ready_timeout = 0.05
        running = asyncio.ensure_future(bot.start("a-token"))

        try:
            ready = asyncio.ensure_future(bot.wait_until_ready())
            await asyncio.wait({running, ready}, timeout=_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            assert ready.done(), running
            yield server
        finally:
            await bot.close()

            with suppress(asyncio.CancelledError):
                await running

            await runner.cleanup()

    return run
