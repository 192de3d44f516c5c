"""Volumes by E2B's unmodified SDK: files that outlive sandboxes, and guests that write what must not be kept."""

from __future__ import annotations

import io
import uuid

import pytest
from e2b import Volume
from e2b.exceptions import NotFoundException, SandboxException, VolumeException
from e2b_code_interpreter import Sandbox

PLACE = "/mnt/data/kept"
HOSTILE = r"""
import fcntl, os, socket
os.chdir("/mnt/data/kept")
open("good.txt", "w").write("good")
os.makedirs("deep/" + "/".join("d" * 40))
open("deep/ok", "w").write("ok")
os.symlink("/etc/passwd", "link")
os.symlink("/", "root")
os.symlink("/nowhere", "dangling")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
os.close(os.open(b"odd\xff\xfe", os.O_WRONLY | os.O_CREAT))
open("new\nline", "w").write("line")
with open("sparse", "wb") as file:
    file.truncate(1 << 40)
os.link("good.txt", "hard")
held = os.open("leased", os.O_RDWR | os.O_CREAT)
os.write(held, b"leased")
fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
"""


@pytest.fixture
def volume():
    """A volume of this test; whatever held it has ended when the test has."""
    made = Volume.create(f"v-{uuid.uuid4().hex}")
    yield made
    assert Volume.destroy(made.volume_id)


def holding(volume: Volume, path: str = PLACE, **options: object) -> Sandbox:
    """A sandbox that holds a volume."""
    return Sandbox.create(timeout=120, volume_mounts={path: volume}, **options)


def described(http, addresses, volume: Volume) -> dict:
    """What the server says of a volume besides E2B's fields."""
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}
    return http.get(f"/volumes/{volume.volume_id}", headers=headers).json()


def test_volumes_are_made_found_and_deleted():
    """By name and id; a second of the same name is refused, and none is there after its end."""
    name = f"v-{uuid.uuid4().hex}"
    made = Volume.create(name)
    assert (made.volume_id, name) in [(one.volume_id, one.name) for one in Volume.list()]
    assert Volume.connect(made.volume_id).name == Volume.get_info(made.volume_id).name == name

    with pytest.raises(VolumeException, match=r"409: there is a volume"):
        Volume.create(name)

    with pytest.raises(VolumeException, match=r"400.*name"):
        Volume.create("../up")

    made.write_file("a", "b")
    assert Volume.destroy(made.volume_id)
    assert not Volume.destroy(made.volume_id)

    with pytest.raises(NotFoundException):
        made.read_file("a")


def test_files_are_written_and_read_from_outside(volume):
    """All calls of the SDK but the one for modes, which is refused."""
    assert volume.write_file("/a/b.txt", "text").size == 4
    assert volume.read_file("a/b.txt") == "text"
    volume.write_file("a/b.txt", io.BytesIO(b"\x00\xff"))
    assert volume.read_file("a/b.txt", format="bytes") == b"\x00\xff"
    assert b"".join(volume.read_file("a/b.txt", format="stream")) == b"\x00\xff"
    volume.make_dir("a/empty")
    volume.make_dir("x/y/z", force=True)
    assert [(one.path, one.type.value) for one in volume.list("/")] == [
        ("/a", "directory"),
        ("/x", "directory"),
    ]
    assert [one.path for one in volume.list("/", depth=2)] == ["/a", "/a/b.txt", "/a/empty", "/x", "/x/y"]
    assert (volume.exists("a/b.txt"), volume.exists("a/c"), volume.get_info("a").name) == (True, False, "a")

    for refused, status in (
        (lambda: volume.make_dir("none/there"), "not found"),
        (lambda: volume.make_dir("a"), "^409"),
        (lambda: volume.write_file("a", "a folder is there"), "^400"),
        (lambda: volume.write_file("a/b.txt/c", "a file is above"), "^400"),
        (lambda: volume.write_file("../a", "out"), "^400"),
        (lambda: volume.write_file("/".join("d" * 33), "deep"), "^400"),
        (lambda: volume.update_metadata("a", mode=0o600), "^501"),
    ):
        with pytest.raises((VolumeException, NotFoundException), match=status):
            refused()

    volume.remove("a")
    assert [one.path for one in volume.list("/", depth=9)] == ["/x", "/x/y", "/x/y/z"]


def test_files_outlive_sandboxes(volume, eventually):
    """They are stored while the sandbox runs, and at its end; one sandbox at a time holds them."""
    volume.write_file("from/outside", "outside")

    with holding(volume) as first:
        assert first.get_info().volume_mounts == [{"name": volume.name, "path": PLACE}]
        assert first.files.read(f"{PLACE}/from/outside") == "outside"
        first.files.write(f"{PLACE}/while", "it runs")
        eventually(lambda: volume.exists("while"))
        assert volume.read_file("while") == "it runs"

        for refused in (
            lambda: holding(volume),
            lambda: volume.write_file("a", "b"),
            lambda: Volume.destroy(volume.volume_id),
        ):
            with pytest.raises(Exception, match=f"409.*held by sandbox '{first.sandbox_id}'"):
                refused()

        first.files.write(f"{PLACE}/while", "at its end")
        first.commands.run(f"rm -r {PLACE}/from; mkdir {PLACE}/empty; cp /bin/true {PLACE}/bin")

    assert volume.read_file("while") == "at its end"
    assert not volume.exists("from/outside")

    with holding(volume, "/home/user/again") as second:
        assert second.commands.run("ls -F again; cmp again/bin /bin/true").stdout == "bin\nempty/\nwhile\n"
        second.pause()

        with pytest.raises(SandboxException, match=r"409.*held by"):
            holding(volume)

        assert second.connect(timeout=60).files.read("again/while") == "at its end"


def test_a_hostile_guest_is_bounded(volume, http, addresses, server):
    """Of what it writes only files and folders are kept, and the rest is named with its reason."""
    with holding(volume) as sandbox:
        assert sandbox.run_code(HOSTILE).error is None
        sandbox.pause()
        said = described(http, addresses, volume)
        assert said["heldBy"] == sandbox.sandbox_id
        reasons = {one["path"]: one["reason"] for one in said["notStored"]}
        assert {reasons[name] for name in ("link", "root", "dangling")} == {"it is a link"}
        assert {reasons[name] for name in ("fifo", "socket")} == {"it is neither a file nor a folder"}
        assert "too many" in reasons["sparse"]
        assert "no text" in reasons["odd\udcff\udcfe"]
        assert "leased" in reasons
        assert sum(path.startswith("deep/d") for path in reasons) > 0

        # Nor does it drive out of the audit record what it did before.
        audit = http.get(f"/v1/sandboxes/{sandbox.sandbox_id}/audit", headers=server.headers).json()
        kinds = [entry["kind"] for entry in audit["entries"]]
        assert 0 < kinds.count("volume_read") <= 12
        assert "file_out" not in kinds

        names = {one.path for one in volume.list("/")}
        assert names == {"/deep", "/good.txt", "/hard", "/new\nline"}
        assert (volume.read_file("hard"), volume.read_file("new\nline")) == ("good", "line")
        assert volume.read_file("deep/ok") == "ok"

    # A folder that became a link to elsewhere removes nothing and stores nothing; as part of a snapshot it is replaced.
    with holding(volume) as sandbox:
        sandbox.commands.run(f"mv {PLACE} /tmp/away && touch stays && ln -s /home/user {PLACE}")
        snapshot = sandbox.create_snapshot()

    assert {one.path for one in volume.list("/")} == names

    with holding(volume, template=snapshot.snapshot_id) as sandbox:
        shown = sandbox.commands.run(f"cat {PLACE}/good.txt; ls stays; test -L {PLACE} || echo a folder")
        assert shown.stdout == "goodstays\na folder\n"

    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_too_many_entries_are_left_out(volume, http, addresses):
    """What was stored before stays, and the guest's clock makes no difference."""
    volume.write_file("zz", "first")

    with holding(volume) as sandbox:
        sandbox.run_code(
            f"import os\nos.chdir({PLACE!r})\nfor n in range(1010): os.mkdir(f'{{n:04}}')\n"
            "open('zz', 'w').write('other')\nos.utime('zz', (0, 0))"
        )
        sandbox.pause()
        said = described(http, addresses, volume)
        assert said["entries"] == 1000
        assert "entries are left out" in said["problem"]
        assert volume.read_file("zz") == "other"


def test_folders_that_cannot_hold_a_volume_are_refused(volume):
    """Nothing is made, and the volume stays free."""
    before = {one.sandbox_id for one in Sandbox.list().next_items()}

    for path in ("/", "/etc", "/home/user", "/mnt/other", "/tmp/../etc", "relative", "/tmp"):
        with pytest.raises(SandboxException, match=r"400.*volumeMounts"):
            holding(volume, path)

    with pytest.raises(SandboxException, match=r"400.*none is in another"):
        Sandbox.create(volume_mounts={"/tmp/a": volume, "/tmp/a/b": volume})

    with pytest.raises(SandboxException, match=r"400.*each once"):
        Sandbox.create(volume_mounts={"/tmp/a": volume, "/tmp/b": volume})

    with pytest.raises((SandboxException, NotFoundException), match="no volume 'unknown'"):
        Sandbox.create(volume_mounts={"/tmp/a": "unknown"})

    assert {one.sandbox_id for one in Sandbox.list().next_items()} <= before
    volume.write_file("a", "still free")


def test_a_key_sees_its_own_volumes_alone(volume, http, server, eventually):
    """Neither by name nor by id nor by the token of another volume; a token ends with its key."""
    volume.write_file("secret", "canary")
    body = {"name": "a tenant", "scopes": ["sandboxes", "execute"]}
    made = http.post("/v1/keys", json=body, headers=server.headers).json()
    key, key_id = made["token"], made["key"]["id"]
    assert Volume.list(api_key=key) == []
    assert not Volume.destroy(volume.volume_id, api_key=key)
    theirs = Volume.create("theirs", api_key=key)
    assert theirs.write_file("a", "b").size == 1

    for name in (volume.volume_id, volume.name):
        with pytest.raises((SandboxException, NotFoundException), match="no volume"):
            Sandbox.create(volume_mounts={"/tmp/a": name}, api_key=key)

    for token, status in (
        (key, 404),
        (theirs.token, 401),
        (theirs.token[:-1] + "x", 401),
        ("fhv_owner.00", 401),
    ):
        answer = http.get(
            f"/volumecontent/{volume.volume_id}/file?path=secret",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == status
        assert "canary" not in answer.text

    assert http.get("/volumes", headers={"X-API-Key": theirs.token}).status_code == 401

    def read() -> int:
        path = f"/volumecontent/{theirs.volume_id}/file?path=a"
        return http.get(path, headers={"Authorization": f"Bearer {theirs.token}"}).status_code

    assert read() == 200
    http.delete(f"/v1/keys/{key_id}", headers=server.headers).raise_for_status()
    eventually(lambda: read() == 401)


def test_files_of_another_dialect_reach_no_volume(volume, http, server):
    """They are in the same table, and a volume and what is in it are none of them, also by their ids."""
    volume.write_file("a", "b")

    for path in (f"files/e2b%20volumes/{volume.volume_id}", f"download/e2b%20volumes/{volume.volume_id}"):
        method = "DELETE" if path.startswith("files") else "GET"
        assert http.request(method, f"/librechat/{path}", headers=server.headers).status_code == 404

    for session in ("e2b%20volumes", volume.volume_id):
        assert http.get(f"/librechat/files/{session}", headers=server.headers).json() == []

    assert volume.read_file("a") == "b"


def test_what_was_stored_outlives_the_server(start_server, tmp_path, monkeypatch, eventually):
    """Also one that is killed: its sandboxes have ended, and the volume is free again."""
    state = tmp_path / "state"
    server = start_server(state, pool_size=0)

    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
        monkeypatch.setenv(name, server.url)

    volume = Volume.create("kept")
    holding(volume).files.write(f"{PLACE}/a", "b")
    eventually(lambda: volume.exists("a"))
    server.process.kill()
    server.process.wait(30)
    server = start_server(state, pool_size=0)
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_VOLUME_API_URL", server.url)
    kept = Volume.connect(volume.volume_id)
    kept.write_file("c", kept.read_file("a"))
    assert kept.read_file("c") == "b"
    assert Volume.destroy(kept.volume_id)
    assert not [path for path in (state / "blobs").rglob("*") if path.is_file()]


def test_the_end_of_a_server_stores_what_changed(start_server, tmp_path, monkeypatch):
    """What was written since the last round is in the volume when the server has ended as it was asked to."""
    state = tmp_path / "state"
    server = start_server(state, pool_size=0)

    for name in ("E2B_API_URL", "E2B_SANDBOX_URL", "E2B_VOLUME_API_URL"):
        monkeypatch.setenv(name, server.url)

    volume = Volume.create("kept")
    holding(volume).files.write(f"{PLACE}/a", "b")
    server.stop()
    server = start_server(state, pool_size=0)
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_VOLUME_API_URL", server.url)
    assert Volume.connect(volume.volume_id).read_file("a") == "b"


def test_a_key_has_so_many_volumes(new_key):
    """The next one is refused, and one that is deleted makes room."""
    key = new_key()
    made = [Volume.create(f"v{number}", api_key=key) for number in range(20)]

    with pytest.raises(Exception, match=r"20 of 20 volumes"):
        Volume.create("one-more", api_key=key)

    assert Volume.destroy(made[0].volume_id, api_key=key)
    Volume.create("one-more", api_key=key)
