"""Files over HTTP: both ways without a bound on size but the sandbox's, in parts, as forms, by signed address."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from contextlib import closing
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest


@pytest.fixture
def content(place):
    return f"{place}/files/content"


@pytest.fixture
def put(api, content):
    def write(path, data):
        answer = api.put(content, params={"path": path}, content=data)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return write


def test_what_is_written_is_read(api, content, put):
    """Any bytes, parents made; what was there is replaced."""
    data = os.urandom(100_000)
    info = put("deep/er/file.bin", data)
    assert (info["path"], info["size_bytes"]) == ("/home/user/deep/er/file.bin", 100_000)

    answer = api.get(content, params={"path": "deep/er/file.bin"})
    assert answer.content == data
    assert answer.headers["content-length"] == "100000"
    put("deep/er/file.bin", b"")
    assert api.get(content, params={"path": "deep/er/file.bin"}).content == b""


def test_a_large_file_streams_both_ways(server, api, content):
    """Neither way does the server hold a file."""
    piece = os.urandom(1 << 20)
    count = 200
    before = _peak_bytes(server.process.pid)
    wrote = api.put(content, params={"path": "big"}, content=(piece for _ in range(count)))
    assert wrote.json()["size_bytes"] == count << 20
    digest = hashlib.sha256()

    with api.stream("GET", content, params={"path": "big"}) as answer:
        for chunk in answer.iter_bytes():
            digest.update(chunk)

    assert digest.hexdigest() == hashlib.sha256(piece * count).hexdigest()
    assert _peak_bytes(server.process.pid) - before < 100 << 20


@pytest.mark.parametrize(
    ("asked", "status", "expected", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
        # What is no single range is no range.
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=a-", 200, b"0123456789", None),
    ],
)
def test_parts_of_a_file(api, content, put, asked, status, expected, content_range):
    """One range, from either end."""
    put("digits", b"0123456789")
    answer = api.get(content, params={"path": "digits"}, headers={"Range": asked})

    assert answer.status_code == status
    assert answer.headers.get("content-range") == content_range
    assert expected is None or answer.content == expected
    head = api.head(content, params={"path": "digits"}, headers={"Range": asked})
    assert (head.status_code, head.content) == (status, b"")


def test_a_version_is_known_by_its_tag(api, content, put):
    """A known version is not sent again, and no part of another version."""
    put("file", b"first")
    tag = api.get(content, params={"path": "file"}).headers["etag"]
    part = {"Range": "bytes=1-2", "If-Range": tag}

    assert api.get(content, params={"path": "file"}, headers={"If-None-Match": tag}).status_code == 304
    assert api.get(content, params={"path": "file"}, headers=part).content == b"ir"
    put("file", b"second")
    assert api.get(content, params={"path": "file"}, headers={"If-None-Match": tag}).content == b"second"
    assert api.get(content, params={"path": "file"}, headers=part).content == b"second"


@pytest.mark.parametrize(
    "name", ["page.html", "image.svg", 'a"b\r\nSet-Cookie: x=1.html', "größe 📈.pdf", "x" * 255]
)
def test_no_browser_runs_what_it_downloads(api, content, put, name):
    """An attachment of no type, whose name cannot leave its header, in a page that may do nothing."""
    put(name, b"<script>alert(1)</script>")
    headers = api.get(content, params={"path": name}).headers

    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert "set-cookie" not in headers
    assert re.fullmatch(
        r"attachment; filename=\"[A-Za-z0-9._-]+\"; filename\*=UTF-8''[A-Za-z0-9._~%-]+",
        headers["content-disposition"],
    )


def test_a_file_that_says_it_is_empty_is_read_to_its_end(api, content):
    """Files of /proc have no size and do have content."""
    assert b"Name:" in api.get(content, params={"path": "/proc/self/status"}).content


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "nothing", 404, "path_not_found"),
        ("GET", "/home/user", 409, "path_is_directory"),
        ("HEAD", "/home/user", 409, None),
        ("PUT", "/etc/passwd", 403, "path_permission"),
        ("PUT", "/home/user", 409, "path_is_directory"),
        ("GET", "a\0b", 422, "invalid_argument"),
        ("GET", "x" * 5000, 422, "invalid_argument"),
    ],
)
def test_a_path_that_cannot_be_used_says_why(api, content, method, path, status, code):
    """The errors of the tree, by status and code."""
    answer = api.request(method, content, params={"path": path})

    assert answer.status_code == status
    assert code is None or answer.json()["code"] == code
    assert code is None or "describe" not in answer.json()["detail"]


def test_a_full_disk_keeps_the_old_content(api, content, put):
    """What does not fit replaces nothing."""
    made = api.post("/v1/sandboxes", json={"limits": {"disk_bytes": 8 << 20}}).json()
    where = f"/v1/sandboxes/{made['id']}/files/content"
    assert api.put(where, params={"path": "file"}, content=b"old").status_code == 200
    answer = api.put(where, params={"path": "file"}, content=b"x" * (16 << 20))

    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert api.get(where, params={"path": "file"}).content == b"old"
    api.delete(f"/v1/sandboxes/{made['id']}")


def test_an_upload_that_breaks_off_replaces_nothing(server, api, content, put):
    """A client that vanishes in the middle leaves the old file."""
    put("file", b"old")
    address = urlsplit(server.url)
    head = (
        f"PUT {content}?path=file HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {server.token}\r\nContent-Length: 1000\r\n\r\nnew"
    )

    with closing(socket.create_connection((address.hostname, address.port))) as connection:
        connection.sendall(head.encode())

    # Nothing of it is left either, whenever the server hears of it.
    while len(api.get(f"{content.removesuffix('/content')}").json()["items"]) > 2:
        continue

    assert api.get(content, params={"path": "file"}).content == b"old"


def test_an_upload_beyond_the_servers_bound_is_refused(start_server):
    """By its length at once, and else when it has come so far."""
    small = start_server(max_upload_bytes=100_000, dialects="", pool_size=0)

    with httpx2.Client(base_url=small.url, headers=small.headers, timeout=60) as api:
        place = f"/v1/sandboxes/{api.post('/v1/sandboxes', json={}).json()['id']}/files/content"
        told = api.put(place, params={"path": "x"}, content=bytes(200_000))
        assert (told.status_code, told.json()["code"]) == (413, "request_too_large")
        plain = api.put(place, params={"path": "x"}, content=(bytes(10_000) for _ in range(20)))
        assert (plain.status_code, plain.json()["code"]) == (413, "request_too_large")
        assert api.get(place, params={"path": "x"}).status_code == 404


def test_files_of_a_form(api, place, content):
    """Several in one request, each under its own name, below one directory."""
    big = os.urandom(3 << 20)
    form = [
        ("file", ("one.txt", b"1")),
        ("file", ("sub/größe.bin", big)),
        ("other", ("empty", b"")),
        ("file", ("crlf.txt", b"\r\n--boundary\r\n--\r\n")),
    ]
    answer = api.post(f"{place}/files", params={"path": "/mnt/data"}, files=form)

    assert answer.status_code == 201, answer.text
    assert [item["path"] for item in answer.json()["items"]] == [
        "/mnt/data/one.txt",
        "/mnt/data/sub/größe.bin",
        "/mnt/data/empty",
        "/mnt/data/crlf.txt",
    ]
    assert api.get(content, params={"path": "/mnt/data/sub/größe.bin"}).content == big
    assert api.get(content, params={"path": "/mnt/data/crlf.txt"}).content == b"\r\n--boundary\r\n--\r\n"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain", b"x"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=", b"x"),
        ("multipart/form-data; boundary=b", b""),
        ("multipart/form-data; boundary=b", b"no form at all"),
        ("multipart/form-data; boundary=b", b"--b--\r\n"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; filename="a"\r\n\r\nhalf',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; filename="../a"\r\n\r\n\r\n--b--',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; filename="/a"\r\n\r\n\r\n--b--',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; filename=""\r\n\r\n\r\n--b--',
        ),
        ("multipart/form-data; boundary=" + "b" * 1000, b"x"),
    ],
)
def test_what_is_no_form_is_refused(api, place, content_type, body):
    """Nothing is written of what cannot be read."""
    answer = api.post(f"{place}/files", content=body, headers={"Content-Type": content_type})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")
    assert api.get(f"{place}/files/info", params={"path": "a"}).status_code == 404


def test_directories(api, place, put):
    """Made, listed, described, moved, removed."""
    files = f"{place}/files"
    made = api.post(f"{files}/directories", json={"path": "a/b"})
    assert (made.status_code, made.json()["type"]) == (201, "dir")
    assert api.post(f"{files}/directories", json={"path": "a/b"}).json()["code"] == "path_exists"
    put("a/b/c.txt", b"c")

    listed = api.get(files, params={"path": "a", "depth": 2}).json()["items"]
    assert [(item["path"], item["type"]) for item in listed] == [
        ("/home/user/a/b", "dir"),
        ("/home/user/a/b/c.txt", "file"),
    ]
    moved = api.post(f"{files}/rename", json={"source": "a/b/c.txt", "destination": "d/e.txt"})
    assert moved.json()["path"] == "/home/user/d/e.txt"
    assert api.get(f"{files}/info", params={"path": "d/e.txt"}).json()["size_bytes"] == 1
    assert api.delete(files, params={"path": "a"}).status_code == 204
    assert api.delete(files, params={"path": "a"}).status_code == 404


def test_changes_are_reported_as_they_happen(api, place, put):
    """From the first line on, none is missed."""
    with api.stream("GET", f"{place}/files/watch", params={"path": "/mnt/data"}) as answer:
        lines = map(json.loads, answer.iter_lines())
        assert next(lines) == {"type": "watching", "path": "/mnt/data"}
        put("/mnt/data/report.txt", b"x")
        change = next(line for line in lines if line["type"] == "change")

    assert change["path"].startswith("/mnt/data/")
    nowhere = api.get(f"{place}/files/watch", params={"path": "nowhere"})
    assert (nowhere.status_code, nowhere.json()["code"]) == (404, "path_not_found")


@pytest.fixture
def sign(api, place):
    def signed(path, **given):
        answer = api.post(f"{place}/files/sign", json={"path": path, **given})
        assert answer.status_code == 200, answer.text
        return answer.json()["url"]

    return signed


def test_a_signed_address_needs_no_token(sign, put):
    """For its method and its file alone."""
    put("a file & more.txt", b"content")
    url = sign("a file & more.txt")

    assert httpx2.get(url).content == b"content"
    assert httpx2.head(url).headers["content-length"] == "7"
    assert httpx2.put(url, content=b"new").status_code == 403

    upload = sign("new.txt", method="PUT")
    assert httpx2.put(upload, content=b"uploaded").status_code == 200
    assert httpx2.get(upload).status_code == 403
    assert httpx2.get(sign("new.txt")).content == b"uploaded"


def test_a_signature_fits_nothing_else(sign, put, api):
    """Whatever is changed of the address, it is refused."""
    put("one", b"1")
    put("two", b"2")
    url = sign("one")
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    changes = [
        {"path": "two"},
        {"path": "./one"},
        {"expires": str(int(query["expires"]) + 1)},
        {"signer": "somebody"},
        {"signature": "0" * 64},
        {"signature": "é" * 20},
        {"signature": ""},
    ]

    for change in changes:
        changed = parts._replace(query=urlencode(query | change)).geturl()
        answer = httpx2.get(changed)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), change

    elsewhere = api.post("/v1/sandboxes", json={}).json()["id"]
    other_place = parts.path.replace(parts.path.split("/")[3], elsewhere)
    assert httpx2.get(parts._replace(path=other_place).geturl()).status_code == 403
    api.delete(f"/v1/sandboxes/{elsewhere}")


def test_a_signed_address_ends(sign, put, api, server):
    """With its time, and with the key that asked for it."""
    put("one", b"1")
    url = sign("one", expires_in_seconds=1)
    query = dict(parse_qsl(urlsplit(url).query))

    while (answer := httpx2.get(url)).status_code == 200:
        continue

    assert (answer.status_code, "expired" in answer.json()["detail"]) == (403, True)
    assert query["signer"] == "owner"

    made = api.post("/v1/keys", json={"name": "short-lived"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}

    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as theirs:
        place = f"/v1/sandboxes/{theirs.post('/v1/sandboxes', json={}).json()['id']}"
        theirs.put(f"{place}/files/content", params={"path": "x"}, content=b"x")
        url = theirs.post(f"{place}/files/sign", json={"path": "x"}).json()["url"]

    assert httpx2.get(url).content == b"x"
    assert api.delete(f"/v1/keys/{made['key']['id']}").status_code == 204
    assert httpx2.get(url).status_code == 403
    api.delete(place)


def test_signatures_outlive_a_restart(start_server, tmp_path):
    """The secret lies in the state folder, for nobody else to read."""
    state = tmp_path / "state"
    first = start_server(state, dialects="", pool_size=0)
    made = httpx2.post(f"{first.url}/v1/sandboxes", json={}, headers=first.headers, timeout=60).json()["id"]
    place = f"{first.url}/v1/sandboxes/{made}/files"
    url = httpx2.post(f"{place}/sign", json={"path": "x"}, headers=first.headers, timeout=60).json()["url"]
    assert httpx2.get(url).status_code == 404
    first.stop()

    again = start_server(state, dialects="", pool_size=0)
    answer = httpx2.get(url.replace(first.url, again.url))
    assert answer.status_code in (404, 410), answer.text
    secrets = [path for path in state.iterdir() if "secret" in path.name]
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600]


def _peak_bytes(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
