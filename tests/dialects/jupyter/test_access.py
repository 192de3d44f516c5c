"""Who may ask: tokens where clients put them, sessions that were logged in, and what no browser page may do."""

from __future__ import annotations

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from .conftest import SECONDS


@pytest.mark.parametrize(
    "where",
    [
        {"headers": {"Authorization": "token {}"}},
        {"headers": {"Authorization": "Bearer {}"}},
        {"params": {"token": "{}"}},
    ],
    ids=["token", "bearer", "query"],
)
def test_a_token_counts_wherever_clients_put_it(server, where):
    def ask(token: str) -> int:
        sent = {
            kind: {name: value.format(token) for name, value in fields.items()}
            for kind, fields in where.items()
        }
        return requests.get(f"{server.url}/api/kernelspecs", timeout=SECONDS, **sent).status_code

    assert ask(server.token) == 200
    assert ask("not-the-token-0123456789") == 403


def test_nothing_but_the_version_is_reported_to_strangers(server):
    for path in ("status", "me", "kernelspecs", "kernelspecs/python3", "kernels", "sessions"):
        assert requests.get(f"{server.url}/api/{path}", timeout=SECONDS).status_code == 403

    assert requests.post(f"{server.url}/api/kernels", timeout=SECONDS).status_code == 403


def test_a_websocket_needs_a_token_and_a_kernel(gateway):
    kernel_id = gateway.start()
    base = f"{gateway.url.replace('http', 'ws')}/api/kernels"

    def refused(path: str, **options) -> int:
        with pytest.raises(InvalidStatus) as caught, connect(base + path, **options):
            pass

        return caught.value.response.status_code

    assert refused(f"/{kernel_id}/channels") == 403
    assert refused(f"/{kernel_id}/channels?token=wrong") == 403
    assert refused(f"/{kernel_id[:-1]}/channels?token={gateway.token}") == 404
    assert refused(f"/{kernel_id}/channels?token={gateway.token}", origin="http://evil.example") == 403


def test_a_token_in_an_address_is_not_logged(start_server):
    server = start_server(pool_size=0, log_level="debug")
    requests.get(f"{server.url}/api?token={server.token}", timeout=SECONDS)
    answer = requests.post(f"{server.url}/api/kernels?token={server.token}", timeout=SECONDS)
    path = f"/api/kernels/{answer.json()['id']}/channels"

    with connect(f"{server.url.replace('http', 'ws')}{path}?a=1&token={server.token}"):
        pass

    server.stop()
    said = "".join(server.said)
    assert server.token not in said


class TestLogin:
    """The way of clients that know a password only; it is the token."""

    @pytest.fixture
    def browser(self, server):
        with requests.Session() as session:
            yield session

    def begin(self, server, browser) -> str:
        answer = browser.get(f"{server.url}/login", timeout=SECONDS)
        assert answer.status_code == 200
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=strict" in answer.headers["Set-Cookie"]
        return answer.cookies["_xsrf"]

    def log_in(self, server, browser, xsrf: str, password: str) -> requests.Response:
        form = {"_xsrf": xsrf, "password": password}
        return browser.post(f"{server.url}/login", data=form, timeout=SECONDS, allow_redirects=False)

    def test_w09_a_token_that_logs_in_often_ends_its_own_sessions_alone(self, server, browser):
        made = requests.post(
            f"{server.url}/v1/keys", json={"name": "x"}, headers=server.headers, timeout=SECONDS
        )
        xsrf = self.begin(server, browser)
        sessions = []

        for password in [server.token, made.json()["token"]] + [server.token] * 101:
            answer = self.log_in(server, browser, xsrf, password)
            sessions.append(answer.cookies["fumehood-jupyter"])

        def ask(session: str) -> int:
            url, headers = f"{server.url}/api/kernels", {"X-XSRFToken": xsrf}
            cookies = {"fumehood-jupyter": session}
            return requests.get(url, headers=headers, cookies=cookies, timeout=SECONDS).status_code

        assert [ask(sessions[index]) for index in (0, 1, 2, 3, -1)] == [403, 200, 403, 200, 200]

    def test_a_session_counts_with_the_header_of_its_login_only(self, server, browser):
        xsrf = self.begin(server, browser)
        assert self.log_in(server, browser, xsrf, server.token).status_code == 302
        url = f"{server.url}/api/kernels"

        def ask(**headers: str) -> int:
            return browser.get(url, headers=headers, timeout=SECONDS).status_code

        assert ask() == 403
        assert ask(**{"X-XSRFToken": "guessed"}) == 403
        assert ask(**{"X-XSRFToken": xsrf}) == 200
        # Beginning to log in once more does not change what the session has.
        assert self.begin(server, browser) != xsrf
        assert ask(**{"X-XSRFToken": xsrf}) == 200

    def test_a_session_opens_nothing_else(self, server, browser):
        xsrf = self.begin(server, browser)
        self.log_in(server, browser, xsrf, server.token)
        answer = browser.get(f"{server.url}/v1/info", headers={"X-XSRFToken": xsrf}, timeout=SECONDS)
        assert answer.status_code == 401

    def test_a_wrong_password_or_xsrf_gives_no_session(self, server, browser):
        xsrf = self.begin(server, browser)
        wrong = self.log_in(server, browser, xsrf, "not-the-token")
        forged = self.log_in(server, browser, "forged", server.token)
        without = requests.post(
            f"{server.url}/login", data={"password": server.token}, timeout=SECONDS, allow_redirects=False
        )

        for answer in (wrong, forged, without):
            assert answer.status_code == 403
            assert "Set-Cookie" not in answer.headers

        many = "&".join(f"a{number}=1" for number in range(50))
        assert browser.post(f"{server.url}/login", data=many, timeout=SECONDS).status_code == 400
