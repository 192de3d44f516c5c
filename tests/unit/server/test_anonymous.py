"""Refused requests are counted by client address: those without a credential, and those with a wrong one."""

from __future__ import annotations

import pytest
from starlette.types import Scope

from fumehood.server.anonymous import REFUSALS_BURST, REFUSALS_PER_SECOND, AnonymousRequests

THERE, ELSEWHERE = "192.0.2.1", "192.0.2.2"


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
        requests.note(THERE, request(), status)


def test_an_address_is_refused_after_a_burst_and_for_as_long_as_it_goes_on() -> None:
    clock = Clock()
    requests = AnonymousRequests(clock)
    refused(requests, REFUSALS_BURST - 1)
    assert requests.retry_after_seconds(THERE, request()) == 0

    refused(requests, 1)
    assert requests.retry_after_seconds(THERE, request()) == pytest.approx(1 / REFUSALS_PER_SECOND)
    assert requests.retry_after_seconds(ELSEWHERE, request()) == 0

    clock.now += 1 / REFUSALS_PER_SECOND + 1e-6
    assert requests.retry_after_seconds(THERE, request()) == 0


@pytest.mark.parametrize(
    "scope",
    [
        request(authorization=""),
        request(x_api_key="a"),
        request(x_access_token="a"),
        request(cookie="_xsrf=a; fumehood-jupyter=b"),
        request(query=b"path=a&signature=b"),
        request(query=b"token=a"),
    ],
)
def test_a_request_with_a_credential_is_neither_counted_nor_refused(scope: Scope) -> None:
    requests = AnonymousRequests(Clock())

    for _ in range(REFUSALS_BURST):
        requests.note(THERE, scope, 401)

    assert requests.retry_after_seconds(THERE, request()) == 0
    refused(requests, REFUSALS_BURST)
    assert requests.retry_after_seconds(THERE, request()) > 0
    assert requests.retry_after_seconds(THERE, request(cookie="a=b")) > 0
    assert requests.retry_after_seconds(THERE, scope) == 0


@pytest.mark.parametrize("status", [200, 303, 404, 413, 503])
def test_an_answer_that_is_no_refusal_is_not_counted(status: int) -> None:
    requests = AnonymousRequests(Clock())
    refused(requests, REFUSALS_BURST, status)
    assert requests.retry_after_seconds(THERE, request()) == 0


def test_a_wrong_credential_costs_no_more_than_none_and_a_right_one_goes_on() -> None:
    """Many wrong ones of one address wait; one that was answered lately never does, nor do other addresses."""
    clock = Clock()
    requests = AnonymousRequests(clock)
    right, wrong = request(authorization="Bearer right"), [request(x_api_key=str(n)) for n in range(400)]
    requests.note_credential(THERE, right, 200)

    for scope in wrong[:REFUSALS_BURST]:
        assert requests.retry_wrong_after_seconds(THERE, scope) == 0
        requests.note_credential(THERE, scope, 401)

    for scope in (wrong[0], wrong[-1], request(cookie="fumehood-console=x")):
        assert requests.retry_wrong_after_seconds(THERE, scope) == pytest.approx(1 / REFUSALS_PER_SECOND)
        assert requests.retry_wrong_after_seconds(ELSEWHERE, scope) == 0

    assert requests.retry_wrong_after_seconds(THERE, right) == 0
    assert requests.retry_wrong_after_seconds(THERE, request()) == 0
    # A key that asks too often is right all the same; one that may not do something is neither.
    requests.note_credential(THERE, right, 429)
    assert requests.retry_wrong_after_seconds(THERE, right) == 0
    requests.note_credential(THERE, wrong[-1], 403)
    assert requests.retry_wrong_after_seconds(THERE, wrong[-1]) > 0
    clock.now += 1 / REFUSALS_PER_SECOND + 1e-6
    assert requests.retry_wrong_after_seconds(THERE, wrong[-1]) == 0
