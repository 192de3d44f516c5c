"""What the kernel holds without charging anybody: when guests are looked at, and what is counted."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from fumehood.runtimes.linux import usage as linux_uncharged
from fumehood.runtimes.linux.usage import MOST_WAITING_CONNECTIONS, News, Uncharged, waiting_connections

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: 0100007F:1F90 00000000:0000 {state} 00000000:{queue:08X} 00:00000000 00000000 1000 0 5\n"


def test_news_are_what_rose_above_the_lowest():
    """A slow rise is news in the end, and so is each further one; a fall lowers what it is compared with."""
    news = News(100)
    assert [news.note(figure) for figure in (500, 560, 599, 600, 650, 400, 499, 500)] == [
        *[False] * 3,
        True,
        *[False] * 3,
        True,
    ]
    assert news.note(None)


def test_the_queues_of_all_listeners_count(tmp_path: Path):
    """Of both families, and nothing behind the last listener."""
    rows = [
        ROW.format(state="0A", queue=40),
        ROW.format(state="0A", queue=2),
        ROW.format(state="01", queue=9000),
    ]
    (tmp_path / "tcp").write_text(HEAD + "".join(rows))
    (tmp_path / "tcp6").write_text(HEAD + ROW.format(state="0A", queue=8))
    assert waiting_connections(str(tmp_path)) == 50
    assert waiting_connections(str(tmp_path / "gone")) == 0


class Guest:
    """A guest with a network namespace that is a folder of files."""

    def __init__(self, folder: Path, waiting: int) -> None:
        self.folder = folder
        self.ended = asyncio.Event()
        folder.mkdir()
        (folder / "sockstat").write_text(f"sockets: used {waiting + 10}\nTCP: inuse 3\n")
        (folder / "tcp").write_text(HEAD + ROW.format(state="0A", queue=waiting))

    def on_excess(self) -> None:
        """It is ended."""
        self.ended.set()

    def network_view(self) -> str:
        """Its folder."""
        return str(self.folder)

    def process_ids(self) -> list[int]:
        """It has no processes."""
        return []


def test_whoever_has_too_much_is_ended_and_nobody_else(tmp_path: Path, monkeypatch):
    """Guests are looked at once the machine's count has risen."""
    # It rises with each look: an engine in the same process looks at it too.
    figures = itertools.count(1000, 1000)
    monkeypatch.setattr(linux_uncharged, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(linux_uncharged, "machine_sockets", lambda: next(figures))

    async def look() -> None:
        modest = Guest(tmp_path / "modest", MOST_WAITING_CONNECTIONS)
        greedy = Guest(tmp_path / "greedy", MOST_WAITING_CONNECTIONS + 1)
        watch = Uncharged({1: modest, 2: greedy})
        async with asyncio.timeout(30):
            await greedy.ended.wait()

        watch.close()
        assert not modest.ended.is_set()

    asyncio.run(look())
