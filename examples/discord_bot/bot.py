"""The bot: messages and slash commands in, runs in sandboxes, messages out."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import discord
from discord import app_commands

from fumehood import FumehoodError, SandboxNotStartedError
from fumehood.llm import Provider
from fumehood.text import visible_line

from .allowance import Allowance, TooMuch
from .desks import Desk, Desks
from .replies import FILE_BYTES, Reply, defused, read_file, reply_to_question, reply_to_run, split

_BLOCK = re.compile(r"```(?:python|py)\n(.*?)```", re.DOTALL | re.IGNORECASE)
_FOLDERS = ("/home/user", "/mnt/data")
_LISTED_FILES = 40
_HELP = "Write Python between \\`\\`\\`python and \\`\\`\\`, or use `/run`, `/files` and `/reset`."
_log = logging.getLogger(__name__)

_Act: TypeAlias = Callable[[str, Desk], Awaitable[Reply]]


class Bot(discord.Client):
    """Runs code for those who mention it or write to it directly.

    Args:
        model: Which model answers questions (`"openai:NAME"`, `"anthropic:NAME"`); without one it runs code only.
        desks: The sandboxes, one a channel or thread.
        allowance: How much one user may ask for.
    """

    def __init__(
        self,
        model: str | Provider | None = None,
        *,
        desks: Desks | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        intents = discord.Intents.default()
        intents.message_content = True
        # Output of a guest mentions nobody, whatever it says.
        super().__init__(intents=intents, allowed_mentions=discord.AllowedMentions.none())
        self.desks = Desks(model) if desks is None else desks
        self._allowance = Allowance() if allowance is None else allowance
        self.tree = app_commands.CommandTree(self)
        self._add_commands()

    async def setup_hook(self) -> None:
        """Tell Discord of the slash commands."""
        await self.tree.sync()

    async def close(self) -> None:
        """Leave, and end all sandboxes."""
        await super().close()
        await self.desks.close()

    async def on_message(self, message: discord.Message) -> None:
        """Answer a message that is meant for the bot."""
        if message.author.bot or not self._is_meant(message):
            return

        try:
            with self._allowance.spend(message.author.id):
                async with message.channel.typing():
                    reply = await self._answer(message)
        except TooMuch as much:
            reply = Reply([str(much)], [])
        except FumehoodError as error:
            _log.warning("a request failed: %s", error.message)
            reply = Reply([f"That did not work: {visible_line(error.message)}"], [])

        for index, text in enumerate(reply.texts):
            is_last = index == len(reply.texts) - 1
            await message.reply(text, files=reply.files if is_last else [], suppress_embeds=True)

    def _is_meant(self, message: discord.Message) -> bool:
        return message.guild is None or (self.user is not None and self.user in message.mentions)

    async def _answer(self, message: discord.Message) -> Reply:
        text = self._without_mention(message.content)

        async with self.desks.at(message.channel.id) as desk:
            uploaded = await _take_in(message.attachments, desk)

            if blocks := _BLOCK.findall(text):
                return await _run("\n".join(blocks), desk)

            if desk.agent is not None and text:
                return await _ask(text, uploaded, desk)

        if uploaded:
            return Reply([f"Stored: {', '.join(f'`{path}`' for path in uploaded)}"], [])

        return Reply([_HELP], [])

    def _without_mention(self, text: str) -> str:
        own = self.user.id if self.user is not None else 0
        return re.sub(rf"<@!?{own}>", "", text).strip()

    def _add_commands(self) -> None:
        @self.tree.command(name="run", description="Run Python in the sandbox of this channel")
        @app_commands.describe(code="One or more statements")
        async def run(interaction: discord.Interaction, code: str) -> None:
            await self._respond(interaction, _run, code)

        @self.tree.command(
            name="reset", description="End the sandbox of this channel, with its variables and files"
        )
        async def reset(interaction: discord.Interaction) -> None:
            cleared = await self.desks.clear(interaction.channel_id or 0)
            said = (
                "The sandbox is gone; the next run makes a fresh one."
                if cleared
                else "There is no sandbox here."
            )
            await interaction.response.send_message(said)

        @self.tree.command(name="files", description="List the files of the sandbox, or fetch one")
        @app_commands.describe(path="The file to fetch")
        async def files(interaction: discord.Interaction, path: str = "") -> None:
            await self._respond(interaction, _show_files, path)

    async def _respond(self, interaction: discord.Interaction, act: _Act, argument: str) -> None:
        await interaction.response.defer(thinking=True)

        try:
            with self._allowance.spend(interaction.user.id):
                async with self.desks.at(interaction.channel_id or 0) as desk:
                    reply = await act(argument, desk)
        except TooMuch as much:
            reply = Reply([str(much)], [])
        except FumehoodError as error:
            reply = Reply([f"That did not work: {visible_line(error.message)}"], [])

        for index, text in enumerate(reply.texts):
            files = reply.files if index == len(reply.texts) - 1 else []
            await interaction.followup.send(text, files=files, suppress_embeds=True)


async def _take_in(attachments: Sequence[discord.Attachment], desk: Desk) -> list[str]:
    """Put what was attached to a message into the sandbox."""
    paths = []

    for attachment in attachments:
        if attachment.size <= FILE_BYTES:
            paths.append(await desk.interpreter.upload(attachment.filename, await attachment.read()))

    return paths


async def _run(code: str, desk: Desk) -> Reply:
    return await reply_to_run(await desk.interpreter.run(code), desk.interpreter)


async def _ask(text: str, uploaded: list[str], desk: Desk) -> Reply:
    assert desk.agent is not None
    brought = f"\n\n(Files that the user has brought: {', '.join(uploaded)})" if uploaded else ""
    answer = await desk.agent.ask(text + brought)
    results = [cell.result for cell in answer.cells]
    return await reply_to_question(answer.text, results, answer.files, desk.interpreter)


async def _show_files(path: str, desk: Desk) -> Reply:
    if path:
        found = await read_file(path, desk.interpreter)
        return Reply(["Here it is." if found else "There is no such file, or it is too large."], found)

    try:
        sandbox = desk.interpreter.sandbox
    except SandboxNotStartedError:
        return Reply(["There is no sandbox here yet."], [])

    listed = [info for folder in _FOLDERS for info in await sandbox.files.list(folder, depth=3)]
    shown = [info for info in listed if info.type == "file" and "/." not in info.path]
    lines = [f"{info.size_bytes:>12,}  {visible_line(info.path)}" for info in shown[:_LISTED_FILES]]

    if not lines:
        return Reply(["There are no files yet."], [])

    more = [f"... and {len(shown) - _LISTED_FILES} more"] if len(shown) > _LISTED_FILES else []
    return Reply(split("```\n" + defused("\n".join([*lines, *more])) + "\n```"), [])
