"""Which templates there are, by E2B's unmodified SDK; `test_builder` builds some."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest
from e2b import Template
from e2b.exceptions import TemplateException

from fumehood.templates.store import TemplateInfo, TemplateRecord, TemplateStore

BUILT_AT = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.fixture
def server_of(start_server, tmp_path, monkeypatch):
    """A server on whose machine a template of this name was built."""

    def start(name: str):
        info = TemplateInfo(
            name=name,
            python="3.11.9",
            preload=(),
            envs={},
            has_files=False,
            size_bytes=1,
            built_at=BUILT_AT,
            fingerprint="f",
        )
        folder = tmp_path / "home" / "fumehood" / "templates"
        folder.mkdir(parents=True)
        TemplateStore(str(folder)).publish(
            TemplateRecord(info=info, build=f"{name}.abc", interpreter="bin/python")
        )
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
        running = start_server()
        monkeypatch.setenv("E2B_API_URL", running.url)
        monkeypatch.setenv("E2B_API_KEY", running.token)
        return running

    return start


def test_templates_are_those_of_the_server(server_of):
    """By their names and E2B's for the default one; what cannot be had is refused in words."""
    server = server_of("data")
    assert [Template.exists(name) for name in ("data", "base", "code-interpreter-v1", "default")] == [
        True
    ] * 4
    assert [Template.exists(name) for name in ("data:default", "data:v2", "nothing", "a/b")] == [
        True,
        *[False] * 3,
    ]
    (tag,) = Template.get_tags("data")
    assert (tag.tag, tag.created_at) == ("default", BUILT_AT)

    with pytest.raises(TemplateException, match="there is no template 'nothing'"):
        Template.get_tags("nothing")

    with pytest.raises(TemplateException, match="template_builds"):
        Template.assign_tags("data:default", "v2")

    with httpx.Client(base_url=server.url, headers={"X-API-Key": server.token}) as http:
        for path in ("/templates", "/v2/templates"):
            (listed,) = http.get(path).json()
            assert (listed["templateID"], listed["names"], listed["buildStatus"]) == (
                "data",
                ["data"],
                "ready",
            )
            assert listed["buildID"] == str(tag.build_id)
            assert listed["memoryMB"] > 0
            assert listed["cpuCount"] > 0

        described = http.get("/templates/data").json()
        assert [build["buildID"] for build in described["builds"]] == [listed["buildID"]]
        assert http.get("/templates/nothing").status_code == 404
        gone = http.delete("/templates/data")
        assert gone.status_code == 403
        assert "template_builds" in gone.json()["message"]
        assert http.delete("/templates/nothing").status_code == 404
