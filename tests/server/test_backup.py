"""Backups: of a server that runs, restored into an empty place; and those that older versions have made."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .ends import client_of, run

Start = Callable[..., Any]
# Made by earlier versions: a backup, and a saved state of a sandbox with `x = [1, 2, 3]` and a file `a.txt`.
OLDER = Path(__file__).parent / "older_versions"


def command(*argv: object, home: Path) -> subprocess.CompletedProcess[str]:
    envs = {name: value for name, value in os.environ.items() if not name.startswith("FUMEHOOD_")}
    envs |= {"FUMEHOOD_ARTIFACTS": str(home / "artifacts")}
    words = [sys.executable, "-m", "fumehood", *map(str, argv)]
    return subprocess.run(words, env=envs, capture_output=True, text=True, timeout=60)


def test_a_backup_of_a_running_server_is_restored(start_server: Start, tmp_path: Path) -> None:
    """Keys, uploaded files and signatures are as they were; what came after the backup is not there."""
    server = start_server(tmp_path / "old", pool_size=0)
    home, file = tmp_path / "home", tmp_path / "server.backup"
    (home / "artifacts" / "a").mkdir(parents=True)
    (home / "artifacts" / "a" / "chart.png").write_bytes(b"picture")

    with client_of(server) as owner:
        made = owner.post("/v1/keys", json={"name": "kept"}).json()
        content = {"file": ("b.csv", b"a,b\n1,2\n")}
        uploaded = owner.post("/librechat/v1/upload", files=content, data={"entity_id": "e"})
        assert uploaded.status_code == 200, uploaded.text
        done = command("backup", file, "--state-folder", server.state, home=home)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        owner.post("/v1/keys", json={"name": "later"})

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = command("backup", file, "--state-folder", server.state, home=home)
    assert (again.returncode, "not there yet" in again.stderr) == (64, True)
    new, other = tmp_path / "new", tmp_path / "other"
    refused = command("restore", file, "--state-folder", server.state, home=other)
    assert (refused.returncode, "overwrites nothing" in refused.stderr) == (64, True)
    new.mkdir()
    done = command("restore", file, "--state-folder", new, home=other)
    assert done.returncode == 0, done.stderr
    assert (other / "artifacts" / "a" / "chart.png").read_bytes() == b"picture"
    assert (new / "secret").read_bytes() == (server.state / "secret").read_bytes()
    blobs = [path.relative_to(server.state) for path in (server.state / "blobs").rglob("*") if path.is_file()]
    assert blobs
    assert all((new / path).read_bytes() == (server.state / path).read_bytes() for path in blobs)

    restored = start_server(new, pool_size=0)

    with client_of(restored) as owner, client_of(restored, made["token"]) as api:
        assert api.get("/v1/info").status_code == 200
        assert [key["name"] for key in owner.get("/v1/keys").json()["items"]] == ["kept"]


@pytest.mark.parametrize("harm", ["cut", "changed", "newer", "outside", "text"])
def test_what_is_no_whole_backup_is_refused(start_server: Start, tmp_path: Path, harm: str) -> None:
    """Nothing is left where it should have gone."""
    file, target = tmp_path / "bad.backup", tmp_path / "state"
    whole = OLDER / "0.1.0.backup"

    if harm == "cut":
        file.write_bytes(whole.read_bytes()[:-200])
    elif harm == "text":
        file.write_text("no archive")
    else:
        _rewrite(whole, file, harm)

    done = command("restore", file, "--state-folder", target, home=tmp_path / "home")
    assert done.returncode in (64, 70), done.stderr
    assert ("newer" if harm == "newer" else "whole archive") in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["bad.backup"]


def _rewrite(source: Path, target: Path, harm: str) -> None:
    with tarfile.open(source) as old, tarfile.open(target, "w:gz") as new:
        for member in old:
            content = old.extractfile(member).read()  # type: ignore[union-attr]

            if harm == "changed" and member.name == "state/secret":
                content = b"x" * len(content)
            elif harm == "outside" and member.name == "state/secret":
                member.name = "state/../../secret"
            elif harm == "newer" and member.name == "manifest.json":
                content = json.dumps({**json.loads(content), "revision": "9999"}).encode()

            member.size = len(content)
            new.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("version", ["0.1.0"])
def test_what_an_older_version_kept_is_opened(start_server: Start, tmp_path: Path, version: str) -> None:
    """Its database is migrated, its keys open the server, and its saved state has variables and files."""
    done = command(
        "restore", OLDER / f"{version}.backup", "--state-folder", tmp_path / "state", home=tmp_path
    )
    assert done.returncode == 0, done.stderr
    token = (OLDER / f"{version}.token").read_text().strip()
    server = start_server(tmp_path / "state", pool_size=0)

    with client_of(server, token) as api:
        state = (OLDER / f"{version}.state").read_bytes()
        answer = api.post("/v1/sandboxes/load", files={"state": ("state", state)})
        assert answer.status_code == 201, answer.text
        told = run(api, answer.json()["sandbox"]["id"], "x, open('/mnt/data/a.txt').read()")
        assert told["text"] == "([1, 2, 3], 'kept')"
        assert api.get("/v1/usage").json()


def test_a_server_without_artifacts_is_backed_up(start_server: Start, tmp_path: Path) -> None:
    """The folder of artifacts is made by the first one; until then there is none to copy."""
    server = start_server(tmp_path / "old", pool_size=0)
    home, file = tmp_path / "home", tmp_path / "server.backup"
    done = command("backup", file, "--state-folder", server.state, home=home)
    assert done.returncode == 0, done.stderr
    done = command("restore", file, "--state-folder", tmp_path / "new", home=home)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "secret").is_file()


def test_a_backup_that_is_not_there_is_named(tmp_path: Path) -> None:
    """As every other file that a command cannot read."""
    done = command("restore", tmp_path / "none", "--state-folder", tmp_path / "state", home=tmp_path)
    assert (done.returncode, "none': No such file or directory" in done.stderr) == (74, True), done.stderr


def whole() -> Path:
    return OLDER / "0.1.0.backup"


def test_a_state_folder_may_be_a_mount_and_another_users(tmp_path: Path) -> None:
    """A volume of its own, as in a container; what is restored by root belongs to the owner of the folder."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "lost+found").mkdir()
    nobody = 65534

    if os.geteuid() == 0:
        os.chown(state, nobody, nobody)

    # A mount of the folder upon itself cannot be renamed over, as that of a volume.
    restore = f"{sys.executable} -m fumehood restore {whole()} --state-folder {state}"
    mounted = f"mount --bind {state} {state} && exec {restore}"
    user = ["--user", "--map-root-user"] if os.geteuid() else []
    envs = os.environ | {"FUMEHOOD_ARTIFACTS": str(tmp_path / "artifacts")}
    done = subprocess.run(
        ["unshare", *user, "--mount", "sh", "-c", mounted],
        env=envs,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert {"fumehood.db", "secret", "lost+found"} <= {path.name for path in state.iterdir()}
    assert not (state / ".restoring").exists()
    assert not (tmp_path / "artifacts").exists()
    owners = {path.stat().st_uid for path in state.rglob("*") if path.name != "lost+found"}
    assert owners == {nobody if os.geteuid() == 0 else os.geteuid()}


def test_the_database_is_restored_to_where_the_settings_say(start_server: Start, tmp_path: Path) -> None:
    """The server that starts there finds its keys; a database that is there already is not touched."""
    database, config = tmp_path / "db" / "server.db", tmp_path / "server.toml"
    config.write_text(f'database_url = "sqlite+aiosqlite:///{database}"\n')
    words = ["restore", whole(), "--config", config, "--state-folder"]
    done = command(*words, tmp_path / "state", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert database.is_file()
    assert not (tmp_path / "state" / "fumehood.db").exists()
    server = start_server(tmp_path / "state", pool_size=0, database_url=f"sqlite+aiosqlite:///{database}")

    with client_of(server, (OLDER / "0.1.0.token").read_text().strip()) as api:
        assert api.get("/v1/info").status_code == 200

    before = database.stat().st_ino
    again = command(*words, tmp_path / "again", home=tmp_path)
    assert (again.returncode, "overwrites nothing" in again.stderr) == (64, True)
    assert database.stat().st_ino == before
    assert not (tmp_path / "again").exists()


def test_a_database_that_a_backup_cannot_hold_is_refused(tmp_path: Path) -> None:
    """A server that uses PostgreSQL would not see what was restored to a file."""
    config = tmp_path / "server.toml"
    config.write_text('database_url = "postgresql+asyncpg://u:secret@db/x"\n')
    done = command(
        "restore", whole(), "--config", config, "--state-folder", tmp_path / "state", home=tmp_path
    )
    assert (done.returncode, "a database of SQLite" in done.stderr, "secret" in done.stderr) == (
        64,
        True,
        False,
    )
    assert not (tmp_path / "state").exists()


def test_no_server_starts_on_half_a_restore(tmp_path: Path) -> None:
    """One that was killed leaves its folder; the server would begin with an empty database."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / ".restoring").mkdir()
    done = command("serve", "--port", "0", "--state-folder", tmp_path / "state", home=tmp_path)
    assert (done.returncode, "whose restore is finished" in done.stderr) == (64, True), done.stderr


def test_what_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    """A file that cannot take its place: what was moved before it is removed again."""
    from fumehood.storage import restore
    from fumehood.storage.backup import ServerFiles

    class Failing(type(tmp_path)):  # type: ignore[misc]
        def rename(self, target: Path) -> Path:
            if self.name == "fumehood.db":
                raise OSError(28, "No space left on device")

            return super().rename(target)

    (tmp_path / "state").mkdir()
    places = ServerFiles(state=Failing(tmp_path / "state"), database_url="", artifacts=None)

    with pytest.raises(OSError, match="No space"):
        restore.restore_backup(whole(), places)

    assert not list((tmp_path / "state").iterdir())
