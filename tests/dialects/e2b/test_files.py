"""Files of a sandbox by E2B's SDK, its signed URLs, and the plain requests behind both."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    SandboxException,
)
from e2b.exceptions import NotEnoughSpaceException
from e2b_code_interpreter import Sandbox

DATA = os.urandom(3_000_000)


def test_text_bytes_and_streams_come_back_as_they_went(shared):
    """Every form of content, through every form of upload."""
    info = shared.files.write("notes/a b.txt", "grüße\n")
    assert (info.path, info.name, info.type) == ("/home/user/notes/a b.txt", "a b.txt", FileType.FILE)
    assert shared.files.read("notes/a b.txt") == "grüße\n"

    for options in ({}, {"use_octet_stream": True}, {"gzip": True}):
        shared.files.write("data.bin", DATA, **options)
        assert shared.files.read("data.bin", format="bytes") == DATA
        assert shared.files.read("data.bin", format="bytes", gzip=True) == DATA

    with shared.files.read("data.bin", format="stream") as pieces:
        assert b"".join(pieces) == DATA

    shared.files.write("data.bin", io.BytesIO(DATA))
    shared.files.write("pieces.bin", (DATA[start : start + 70_000] for start in range(0, len(DATA), 70_000)))
    assert shared.commands.run("cmp data.bin pieces.bin && wc -c < data.bin").stdout == f"{len(DATA)}\n"

    shared.files.write("empty", b"")
    assert shared.files.read("empty") == ""


def test_several_files_go_in_one_request(shared):
    """With names that a form must write with care."""
    names = ["one", "deep/er/two", 'with "quotes" and ünïcode', "100%25 sure"]
    written = shared.files.write_files([{"path": name, "data": f"in {name}"} for name in names])

    assert [info.path for info in written] == [f"/home/user/{name}" for name in names]
    assert [shared.files.read(name) for name in names] == [f"in {name}" for name in names]


def test_what_is_at_a_path_is_reported(shared):
    """Kinds, sizes, links and times."""
    shared.commands.run(
        "mkdir -p tree/sub && printf 12345 > tree/sub/five && ln -sf five tree/sub/link && chmod 640 tree/sub/five"
    )

    entries = {entry.path: entry for entry in shared.files.list("tree", depth=3)}
    assert sorted(entries) == [f"/home/user/tree/{name}" for name in ("sub", "sub/five", "sub/link")]
    five, link = entries["/home/user/tree/sub/five"], entries["/home/user/tree/sub/link"]
    assert (five.type, five.size, five.mode, five.permissions) == (FileType.FILE, 5, 0o640, "-rw-r-----")
    assert (five.owner, five.group) == ("user", "user")
    assert abs(five.modified_time.timestamp() - time.time()) < 600
    assert (link.type, link.symlink_target) == (FileType.SYMLINK, "/home/user/tree/sub/five")
    assert shared.files.get_info("~/tree").type == FileType.DIR
    assert [entry.name for entry in shared.files.list("~/tree")] == ["sub"]


def test_links_tell_where_they_lead_in_the_end(shared):
    """Absolute, through links of links and of directories; of what leads nowhere or in a circle, its own text."""
    shared.commands.run(
        "mkdir -p links/real && cd links && echo x > real/file && ln -sfn real folder && ln -sfn folder/file first "
        "&& ln -sfn first second && ln -sfn ../nowhere lost && ln -sfn two one && ln -sfn one two"
    )
    told = {entry.name: entry.symlink_target for entry in shared.files.list("links")}
    place = "/home/user/links"
    assert told == {
        "real": None,
        "folder": f"{place}/real",
        "first": f"{place}/real/file",
        "second": f"{place}/real/file",
        "lost": "/home/user/nowhere",
        "one": f"{place}/two",
        "two": f"{place}/one",
    }
    assert shared.files.get_info("links/second").symlink_target == f"{place}/real/file"


def test_directories_are_made_moved_and_removed(shared):
    """And what is not there is no error for remove, and one for the others."""
    assert shared.files.make_dir("made/by/sdk") is True
    assert shared.files.make_dir("made/by/sdk") is False
    assert shared.files.rename("made/by", "moved").path == "/home/user/moved"
    assert shared.files.exists("moved/sdk")
    assert not shared.files.exists("made/by")
    shared.files.remove("moved")
    shared.files.remove("moved")

    for call in (
        lambda: shared.files.get_info("moved"),
        lambda: shared.files.list("moved"),
        lambda: shared.files.rename("moved", "elsewhere"),
        lambda: shared.files.read("moved"),
        lambda: list(shared.files.read("moved", format="stream")),
        lambda: shared.files.watch_dir("moved"),
    ):
        with pytest.raises(FileNotFoundException):
            call()


def test_wrong_kinds_and_users_are_refused(shared):
    """A directory is no file, a file no directory, and there are two users."""
    shared.files.write("plain", "x")

    for call in (
        lambda: shared.files.read("/home/user"),
        lambda: shared.files.list("plain"),
        lambda: shared.files.watch_dir("plain"),
    ):
        with pytest.raises(InvalidArgumentException):
            call()

    assert shared.files.read("plain", user="root") == "x"
    assert shared.files.exists("plain", user="user")

    for call in (
        lambda: shared.files.read("plain", user="postgres"),
        lambda: shared.files.write("plain", "y", user="postgres"),
        lambda: shared.files.list(".", user="postgres"),
        lambda: shared.commands.run("id", user="postgres"),
    ):
        with pytest.raises(AuthenticationException, match="postgres"):
            call()

    with pytest.raises(SandboxException, match="cannot write"):
        shared.files.write("/usr/own", "x")


def test_root_is_the_same_user(shared):
    """It is accepted by name, and is not root: said in the documentation."""
    assert shared.commands.run("id -un", user="root").stdout == "user\n"


@pytest.mark.parametrize("user", ["root", "user"])
def test_what_needs_root_is_refused_in_words(shared, user):
    """A client that installs by sudo or apt reads what to do instead; other missing programs look as everywhere."""
    programs = ["sudo", *(name for name in ("apt-get", "apt") if shutil.which(name))]

    for program in programs:
        with pytest.raises(CommandExitException) as caught:
            shared.commands.run(f"{program} install -y nosuch", user=user)

        assert caught.value.exit_code in (100, 127)
        assert f"{program}: no process in a sandbox is root" in caught.value.stderr
        assert "template" in caught.value.stderr

    # What needs no root does as before, and no program is found that does not work.
    shared.commands.run("if command -v sudo; then exit 1; fi", user=user)

    if "apt-get" in programs:
        assert shared.commands.run("apt-get --version", user=user).stderr == ""

        for words in ("nosuchverb", "-s install nosuch"):
            line = f"apt-get {words} 2>&1; echo $?"
            assert "is root" not in shared.commands.run(line, user=user).stdout, words

        assert "is root" in shared.commands.run("set -eu; apt-get update 2>&1 || true", user=user).stdout

    # A shell in POSIX mode takes no function with a dash in its name.
    for line in (
        "bash --posix -l -c 'echo lives'",
        "bash --posix -c '. /etc/profile; echo lives'",
        "echo lives",
    ):
        assert shared.commands.run(line, user=user, envs={"POSIXLY_CORRECT": "1"}).stdout == "lives\n"

    line = "cd /\nnosuch-program 2>&1; echo $?"
    outside = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True)
    assert shared.commands.run(line, user=user).stdout == outside.stdout


# What root of a machine can do: the control tries the same commands there.
ROOTS_POWERS = {
    "take another id": "python3 -c 'import os; os.setresuid(0, 0, 0)'",
    "give a file away": "cp /etc/hostname $PLACE/given && chown 1234 $PLACE/given",
    "make a device": "mknod $PLACE/null c 1 3",
    "mount": "mkdir -p $PLACE/mounted && unshare -m mount -t tmpfs none $PLACE/mounted",
    "replace the root": "chroot / true",
}
WRITTEN = ("/usr/own", "/etc/own", "/own", "/opt/own", "/root/own", "/var/own", "/bin/own")


def test_a_command_of_root_has_no_power_of_root(shared, tmp_path):
    """The same ids, capabilities and files as every command; what root could do outside is refused inside."""
    facts = "id -u; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status"
    as_root, as_user = (shared.commands.run(facts, user=user).stdout for user in ("root", "user"))
    assert as_root == as_user
    assert as_root.startswith("1000\n1000\n")
    assert {line.split()[1] for line in as_root.splitlines() if line.startswith("Cap")} == {"0" * 16}

    tries = "; ".join(f"(umask 0; : > {path}) 2>/dev/null && echo {path}" for path in WRITTEN)
    assert shared.commands.run(f"{tries}; true", user="root").stdout == ""

    for power, command in ROOTS_POWERS.items():
        said = shared.commands.run(
            f"PLACE=/tmp; ({command}) 2>/dev/null && echo did || echo refused", user="root"
        )
        assert said.stdout == "refused\n", power

    if os.geteuid() == 0:
        for power, command in ROOTS_POWERS.items():
            done = subprocess.run(["/bin/sh", "-c", f"PLACE={tmp_path}; {command}"], capture_output=True)
            assert done.returncode == 0, (power, done.stderr)


def test_a_full_disk_has_its_own_error(new_key):
    """507, which the SDK knows, and the space that was taken is free again."""
    key = new_key(max_limits={"disk_bytes": 4 << 20})

    with Sandbox.create(timeout=60, api_key=key) as sandbox:
        with pytest.raises(NotEnoughSpaceException):
            sandbox.files.write("big", b"x" * (6 << 20))

        with pytest.raises(NotEnoughSpaceException):
            sandbox.files.write("big", bytes(60 << 20), gzip=True)

        sandbox.files.write("small", bytes(1 << 20))


def test_a_watcher_that_is_asked_tells_what_happened(sandbox, eventually):
    """In order, once each, and no more after its end."""
    sandbox.files.make_dir("seen/sub")
    flat, deep = sandbox.files.watch_dir("seen"), sandbox.files.watch_dir("seen", recursive=True)
    sandbox.commands.run("cd seen; printf 1 > a; chmod 600 a; rm a; printf 2 > sub/b")
    changes = []

    def last_has_come():
        changes.extend((event.type.value, event.name) for event in deep.get_new_events())
        return ("write", "sub/b") in changes

    eventually(last_has_come)
    wanted = [
        ("create", "a"),
        ("write", "a"),
        ("chmod", "a"),
        ("remove", "a"),
        ("create", "sub/b"),
        ("write", "sub/b"),
    ]
    assert [change for change in changes if change in wanted] == wanted
    assert {event.name for event in flat.get_new_events()} == {"a"}
    flat.stop()
    deep.stop()

    with pytest.raises(SandboxException, match="stopped"):
        deep.get_new_events()


def test_signed_urls_work_without_anything_else(shared, http):
    """Down, up by form and by bytes, with a part of it, and with an end."""
    shared.files.write("given away.txt", "0123456789")
    url = shared.download_url("given away.txt", use_signature_expiration=100)
    assert http.get(url).content == b"0123456789"
    assert http.get(url).headers["content-type"] == "application/octet-stream"
    assert "attachment" in http.get(url).headers["content-disposition"]

    upload = shared.upload_url("taken.txt")
    answer = http.post(upload, files={"file": ("ignored", b"by form")})
    assert answer.json() == [{"path": "/home/user/taken.txt", "name": "taken.txt", "type": "file"}]
    assert shared.files.read("taken.txt") == "by form"
    headers = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    assert http.post(upload, content=gzip.compress(b"by bytes"), headers=headers).status_code == 200
    assert shared.files.read("taken.txt") == "by bytes"


def test_signed_urls_are_good_for_what_was_signed(shared, http):
    """Another path, another verb, another user, another time, another sandbox: 401."""
    url = shared.download_url("taken.txt", use_signature_expiration=100)
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    for changed in (
        {"path": "other.txt"},
        {"username": "root"},
        {"signature": "v1_" + "A" * 43},
        {"signature": "ü"},
        {"signature_expiration": str(int(query["signature_expiration"]) + 1)},
        {"signature_expiration": "soon"},
        {"signature_expiration": ""},
    ):
        answer = http.get("/files", params={**query, **changed})
        assert answer.status_code == 401, changed
        assert answer.json()["code"] == 401

    assert http.post("/files", params=query, files={"file": b""}).status_code == 401

    expired = http.get(shared.download_url("taken.txt", use_signature_expiration=-10))
    assert (expired.status_code, expired.json()) == (
        401,
        {"code": 401, "message": "signature is already expired"},
    )

    with Sandbox.create(timeout=60) as other:
        url = other.download_url("a")
        assert http.get(url).status_code == 404

    assert http.get(url).status_code == 401


def test_parts_of_a_file_can_be_asked_for(shared, http, headers_of):
    """Range, as RFC 9110 has it; what is not understood gives the whole."""
    shared.files.write("digits", "0123456789")

    def get(span: str):
        headers = headers_of(shared, **{"Range": span, "Accept-Encoding": "identity"})
        return http.get("/files", params={"path": "digits"}, headers=headers)

    for span, content, place in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
        ("bytes=-99", b"0123456789", "bytes 0-9/10"),
    ):
        answer = get(span)
        assert (answer.status_code, answer.content, answer.headers["content-range"]) == (206, content, place)

    for span in ("bytes=10-", "bytes=99-100", "bytes=-0"):
        assert get(span).status_code == 416
        assert get(span).headers["content-range"] == "bytes */10"

    for span in ("bytes=4-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-"):
        assert (get(span).status_code, get(span).content) == (200, b"0123456789")


def test_a_file_of_the_kernel_is_read_to_its_end(shared):
    """Its size is zero, its content is not."""
    assert "Name:" in shared.files.read("/proc/self/status")


def test_uploads_without_sense_are_refused(shared, http, headers_of):
    """And none of them is a fault of the server."""
    form = b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nabc\r\n--B--\r\n'
    two = form.removesuffix(b"--B--\r\n") + form
    multipart = {"Content-Type": "multipart/form-data; boundary=B"}
    octets = {"Content-Type": "application/octet-stream"}

    for query, headers, body in (
        ({}, octets, b"no path"),
        ({"path": "a\0b"}, octets, b""),
        ({"path": "x" * 5000}, octets, b""),
        ({"path": "x"}, {"Content-Type": "text/plain"}, b"other type"),
        ({"path": "x"}, {**octets, "Content-Encoding": "br"}, b"other packing"),
        ({"path": "x"}, {**octets, "Content-Encoding": "gzip"}, b"not gzip"),
        ({"path": "x"}, {**octets, "Content-Encoding": "gzip"}, gzip.compress(DATA)[:1000]),
        ({"path": "x"}, {"Content-Type": "multipart/form-data"}, form),
        ({"path": "x"}, multipart, form[:-12]),
        ({"path": "x"}, multipart, b"no form"),
        ({"path": "first of two"}, multipart, two),
        ({}, multipart, form.replace(b'"file"', b'"other"')),
        ({}, multipart, form.replace(b'filename="x"', b'filename=""')),
        ({}, multipart, form.replace(b"form-data", b"form-data; x=" + b"y" * 50_000)),
    ):
        answer = http.post("/files", params=query, content=body, headers=headers_of(shared, **headers))
        assert answer.status_code == 400, (query, headers, answer.text)
        assert answer.json()["code"] == 400

    assert not shared.files.exists("x")


def test_files_larger_than_the_server_takes_are_refused(start_server, http, headers_of):
    """As they were sent, and as they are when unpacked."""
    server = start_server(max_upload_bytes=1 << 20)
    sandbox = Sandbox.create(timeout=60, api_url=server.url, sandbox_url=server.url)
    headers = headers_of(sandbox, **{"Content-Type": "application/octet-stream"})
    url = f"{server.url}/files?path=big"
    assert http.post(url, content=bytes(1 << 20), headers=headers).status_code == 200
    assert http.post(url, content=bytes((1 << 20) + 1), headers=headers).status_code == 413

    for body in (gzip.compress(bytes(64 << 20)), gzip.compress(bytes((1 << 20) + 1))):
        answer = http.post(url, content=body, headers={**headers, "Content-Encoding": "gzip"})
        assert (answer.status_code, answer.json()["code"]) == (413, 413)

    assert sandbox.files.get_info("big").size == 1 << 20


def test_other_routes_of_the_daemon(server, shared, http, headers_of):
    """Its environment and measures; what the platform alone calls is not there."""
    assert http.get("/health", headers=headers_of(shared)).status_code == 204
    envs = http.get("/envs", headers=headers_of(shared)).json()
    assert envs["HOME"] == "/home/user"
    assert envs["E2B_SANDBOX_ID"] == shared.sandbox_id
    # Its output would show the secrets of the environment to keys that watch.
    place = f"{server.url}/v1/sandboxes/{shared.sandbox_id}/commands/history"
    assert "/usr/bin/env" not in http.get(place, headers=server.headers).raise_for_status().text
    assert http.get("/metrics", headers=headers_of(shared)).json()["memTotal"] == 1 << 30

    for path in ("/init", "/freeze", "/v1/sandboxes", "/"):
        assert http.post(path, headers=headers_of(shared)).status_code == 404
