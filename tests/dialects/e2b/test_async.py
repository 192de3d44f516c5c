"""The asynchronous SDK: the same sandboxes, and the streams that only it holds."""

from __future__ import annotations

import asyncio

import pytest
from e2b import CommandExitException, NotFoundException
from e2b.exceptions import SandboxNotRunningException
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import AsyncSandbox

SECONDS = 60


def run(scene):
    """Runs a scene on a sandbox of its own."""

    async def whole():
        sandbox = await AsyncSandbox.create(timeout=300)
        try:
            await asyncio.wait_for(scene(sandbox), SECONDS)
        finally:
            await sandbox.kill()

    asyncio.run(whole())


def test_a_sandbox_from_its_first_to_its_last_call():
    """Made, asked, paused, connected to, ended."""

    async def scene(sandbox):
        assert (await sandbox.get_info()).sandbox_id == sandbox.sandbox_id
        assert sandbox.sandbox_id in [info.sandbox_id for info in await AsyncSandbox.list().next_items()]
        await sandbox.set_timeout(400)
        assert len(await sandbox.get_metrics()) == 1
        assert await sandbox.pause() is True
        assert await sandbox.is_running() is False
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert await again.is_running() is True
        assert await again.kill() is True

        with pytest.raises(NotFoundException):
            await sandbox.get_info()

        with pytest.raises(SandboxNotRunningException):
            await sandbox.commands.run("true")

    run(scene)


def test_files_and_their_changes():
    """Written, read, streamed, and watched as a stream."""

    async def scene(sandbox):
        await sandbox.files.make_dir("seen")
        changes: asyncio.Queue = asyncio.Queue()
        watch = await sandbox.files.watch_dir("seen", on_event=changes.put, recursive=True)
        await sandbox.files.write_files([{"path": "seen/a", "data": "1"}, {"path": "other", "data": "2"}])
        first, second, third = [await changes.get() for _ in range(3)]
        assert [(event.name, event.type.value) for event in (first, second, third)] == [
            ("a", "create"),
            ("a", "chmod"),
            ("a", "write"),
        ]
        await watch.stop()

        async def pieces():
            for _ in range(10):
                yield b"x" * 100_000

        await sandbox.files.write("big", pieces())
        stream = await sandbox.files.read("big", format="stream")
        assert sum([len(piece) async for piece in stream]) == 1_000_000
        assert await sandbox.files.read("other") == "2"
        assert [entry.name for entry in await sandbox.files.list("seen")] == ["a"]
        assert await sandbox.files.exists("nowhere") is False

    run(scene)


def test_commands_and_terminals():
    """Followed, fed, killed; several at once."""

    async def scene(sandbox):
        results = await asyncio.gather(*(sandbox.commands.run(f"sleep 0.1; echo {n}") for n in range(8)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
        command = await sandbox.commands.run("cat", background=True, stdin=True)
        await command.send_stdin("one\n")
        handle = sandbox.commands.stream_input(command.pid)
        await handle.send("two\n")
        await handle.send(b"three\n")
        await handle.close()
        await command.close_stdin()
        assert (await command.wait()).stdout == "one\ntwo\nthree\n"
        shown = bytearray()
        terminal = await sandbox.pty.create(PtySize(24, 80), on_data=shown.extend)
        await sandbox.pty.resize(terminal.pid, PtySize(25, 81))
        await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")

        with pytest.raises(CommandExitException):
            await terminal.wait()

        assert b"25 81" in shown

    run(scene)


def test_code_and_contexts():
    """Callbacks, several contexts at once, and code whose task is cancelled."""

    async def scene(sandbox):
        heard = []
        execution = await sandbox.run_code(
            "print('a')\n1", on_stdout=lambda message: heard.append(message.line)
        )
        assert (execution.text, heard) == ("1", ["a\n"])
        contexts = await asyncio.gather(*(sandbox.create_code_context() for _ in range(3)))
        texts = await asyncio.gather(
            *(sandbox.run_code(f"{n} + 1", context=context) for n, context in enumerate(contexts))
        )
        assert [item.text for item in texts] == ["1", "2", "3"]
        begun = asyncio.Event()
        endless = asyncio.create_task(
            sandbox.run_code("print(1, flush=True)\nwhile True: pass", on_stdout=lambda _: begun.set())
        )
        await begun.wait()
        endless.cancel()
        assert (await sandbox.run_code("'free'")).text == "free"
        await sandbox.restart_code_context(contexts[0])
        await sandbox.remove_code_context(contexts[1])
        left = {context.id for context in await sandbox.list_code_contexts()}
        assert {contexts[0].id, contexts[2].id} <= left
        assert contexts[1].id not in left

    run(scene)
