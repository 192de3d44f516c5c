"""LibreChat's requests, as its two generations send them, by a small session for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

SECONDS = 60


class CodeApi:
    """The code API as one key sees it.

    Args:
        url: The server.
        headers: Those of a generation of clients.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.base = f"{url}/librechat"
        self.session = requests.Session()
        self.session.headers.update({"User-Agent": "LibreChat/1.0", **headers})

    def ask(self, method: str, path: str, **given: Any) -> requests.Response:
        """Sends a request."""
        return self.session.request(method, f"{self.base}{path}", timeout=SECONDS, **given)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Posts JSON and returns the answer's body; it must be a 200."""
        answer = self.ask("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def run(self, code: str, lang: str = "py", **body: Any) -> dict[str, Any]:
        """Runs code."""
        return self.post("/exec", lang=lang, code=code, **body)

    def upload(self, name: str, content: bytes, **fields: str) -> tuple[str, str]:
        """Uploads a file and returns its session and its id, as the client reads them."""
        answer = self.ask("POST", "/upload", data=fields, files={"file": (name, content)})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["message"] == "success"
        assert told["session_id"] == told["storage_session_id"]
        return told["session_id"], told["files"][0]["fileId"]


@pytest.fixture
def api(server: Any) -> Iterator[CodeApi]:
    """As LibreChat sent its key until 2026."""
    client = CodeApi(server.url, {"X-API-Key": server.token, "User-Id": "user-1"})
    yield client
    client.session.close()


@pytest.fixture
def new_key(server: Any) -> Iterator[Callable[..., CodeApi]]:
    """Makes keys, whose holders send them as Bearer."""
    made: list[CodeApi] = []

    def make(**policy: Any) -> CodeApi:
        body = {"name": "librechat", **policy}
        answer = requests.post(f"{server.url}/v1/keys", json=body, headers=server.headers, timeout=SECONDS)
        assert answer.status_code == 201, answer.text
        made.append(CodeApi(server.url, {"Authorization": f"Bearer {answer.json()['token']}"}))
        return made[-1]

    yield make

    for client in made:
        client.session.close()
