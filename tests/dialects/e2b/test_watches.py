"""Watches of directories by E2B's SDK: which changes come, that none is missed, and what is told of each."""

from __future__ import annotations

import asyncio

from e2b import AsyncSandbox, FilesystemEventType, FileType

ASKED = 60


def seen(events):
    return [(event.type.value, event.name) for event in events]


def test_an_upload_has_the_events_that_e2b_has(sandbox):
    """A new file: created, given its mode, written. One that is replaced: written. Nothing of how it is done."""
    sandbox.files.make_dir("events/sub")
    flat, deep = sandbox.files.watch_dir("events"), sandbox.files.watch_dir("events", recursive=True)
    sandbox.files.write("events/a", "1")
    assert seen(flat.get_new_events()) == [("create", "a"), ("chmod", "a"), ("write", "a")]
    sandbox.files.write("events/a", "2")
    assert seen(flat.get_new_events()) == [("write", "a")]
    sandbox.files.write("events/sub/b", "3")
    news = seen(deep.get_new_events())
    assert news[-3:] == [("create", "sub/b"), ("chmod", "sub/b"), ("write", "sub/b")]
    assert len(news) == 7


def test_a_watch_that_is_asked_right_after_a_write_knows_of_it(sandbox):
    """Every time: what is under way from the sandbox is waited for."""
    sandbox.files.make_dir("asked")
    watch = sandbox.files.watch_dir("asked")

    for number in range(ASKED):
        sandbox.files.write(f"asked/{number}", "x")
        assert ("create", f"{number}") in seen(watch.get_new_events()), number

    sandbox.commands.run("touch asked/by-command")
    assert ("create", "by-command") in seen(watch.get_new_events())


def test_changes_bring_what_is_there(sandbox):
    """With `include_entry`; what is gone again brings nothing, and any kind of mount may be watched."""
    sandbox.files.make_dir("entries")
    watch = sandbox.files.watch_dir("entries", include_entry=True, allow_network_mounts=True)
    sandbox.files.write("entries/a", "12345", metadata={"tag": "one"})
    told = watch.get_new_events()
    assert [event.type for event in told] == [
        FilesystemEventType.CREATE,
        FilesystemEventType.CHMOD,
        FilesystemEventType.WRITE,
    ]

    for event in told:
        assert (event.entry.path, event.entry.size, event.entry.type) == (
            "/home/user/entries/a",
            5,
            FileType.FILE,
        )
        assert event.entry.metadata == {"tag": "one"}

    sandbox.files.remove("entries/a")
    (gone,) = watch.get_new_events()
    assert (gone.type, gone.entry) == (FilesystemEventType.REMOVE, None)
    plain = sandbox.files.watch_dir("entries")
    sandbox.files.write("entries/b", "x")
    assert [event.entry for event in plain.get_new_events()] == [None] * 3


def test_a_stream_brings_the_same(addresses):
    """The asynchronous SDK follows a stream instead of asking."""

    async def work() -> None:
        sandbox = await AsyncSandbox.create(timeout=120)
        come: asyncio.Queue = asyncio.Queue()

        try:
            await sandbox.files.watch_dir(".", on_event=come.put_nowait, include_entry=True)
            await sandbox.files.write("streamed", "1234567")

            for kind in ("create", "chmod", "write"):
                event = await asyncio.wait_for(come.get(), 30)
                assert (event.type.value, event.name, event.entry.size) == (kind, "streamed", 7)
        finally:
            await sandbox.kill()

    asyncio.run(work())
