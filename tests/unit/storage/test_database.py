"""The database: opened, migrated once, refused when it is newer, put aside when it is broken."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import shutil
import sqlite3
import stat
import sys

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import func, select, text

from fumehood.errors import InvalidArgumentError, StorageError, StorageStartError, StorageVersionError
from fumehood.storage import database as database_module
from fumehood.storage.database import default_url, open_database
from fumehood.storage.tables import METADATA, USAGE

from .scenes import go, opened, start

ROW = {"hour": 1, "executions": 1, "sandboxes": 0, "cpu_seconds": 0.5, "wall_seconds": 1.0}
ROW |= {"bytes_in": 2**40, "bytes_out": 0, "errors": 0}

ADD = """
from fumehood.storage.tables import USAGE
database = await open_database(sys.argv[1])
row = {"hour": 1, "sandboxes": 0, "cpu_seconds": 0.5, "wall_seconds": 1.0, "bytes_in": 1, "bytes_out": 0, "errors": 0}
for number in range(20):
    insert = database.insert(USAGE).values(key_id="shared", executions=1, **row)
    change = {"executions": USAGE.c.executions + 1}
    async with database.writing("adding") as connection:
        await connection.execute(insert.on_conflict_do_update(index_elements=["key_id", "hour"], set_=change))
"""


async def add(database, key_id: str = "k") -> None:
    async with database.writing("adding") as connection:
        await connection.execute(USAGE.insert().values(key_id=key_id, **ROW))


async def count(database) -> int:
    async with database.reading("counting") as connection:
        return (await connection.execute(select(func.count()).select_from(USAGE))).scalar_one()


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


async def test_migrations_make_the_tables_of_today(database_url):
    """What the migrations leave is what the code works with, to the last index."""

    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection), METADATA)

    async with opened(database_url) as database:
        async with database.reading("comparing") as connection:
            assert await connection.run_sync(differences) == []


async def test_what_was_written_is_there_after_the_next_start(database_url):
    async with opened(database_url) as database:
        await add(database)

    async with opened(database_url) as database:
        assert await count(database) == 1
        assert database.quarantined is None


async def test_an_older_database_is_brought_forward_with_its_rows(database_url, tmp_path, monkeypatch):
    async with opened(database_url) as database:
        await add(database)

    extend(tmp_path, monkeypatch, 'op.add_column("usage", sa.Column("new", sa.Integer()))')

    async with opened(database_url) as database:
        async with database.reading("looking") as connection:
            rows = (await connection.execute(text("SELECT key_id, new FROM usage"))).all()

    assert rows == [("k", None)]


async def test_a_migration_that_fails_leaves_the_database_as_it_was(database_url, tmp_path, monkeypatch):
    """All or nothing: the old version can be started again."""
    async with opened(database_url) as database:
        await add(database)

    with monkeypatch.context() as patch:
        broken = 'op.add_column("usage", sa.Column("new", sa.Integer()))\n    op.drop_table("missing")'
        extend(tmp_path, patch, broken)

        with pytest.raises(StorageStartError, match="missing"):
            await open_database(database_url)

    async with opened(database_url) as database:
        async with database.reading("looking") as connection:
            columns = tuple((await connection.execute(text("SELECT * FROM usage"))).keys())

    assert "new" not in columns


def extend(tmp_path, patch, body: str) -> None:
    """One revision more than there is."""
    folder = tmp_path / "migrations"
    shutil.copytree(database_module._FOLDER, folder)
    head = 'import sqlalchemy as sa\nfrom alembic import op\nrevision = "9999"\n'
    head += f"down_revision = {database_module.known_revisions()[-1]!r}\n"
    (folder / "versions" / "later.py").write_text(f"{head}\n\ndef upgrade():\n    {body}\n")
    patch.setattr(database_module, "_FOLDER", folder)


async def test_a_newer_database_is_refused_and_left_untouched(database_url):
    async with opened(database_url) as database:
        async with database.writing("ageing") as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    before = snapshot(database_url)

    with pytest.raises(StorageVersionError, match="'9999' is newer") as caught:
        await open_database(database_url)

    assert caught.value.found == "9999"
    assert "start the newer fumehood" in caught.value.hint
    assert snapshot(database_url) == before


def snapshot(url: str) -> object:
    if url.startswith("sqlite"):
        return pathlib.Path(path_of(url)).read_bytes()

    with psycopg.connect(url) as connection:
        return connection.execute("SELECT relname, relfilenode FROM pg_class ORDER BY oid").fetchall()


async def test_many_writers_in_one_process_lose_nothing(database_url):
    async with opened(database_url) as database:
        await asyncio.gather(*(add(database, f"k{number}") for number in range(60)))
        assert await count(database) == 60


async def test_processes_that_start_at_once_all_succeed(database_url):
    """On a database that is not there yet: one makes it, the others wait, and all of their writes count."""
    results = go(*(start(ADD, database_url) for _ in range(4)))
    assert [code for code, _ in results] == [0] * 4, results

    async with opened(database_url) as database:
        async with database.reading("counting") as connection:
            assert (await connection.execute(select(USAGE.c.executions))).scalar_one() == 80


async def test_a_writer_that_is_cancelled_leaves_the_database_usable(database_url):
    async with opened(database_url) as database:
        for _ in range(5):
            task = asyncio.create_task(add(database))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        before = await count(database)
        await add(database, "other")
        assert await count(database) == before + 1


async def test_a_failure_says_what_was_done_and_not_how(database_url, caplog):
    """A statement, a value or an address may be secret; the log has the driver's words."""
    async with opened(database_url) as database:
        with pytest.raises(StorageError) as caught:
            async with database.reading("looking for it") as connection:
                await connection.execute(text("SELECT :it FROM nowhere"), {"it": "secret-value"})

    assert caught.value.message == "the storage failed while looking for it"
    assert "nowhere" in caught.value.reason
    assert "nowhere" in caplog.text
    assert "secret-value" not in caplog.text + str(caught.value.__cause__)


async def test_the_body_of_a_block_may_fail_and_nothing_is_written(database_url):
    async with opened(database_url) as database:
        with contextlib.suppress(ZeroDivisionError):
            async with database.writing("adding") as connection:
                await connection.execute(USAGE.insert().values(key_id="k", **ROW))
                _ = 1 / 0

        assert await count(database) == 0


async def test_a_sqlite_database_is_for_its_user_alone(tmp_path):
    path = tmp_path / "a" / "state" / "fumehood.db"

    async with opened(f"sqlite:///{path}") as database:
        await add(database)
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}

    assert set(modes) == {"fumehood.db", "fumehood.db-wal", "fumehood.db-shm", "fumehood.db.lock"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    path.chmod(0o644)

    async with opened(f"sqlite:///{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _as_text(path: str) -> None:
    pathlib.Path(path).write_text("this is no database " * 500)


def _truncated(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _beginning(path: str) -> None:
    os.truncate(path, 100)


def _overwritten(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(os.path.getsize(path) - 4096))


@pytest.mark.parametrize("damage", [_as_text, _truncated, _beginning, _overwritten])
async def test_a_broken_sqlite_file_is_put_aside(tmp_path, damage, caplog):
    """Nothing of it is lost, it is said, and the server starts."""
    path = f"{tmp_path}/fumehood.db"

    async with opened(f"sqlite:///{path}") as database:
        await add(database)

    damage(path)
    content = pathlib.Path(path).read_bytes()

    with caplog.at_level(logging.ERROR):
        async with opened(f"sqlite:///{path}") as database:
            quarantined = database.quarantined
            await add(database)
            assert await count(database) == 1

    assert quarantined is not None
    assert quarantined.moved_to.startswith(f"{path}.corrupt-")
    assert quarantined.reason
    assert pathlib.Path(quarantined.moved_to).read_bytes() == content
    assert quarantined.moved_to in caplog.text

    async with opened(f"sqlite:///{path}") as database:
        assert database.quarantined is None


async def test_two_broken_files_in_one_second_do_not_overwrite_each_other(tmp_path):
    path = f"{tmp_path}/fumehood.db"
    moved = set()

    for _ in range(3):
        _as_text(path)

        async with opened(f"sqlite:///{path}") as database:
            moved.add(database.quarantined.moved_to)

    assert len(moved) == 3
    assert all(os.path.exists(name) for name in moved)


async def test_a_log_without_its_database_is_not_replayed(tmp_path):
    path = f"{tmp_path}/fumehood.db"
    pathlib.Path(f"{path}-wal").write_bytes(b"x" * 5000)

    async with opened(f"sqlite:///{path}") as database:
        assert pathlib.Path(f"{database.quarantined.moved_to}-wal").read_bytes() == b"x" * 5000
        assert await count(database) == 0


async def test_a_process_that_dies_leaves_a_sound_database(tmp_path):
    """What was committed is there, though nobody closed anything."""
    url = f"sqlite:///{tmp_path}/fumehood.db"
    assert go(start(ADD + "\nos._exit(9)", url))[0][0] == 9

    async with opened(url) as database:
        assert database.quarantined is None
        assert await count(database) == 1


async def test_what_is_no_file_is_not_moved(tmp_path):
    (tmp_path / "fumehood.db").mkdir()

    with pytest.raises(StorageStartError, match="not a regular file"):
        await open_database(f"sqlite:///{tmp_path}/fumehood.db")

    assert (tmp_path / "fumehood.db").is_dir()


async def test_a_locked_database_is_not_moved(tmp_path, monkeypatch):
    """Somebody else's long transaction is no damage."""
    path = f"{tmp_path}/fumehood.db"

    async with opened(f"sqlite:///{path}"):
        pass

    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("PRAGMA journal_mode = DELETE")
    holder.execute("BEGIN EXCLUSIVE")
    monkeypatch.setattr("fumehood.storage.database._CHECK_SECONDS", 0.05)

    with pytest.raises(StorageStartError, match="locked"):
        await open_database(f"sqlite:///{path}")

    holder.close()
    assert sorted(os.listdir(tmp_path)) == ["fumehood.db", "fumehood.db.lock"]


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "mysql://me:secret@host/db", "sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=ro",
     "postgresql+asyncpg://me:secret@host/db", "sqlite://host/x.db", "postgresql://me:secret@host:port/db"],
)  # fmt: skip
async def test_other_addresses_are_refused_without_their_password(url):
    with pytest.raises(InvalidArgumentError, match="database_url") as caught:
        await open_database(url)

    assert "secret" not in str(caught.value)


async def test_a_server_that_does_not_answer_is_named_without_its_password(tmp_path):
    with pytest.raises(StorageStartError) as caught:
        await open_database(f"postgresql://me:secret@/db?host={tmp_path}&password=secret")

    assert str(tmp_path) in caught.value.message
    assert "secret" not in str(caught.value)


async def test_a_missing_driver_is_reported_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(StorageStartError) as caught:
        await open_database("postgresql://me@host/db")

    assert "fumehood[server,postgres]" in caught.value.hint


async def test_the_default_lies_in_the_state_folder(tmp_path):
    """Whatever characters the folder's name has."""
    folder = tmp_path / "a b%20c?d#é"

    async with opened(default_url(str(folder))) as database:
        await add(database)

    assert (folder / "fumehood.db").exists()
