"""Names, types and headers of published files: whatever a guest calls its file, the key is harmless."""

from __future__ import annotations

import re

import pytest

from fumehood.storage.published_files import group_of, headers_of, key_name, key_of, mime_of, shown_name

HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    ".ssh",
    "a\x00b.csv",
    "a\nSet-Cookie: x=1.csv",
    'a"; filename="evil.exe',
    "\x1b[2Jscreen.txt",
    "\u202egnp.exe",
    "\udcff.bin",
    "C:\\Windows\\x.dll",
    "x" * 5000 + ".png",
    "x." + "y" * 5000,
    "-rf",
    "daten über alles.csv",
    "数据.csv",
    "a?b=c#d%2e%2e%2fx.txt",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_keys_are_three_harmless_parts(name):
    group, mark, last = key_of("fh-1", name).split("/")
    assert re.fullmatch(r"[0-9a-f]{32}", group)
    assert re.fullmatch(r"[0-9a-f]{32}", mark)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", last)


@pytest.mark.parametrize("name", HOSTILE)
def test_headers_are_one_line_of_ascii(name):
    for value in headers_of(name, mime_of(name)).values():
        assert value.isascii()
        assert value.isprintable()
        assert value.count('"') in (0, 2)


@pytest.mark.parametrize("name", HOSTILE)
def test_shown_names_have_no_controls(name):
    assert 0 < len(shown_name(name)) <= 255
    assert shown_name(name).isprintable()


def test_endings_survive():
    assert key_name("out/report.csv") == "report.csv"
    assert key_name("数据.csv") == "csv"
    assert key_name("archive.tar.gz") == "archive.tar.gz"
    assert len(key_name("x" * 5000 + ".png")) == 84


def test_a_key_is_not_guessed_and_names_no_sandbox():
    keys = {key_of("fh-1", "x.csv") for _ in range(100)}
    assert len(keys) == 100
    assert {key.partition("/")[0] for key in keys} == {group_of("fh-1")}
    assert "fh-1" not in "".join(keys)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("x.csv", None, "text/csv"),
        ("X.PNG", None, "image/png"),
        ("x.html", None, "text/html"),
        ("x", None, "application/octet-stream"),
        ("x.exe", None, "application/octet-stream"),
        ("x.bin", "image/png", "image/png"),
        ("x.bin", "Image/PNG; charset=x", "image/png"),
        ("x.png", "text/html\r\nX: y", "application/octet-stream"),
        ("x.png", "application/javascript", "application/octet-stream"),
    ],
)
def test_types_are_of_our_list(name, given, expected):
    assert mime_of(name, given) == expected


@pytest.mark.parametrize("name", ["x.html", "x.svg", "x.xml", "x.pdf", "x.js", "x.txt", "x.csv", "x"])
def test_only_pictures_are_shown_in_place(name):
    headers = headers_of(name, mime_of(name))
    assert headers["Content-Disposition"].startswith("attachment;")
    assert headers["Content-Type"] not in ("text/html", "image/svg+xml", "application/xml")
    assert headers_of("x.png", "image/png")["Content-Disposition"].startswith("inline;")
