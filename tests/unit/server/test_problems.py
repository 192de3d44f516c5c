"""Problem details: every error that a request can meet has a status of its own choosing, and comes back as itself."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from fumehood import errors
from fumehood.client.connection import error_of
from fumehood.errors import (
    FumehoodError,
    OverloadedError,
    PathNotFoundError,
    SandboxClosedError,
    UnauthenticatedError,
)
from fumehood.server.problems import (
    STATUS_BY_CODE,
    answer_http_error,
    answer_invalid,
    headers_of,
    problem_data,
    status_of,
)
from fumehood.server.schemas.sandboxes import NetworkField

# Branches, which nobody raises, and what is raised in the caller's own process or before a server answers.
NEVER_ANSWERED = {
    "error",
    "sandbox_error",
    "command_error",
    "service_error",
    "wrong_process",
    "sandbox_not_started",
    "command_exit",
    "storage_start",
    "storage_version",
    "template_store",
    # Raised where the files should have come to.
    "download_failed",
}


def test_every_error_has_a_status() -> None:
    """An error that is added is answered as 500 by accident no longer than until this test runs."""
    codes = {
        value.code
        for module in (errors, errors)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, FumehoodError)
    }
    assert codes - NEVER_ANSWERED <= set(STATUS_BY_CODE)


@pytest.mark.parametrize(
    "error",
    [
        PathNotFoundError(path="/a\x1b[2J", operation="read", errno_value=2),
        SandboxClosedError(sandbox_id="x", reason="lost", outcome_unknown=True),
        OverloadedError(reason="full", retry_after_seconds=2.5),
    ],
)
def test_an_error_comes_back_as_itself(error: FumehoodError) -> None:
    again = error_of(problem_data(error, "r1"))
    assert type(again) is type(error)
    assert (str(again), again.outcome_unknown) == (str(error), error.outcome_unknown)
    assert getattr(again, "reason", None) == getattr(error, "reason", None)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


def test_what_a_newer_server_says_is_kept() -> None:
    again = error_of({"code": "brand_new", "detail": "what", "hint": "so", "outcome_unknown": False})
    assert isinstance(again, errors.ServiceError)
    assert str(again) == "what\n\nhint: so"


def test_headers_tell_what_to_do() -> None:
    assert headers_of(OverloadedError(reason="full", retry_after_seconds=2.5)) == {"Retry-After": "3"}
    assert headers_of(UnauthenticatedError(reason="none")) == {"WWW-Authenticate": "Bearer"}
    assert status_of(FumehoodError("x")) == 500


@pytest.mark.parametrize(
    ("method", "path", "detail", "hint"),
    [
        ("GET", "/", "there is no GET / here", "`GET /openapi.json` lists the routes"),
        ("POST", "/v1/run%1b", "there is no POST /v1/run\\x1b here", "`GET /openapi.json` lists the routes"),
        ("DELETE", "/healthz", "/healthz does not take DELETE", "it takes GET"),
    ],
)
def test_a_route_that_is_not_there_leads_on(method: str, path: str, detail: str, hint: str) -> None:
    """Whoever opens the address in a browser, or slips in a name, is told where the names are."""
    app = FastAPI()
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_api_route("/healthz", lambda: None, methods=["GET"])

    body = TestClient(app).request(method, path).json()
    assert (body["detail"], body["hint"]) == (detail, hint)


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str
    language: Literal["python", "bash"] = "python"
    seconds: float = Field(default=1.0, ge=0.5)
    network: NetworkField = "none"


@pytest.mark.parametrize(
    ("sent", "detail"),
    [
        ('{"code": "1", "time": 3}', "time: there is no such field"),
        ("{}", "code: it must be given"),
        ('{"code": "1", "language": "r"}', "language: Input should be 'python' or 'bash', not 'r'"),
        ('{"code": "1", "seconds": -1}', "seconds: Input should be greater than or equal to 0.5, not -1"),
        ('{"code": ["s3cret"]}', "code: Input should be a valid string"),
        (
            "{bad",
            "body: it is not valid JSON from character 2 on: Expecting property name enclosed in double quotes",
        ),
        ("[1]", "body: it must be a JSON object"),
        (
            '{"code": "1", "network": "interent"}',
            "network: it takes 'none', 'pip', 'internet', a list of hosts such as ['api.example.com'], or an object "
            "with the rules; did you mean 'internet'?",
        ),
    ],
)
def test_a_body_of_another_form_is_refused_by_name_and_value(sent: str, detail: str) -> None:
    """Which field, why, and with which value: but of a text, which may be a secret, only where names are few."""
    answer = _asked(sent, "application/json")
    assert (answer["detail"], answer["hint"]) == (
        detail,
        "`GET /openapi.json` describes the form of each request",
    )


def test_a_forgotten_content_type_is_named() -> None:
    """As curl sends it, who has only been told of `-d`."""
    answer = _asked('{"code": "1"}', "application/x-www-form-urlencoded")
    assert answer["hint"] == "send `Content-Type: application/json`, not 'application/x-www-form-urlencoded'"


def _asked(sent: str, content_type: str) -> dict[str, Any]:
    app = FastAPI()
    app.add_exception_handler(RequestValidationError, answer_invalid)

    @app.post("/")
    def take(body: _Body) -> None: ...

    answer = TestClient(app).post("/", content=sent, headers={"Content-Type": content_type})
    assert answer.status_code == 422
    return answer.json()
