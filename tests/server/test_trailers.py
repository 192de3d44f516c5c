"""What comes behind a request's body, or twice in its head, changes nothing of what it is: rows W01, W03 and W04."""

from __future__ import annotations

import socket
from typing import Any

import pytest

CHUNKS = '\r\nc\r\n{"code":"1"}\r\n0\r\n'


def answer_to(server: Any, head: str, trailers: str = "") -> bytes:
    """The first line that a request of these headers, with these trailers, is answered with."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    text = f"POST /v1/execute HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\n{head}"

    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(f"{text}Transfer-Encoding: chunked\r\n{CHUNKS}{trailers}\r\n".encode())
        return sock.makefile("rb").readline()


@pytest.fixture(scope="module")
def token(server: Any) -> str:
    return f"Authorization: Bearer {server.token}\r\n"


OWN = "Host: 127.0.0.1\r\n"
EVIL = "Origin: http://evil.example\r\n"
GOOD = "Origin: http://127.0.0.1\r\n"


def test_w01_a_token_behind_the_body_is_none(server: Any, token: str) -> None:
    """Trailers are no headers: who asks is known before the body."""
    assert b" 401 " in answer_to(server, OWN, token)
    # Control: the same in its place, and trailers that mean nothing.
    assert b" 200 " in answer_to(server, OWN + token, "X-Checksum: 1\r\n")


def test_w04_an_origin_behind_the_body_replaces_none(server: Any, token: str) -> None:
    """Neither does a Host."""
    assert b" 403 " in answer_to(server, OWN + token + EVIL, GOOD)
    assert b" 421 " in answer_to(server, "Host: evil.example\r\n" + token, OWN)
    assert b" 200 " in answer_to(server, OWN + token, EVIL)


@pytest.mark.parametrize("origins", [GOOD + EVIL, EVIL + GOOD, EVIL + EVIL])
def test_w04_of_several_origins_each_must_be_ours(server: Any, token: str, origins: str) -> None:
    """In whichever order they come."""
    assert b" 403 " in answer_to(server, OWN + token + origins)
    assert b" 200 " in answer_to(server, OWN + token + GOOD)
