"""Refused requests are counted by client address: those without a credential, and those with a wrong one."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from starlette.types import Scope

from fumehood.server import anonymous
from fumehood.server.admission import CallerCheck, admit_caller
from fumehood.server.anonymous import REFUSALS_BURST, REFUSALS_PER_SECOND, AnonymousRequests, credential_of
from fumehood.server.right_credentials import MAX_CREDENTIALS

THERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"
REFUSED = CallerCheck()


def admitted(holder: str = "") -> CallerCheck:
    """What a credential of this holder had its caller admitted with."""
    with CallerCheck() as admission:
        admit_caller(holder=holder)

    return admission


def request(query: bytes = b"", **headers: str) -> Scope:
    """A request with these headers."""
    given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "query_string": query, "headers": given}


class Clock:
    """Seconds that pass when they are added."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(requests: AnonymousRequests, times: int, status: int = 401) -> None:
    for _ in range(times):
        requests.note(THERE, None, status, REFUSED)


def test_an_address_is_refused_after_a_burst_and_for_as_long_as_it_goes_on() -> None:
    clock = Clock()
    requests = AnonymousRequests(clock)
    refused(requests, REFUSALS_BURST - 1)
    assert requests.retry_after_seconds(THERE, None) == 0

    refused(requests, 1)
    assert requests.retry_after_seconds(THERE, None) == pytest.approx(1 / REFUSALS_PER_SECOND)
    assert requests.retry_after_seconds(ELSEWHERE, None) == 0

    clock.now += 1 / REFUSALS_PER_SECOND + 1e-6
    assert requests.retry_after_seconds(THERE, None) == 0


@pytest.mark.parametrize(
    "scope",
    [
        request(authorization=""),
        request(x_api_key="a"),
        request(x_access_token="a"),
        request(cookie="_xsrf=a; fumehood-jupyter=b"),
        request(sec_websocket_protocol="fumehood.v1, fumehood.token.a"),
        request(query=b"path=a&signature=b"),
        request(query=b"token=a"),
        request(query=b"a=1&%74oken="),
    ],
)
def test_a_request_with_a_credential_is_counted_apart_from_those_without(scope: Scope) -> None:
    requests = AnonymousRequests(Clock())
    credential = credential_of(scope)
    assert credential is not None

    refused(requests, REFUSALS_BURST)
    assert requests.retry_after_seconds(THERE, None) > 0
    assert requests.retry_after_seconds(THERE, credential) == 0

    for _ in range(REFUSALS_BURST):
        requests.note(THERE, credential, 403, REFUSED)

    assert requests.retry_after_seconds(THERE, credential) > 0


def test_a_credential_is_the_same_whatever_else_the_address_asks_for() -> None:
    assert credential_of(request(b"token=a&path=1")) == credential_of(request(b"path=2&token=a"))
    assert credential_of(request(b"token=a")) != credential_of(request(b"token=b"))
    assert credential_of(request(b"tokens=a&path=%2F", cookie="a=b")) is None


def test_a_long_query_costs_as_little_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read before anything is checked: of many names that are escaped none is looked at."""
    unescaped = 0

    def counted(text: bytes) -> bytes:
        nonlocal unescaped
        unescaped += 1
        return unquote_to_bytes(text)

    monkeypatch.setattr(anonymous, "unquote_to_bytes", counted)
    assert credential_of(request(b"%41=&" * 10)) is None
    assert unescaped == 10
    credential = credential_of(request(b"%41=&" * 13_000))
    assert credential not in (None, credential_of(request(b"%42=&" * 13_000)))
    assert unescaped == 10


@pytest.mark.parametrize("status", [200, 303, 404, 413, 503])
def test_an_answer_that_is_no_refusal_is_neither_counted_nor_shows_a_credential_right(status: int) -> None:
    """A route that looks at no credential answers wrong ones as well."""
    requests = AnonymousRequests(Clock())
    wrong = credential_of(request(x_api_key="wrong"))

    for credential in (None, wrong):
        for _ in range(REFUSALS_BURST):
            requests.note(THERE, credential, status, REFUSED)

        assert requests.retry_after_seconds(THERE, credential) == 0

        for _ in range(REFUSALS_BURST):
            requests.note(THERE, credential, 401, REFUSED)

        assert requests.retry_after_seconds(THERE, credential) > 0


@pytest.mark.parametrize("status", [200, 403, 404, 429])
def test_what_admitted_its_caller_is_right_whatever_it_is_answered(status: int) -> None:
    """Wrong ones of one address wait; a right one never does, nor do other addresses."""
    clock = Clock()
    requests = AnonymousRequests(clock)
    right = credential_of(request(authorization="Bearer right"))
    wrong = [credential_of(request(x_api_key=str(number))) for number in range(REFUSALS_BURST)]
    requests.note(THERE, right, status, admitted())

    for credential in wrong:
        assert requests.retry_after_seconds(THERE, credential) == 0
        requests.note(THERE, credential, 401, REFUSED)

    for credential in (wrong[0], credential_of(request(cookie="fumehood-console=x"))):
        assert requests.retry_after_seconds(THERE, credential) == pytest.approx(1 / REFUSALS_PER_SECOND)
        assert requests.retry_after_seconds(ELSEWHERE, credential) == 0

    assert requests.retry_after_seconds(THERE, right) == 0
    assert requests.retry_after_seconds(THERE, None) == 0
    clock.now += 1 / REFUSALS_PER_SECOND + 1e-6
    assert requests.retry_after_seconds(THERE, wrong[0]) == 0


def test_a_credential_that_was_revoked_is_right_no_longer() -> None:
    """A refusal that comes before it is looked at, for bodies of unknown callers say, shows nothing of it."""
    requests = AnonymousRequests(Clock())
    right, wrong = credential_of(request(x_api_key="right")), credential_of(request(x_api_key="wrong"))
    requests.note(THERE, right, 200, admitted())

    for _ in range(REFUSALS_BURST):
        requests.note(THERE, wrong, 401, REFUSED)

    requests.note(THERE, right, 429, REFUSED)
    assert requests.retry_after_seconds(THERE, right) == 0
    requests.note(THERE, right, 401, REFUSED)
    assert requests.retry_after_seconds(THERE, right) > 0


@pytest.mark.parametrize("others", ["those of a share", "more spellings of one key"])
def test_no_holder_pushes_out_what_others_hold(others: str) -> None:
    """One share, or one right token with something beside it, makes any number of right credentials."""
    requests = AnonymousRequests(Clock())
    right = credential_of(request(x_api_key="right"))
    requests.note(THERE, right, 200, admitted("key"))

    for number in range(MAX_CREDENTIALS + 1):
        requests.note(THERE, b"%d" % number, 200, admitted(others))

    for number in range(REFUSALS_BURST):
        requests.note(THERE, b"wrong %d" % number, 401, REFUSED)

    assert requests.retry_after_seconds(THERE, right) == 0
    # Control: the table is bounded, and their own oldest is gone.
    assert requests.retry_after_seconds(THERE, b"0") > 0
    assert requests.retry_after_seconds(THERE, b"%d" % MAX_CREDENTIALS) == 0
