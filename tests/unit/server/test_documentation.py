"""The documentation at a server that has none."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from fumehood.server.routes import documentation


@pytest.mark.parametrize(("accept", "kind"), [("text/html,*/*", "text/html"), ("*/*", "application/json")])
def test_without_a_site_the_answer_names_the_extra(accept, kind, monkeypatch):
    """A page for a browser, and words for a program; both with 404."""
    monkeypatch.setattr(documentation, "site_folder", lambda: None)
    app = FastAPI()
    app.include_router(documentation.router)
    answer = TestClient(app).get("/docs/", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (404, kind)
    assert "pip install 'fumehood[docs]'" in answer.text
