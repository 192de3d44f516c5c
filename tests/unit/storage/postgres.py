"""A PostgreSQL server of the test's own: on a Unix socket in a folder of its own, gone afterwards."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.tied import tied


def programs() -> str:
    """The folder of initdb and postgres, the newest there is."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
    found = shutil.which("initdb")
    folders = folders or ([os.path.dirname(os.path.realpath(found))] if found else [])

    if not folders:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")

    return folders[-1]


def another_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    raise AssertionError("no user to run PostgreSQL as")


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """The folder of the socket of a server that is ready."""
    binaries, who = programs(), another_user()
    folder = tempfile.mkdtemp(prefix="fumehood-pg-")

    try:
        if who:
            os.chown(folder, who["user"], who["group"])

        data = f"{folder}/data"
        subprocess.run(
            [f"{binaries}/initdb", "-D", data, "-U", "fumehood", "--auth=trust", "--no-sync", "-E", "UTF8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **who,
        )
        command = [f"{binaries}/postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-F"]

        with subprocess.Popen(
            tied(command), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=folder, **who
        ) as server:
            try:
                said = []

                for line in server.stderr:
                    said.append(line)

                    if "ready to accept connections" in line:
                        break
                else:
                    raise AssertionError("".join(said))

                yield folder
            finally:
                # Immediate shutdown: nothing of it is kept. What it still says must not fill the pipe.
                server.send_signal(3)
                server.communicate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def new_database(folder: str, name: str) -> str:
    """The address of an empty database."""
    with psycopg.connect(f"host={folder} user=fumehood dbname=postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" STRATEGY file_copy')

    return address(folder, name)


def address(folder: str, name: str) -> str:
    return f"postgresql://fumehood@/{name}?host={folder}"


def empty(folder: str, name: str) -> None:
    """End what is still connected to a database, and make it as new."""
    with psycopg.connect(f"host={folder} user=fumehood dbname={name}", autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
