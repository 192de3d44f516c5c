"""The bot for Discord, end to end: the unmodified discord.py against a stand-in for Discord, and real sandboxes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from discord_bot.allowance import Allowance, TooMuch
from discord_bot.bot import Bot
from discord_bot.desks import Desks
from discord_bot.replies import defused, fit, split

from fumehood import AsyncSandbox, Sandbox

CHANNEL, THREAD, DIRECT = "200", "300", "400"


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def scene(on_discord: Any, act: Callable[[Any, Bot], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        bot = Bot(**options)

        async with on_discord(bot) as server:
            await act(server, bot)

    asyncio.run(run())
    assert Sandbox.list() == []


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + 30

    while not await condition():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.01)


def test_a_code_block_is_run_and_its_state_stays(on_discord: Any) -> None:
    """Text in a code block, the typing state meanwhile, an error and its repair, figures and files beside it."""

    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("numbers = [40, 2]\nprint(totl(numbers))"))
        failed = await server.next()
        assert failed.channel == CHANNEL
        assert "NameError" in failed.text
        assert failed.text.startswith("```\n")
        assert failed.payload["message_reference"]["message_id"]
        assert "typing" in server.asked
        await server.say(block("sum(numbers)"))
        assert (await server.next()).text == "```\n42\n```"
        await server.say(
            block(
                "import matplotlib.pyplot as plt\nplt.plot(numbers)\nplt.show()\nopen('n.csv', 'w').write('40,2');"
            )
        )
        drawn = await server.next()
        assert drawn.files["image-1.png"].startswith(b"\x89PNG")
        assert drawn.files["n.csv"] == b"40,2"
        await asyncio.wait_for(server.heartbeats.wait(), 30)
        assert server.identified["token"] == "a-token"
        # Message content is a privileged intent.
        assert server.identified["intents"] & (1 << 15)

    scene(on_discord, act)


def test_each_channel_and_thread_has_a_sandbox_of_its_own(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("secret = 1"))
        await server.next()

        for channel in (THREAD, DIRECT):
            await server.say(block("'secret' in globals()"), channel=channel)
            said = await server.next()
            assert (said.channel, said.text) == (channel, "```\nFalse\n```")

        assert len(await AsyncSandbox.list()) == 3

    scene(on_discord, act)


def test_who_is_not_meant_is_left_alone(on_discord: Any) -> None:
    """Messages to others, and those of bots, are no requests; a greeting gets help."""

    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("1"), mention=False)
        await server.say("hello")
        assert "/run" in (await server.next()).text
        assert server.sent.empty()

    scene(on_discord, act)


def test_output_of_a_guest_is_only_text(on_discord: Any) -> None:
    """It cannot close its block, mention everybody, show a preview or send control characters."""

    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("print('@everyone \\x1b[31m', '`' * 3, 'https://example.com')"))
        said = await server.next()
        assert said.payload["allowed_mentions"]["parse"] == []
        assert said.payload["flags"] & 4
        assert said.text.count("```") == 2
        assert "\x1b" not in said.text

    scene(on_discord, act)


def test_a_long_answer_comes_in_pieces_and_a_flood_in_a_file(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("print('\\n'.join(f'line {n}' for n in range(500)))"))
        pieces = [await server.next() for _ in range(3)]
        assert all(len(piece.text) <= 2000 and piece.text.count("```") == 2 for piece in pieces)
        seen = "".join(piece.text for piece in pieces)
        assert all(f"line {n}\n" in seen for n in range(500))
        await server.say(block("print('x' * 15_000)"))
        flood = [await server.next() for _ in range(4)]
        assert flood[-1].files["whole-answer.txt"].count(b"x") == 15_000

    scene(on_discord, act)


def test_what_is_attached_lies_in_the_sandbox(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say("", files={"data.csv": b"40\n2\n"})
        assert "/mnt/data/data.csv" in (await server.next()).text
        await server.say(block("sum(map(int, open('/mnt/data/data.csv')))"))
        said = await server.next()
        assert (said.text, said.files) == ("```\n42\n```", {})

    scene(on_discord, act)


def test_slash_commands(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        assert {command["name"] for command in server.commands} == {"run", "reset", "files"}
        await server.command("files")
        assert "no sandbox" in (await server.next()).text
        await server.command("run", code="open('made.txt', 'w').write('hello')")
        ran = await server.next()
        assert "callback 5" in server.asked
        assert ran.files == {"made.txt": b"hello"}
        await server.command("files")
        assert "/home/user/made.txt" in (await server.next()).text
        await server.command("files", path="/home/user/made.txt")
        assert (await server.next()).files == {"made.txt": b"hello"}
        await server.command("files", path="/etc/shadow")
        assert "no such file" in (await server.next()).text
        await server.command("reset")
        assert "gone" in (await server.next()).text
        assert await AsyncSandbox.list() == []
        await server.command("run", code="import os; os.path.exists('made.txt')")
        assert "False" in (await server.next()).text

    scene(on_discord, act)


def test_a_user_has_so_many_runs_and_one_at_a_time(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("open('begun', 'w').close()\nwhile True: pass"))
        await server.say(block("1"))
        assert "still running" in (await server.next()).text
        assert "TimeLimitExceeded" in (await server.next()).text
        await server.say(block("2"))
        assert "2" in (await server.next()).text
        await server.say(block("3"))
        assert "in a minute" in (await server.next()).text
        await server.say(block("4"), author=5)
        assert "4" in (await server.next()).text

    scene(on_discord, act, desks=Desks(wall_seconds=1), allowance=Allowance(2))


def test_a_full_house_makes_room(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("1"))
        await server.next()
        (first,) = await AsyncSandbox.list()
        await server.say(block("1"), channel=THREAD)
        await server.next()
        (second,) = await AsyncSandbox.list()
        assert first.id != second.id

    scene(on_discord, act, desks=Desks(max_desks=1))


def test_an_idle_desk_is_cleared(on_discord: Any) -> None:
    async def act(server: Any, bot: Bot) -> None:
        await server.say(block("'made'"))
        assert "made" in (await server.next()).text

        async def is_empty() -> bool:
            return await AsyncSandbox.list() == [] and len(bot.desks) == 0

        await until(is_empty)

    scene(on_discord, act, desks=Desks(idle_seconds=0.05))


class Scripted:
    """A provider of `fumehood.llm` that says what is written down."""

    name = model = "scripted"

    def __init__(self, *turns: str) -> None:
        self._turns = iter(turns)
        self.heard: list[Any] = []

    async def generate(self, request: Any) -> AsyncGenerator[Any, None]:
        from fumehood.llm.providers.base import CodeCall, ModelMessage

        self.heard = list(request.messages)
        turn = next(self._turns)
        code = turn.removeprefix("RUN ")

        if code != turn:
            yield ModelMessage(calls=(CodeCall(id=f"c{len(self.heard)}", code=code),))
        else:
            yield ModelMessage(text=turn)

    async def close(self) -> None:
        return


def test_a_model_answers_questions_with_code_about_what_was_attached(on_discord: Any) -> None:
    model = Scripted(
        "RUN print(totl(1))",
        "RUN total = sum(map(int, open('/mnt/data/data.csv')))\nopen('answer.txt', 'w').write(str(total))",
        "It is **42**.",
        "RUN print(total + 1)",
        "And now 43.",
    )

    async def act(server: Any, bot: Bot) -> None:
        await server.say("What is the sum?", files={"data.csv": b"40\n2\n"})
        said = await server.next()
        assert said.text == "It is **42**."
        assert said.files == {"answer.txt": b"42"}
        assert "/mnt/data/data.csv" in model.heard[0].text
        assert any("NameError" in getattr(message, "text", "") for message in model.heard)
        await server.say("And one more?")
        assert (await server.next()).text == "And now 43."
        assert "43" in model.heard[-1].text

    scene(on_discord, act, model=model)


@pytest.mark.parametrize("size", [80, 200, 2000])
def test_pieces_hold_everything_and_every_block_is_closed(size: int) -> None:
    code = "\n".join(f"value_{n} = {n}" for n in range(40))
    text = f"Look:\n```python\n{code}\n```\nand\n```\n{'y' * 300}\n```\nThe end. {'word ' * 60}"
    pieces = split(text, size)
    assert all(len(piece) <= size and piece.count("```") % 2 == 0 for piece in pieces)
    shown = "".join("\n".join(pieces).split("```")).replace("python", "").replace("\n", "")
    assert shown == "".join(text.split("```")).replace("python", "").replace("\n", "")


def test_no_text_gives_no_piece_and_a_fence_in_it_is_defused() -> None:
    assert (split(""), fit("short")) == ([], (["short"], []))
    assert "```" not in defused("``````")


def test_an_allowance_forgets_after_a_minute() -> None:
    now = 0.0
    allowance = Allowance(1, clock=lambda: now)

    with allowance.spend(1):
        pass

    with pytest.raises(TooMuch, match="60 s"), allowance.spend(1):
        pass

    now = 61.0

    with allowance.spend(1):
        pass

    assert json.dumps(sorted(allowance._begun)) == "[1]"
