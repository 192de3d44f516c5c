"""Templates over HTTP: built with their steps as a stream, listed, used at once, built anew, and removed.

Each build installs IPython from the package index; the one here has nothing more, and is made twice.
"""

from __future__ import annotations

import os

import httpx2
import pytest
from tests.waiting import until

from fumehood import (
    ForbiddenError,
    Sandbox,
    TemplateStoreError,
    build_template,
    list_templates,
    remove_template,
)
from fumehood.assemble import remote_backend
from fumehood.cli.main import main

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def server(start_server, tmp_path, monkeypatch):
    """A server that builds templates, with a store of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    running = start_server(template_builds="true", pool_size=1)
    # The store of this process is another one: all that follows goes to the server.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    return running


def test_a_template_is_built_used_built_anew_and_removed(server, capsys, monkeypatch):
    """Steps arrive, a build is seen without a restart, and sandboxes of the earlier one live on."""
    at = {"url": server.url, "api_key": server.token}
    steps: list[str] = []
    info = build_template("small", envs={"VERSION": "1"}, preload=["decimal"], on_progress=steps.append, **at)

    assert info.name == "small"
    assert "starting a sandbox from it" in steps
    assert "is built" in steps[-1]
    assert list_templates(**at) == (info,)
    assert list_templates() == ()

    backend = remote_backend(server.url, server.token)
    code = "import os; os.environ['VERSION']"

    with Sandbox("small", backend=backend) as old:
        assert old.run_code(code).text == "'1'"
        common = ["small", "--url", server.url, "--api-key", server.token]
        assert main(["template", "build", *common, "--env", "VERSION=2"]) == 0
        assert "'small' is built" in capsys.readouterr().err

        with Sandbox("small", backend=backend) as new:
            assert new.run_code(code).text == "'2'"

        assert old.run_code(code).text == "'1'"
        assert main(["template", "list", *common[1:]]) == 0
        assert "small" in capsys.readouterr().out
        monkeypatch.setenv("FUMEHOOD_URL", server.url)
        assert main(["template", "list"]) == 0
        assert "these are this machine's; `--url URL` lists those of the server" in capsys.readouterr().err
        monkeypatch.delenv("FUMEHOOD_URL")
        assert remove_template("small", **at) is False
        assert old.run_code(code).text == "'1'"

    assert list_templates(**at) == ()

    with pytest.raises(Exception, match="no template has this name"), Sandbox("small", backend=backend):
        pass

    with pytest.raises(TemplateStoreError, match="no template has this name"):
        remove_template("small", **at)


def test_what_cannot_be_built_is_refused_with_the_reason(server, tmp_path):
    """A bad name at once, a requirement that does not exist at its step; nothing is left."""
    at = {"url": server.url, "api_key": server.token}

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=300) as client:
        refused = client.post("/v1/templates", json={"name": "default"})
        lines = client.post("/v1/templates", json={"name": "bad", "requirements": ["no such thing"]}).text

    assert "template name" in refused.text
    assert "'default' is the environment" in refused.text
    assert '"code":"template_store"' in lines or "requirements" in lines
    listing = tmp_path / "requirements.txt"
    listing.write_text("-r other.txt\n")

    with pytest.raises(ValueError, match=r"-r other\.txt"):
        build_template("bad", requirements=str(listing), **at)

    with pytest.raises(ValueError, match="files"):
        build_template("bad", files=str(tmp_path), **at)

    assert list_templates(**at) == ()


def test_a_client_that_leaves_ends_the_build(server, tmp_path):
    """No process of the build is left, and nothing of it on the disk."""
    builds = tmp_path / "home" / "fumehood" / "templates" / "builds"

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        with client.stream("POST", "/v1/templates", json={"name": "left"}) as answer:
            assert any(builds.exists() and os.listdir(builds) for _ in answer.iter_lines())

        assert client.get("/v1/templates").json() == {"items": []}

    until(lambda: os.listdir(builds) == [], "the folder of the build is gone")


def test_only_the_owner_changes_templates_and_builds_are_a_setting(start_server):
    """A key lists them; a server that was not told to builds none, also for its owner."""
    server = start_server(pool_size=0)

    with httpx2.Client(base_url=server.url, timeout=60) as client:
        key = client.post("/v1/keys", json={"name": "a"}, headers=server.headers).json()["token"]
        mine = {"Authorization": f"Bearer {key}"}
        assert client.get("/v1/templates", headers=mine).status_code == 200
        assert client.post("/v1/templates", json={"name": "a"}, headers=mine).status_code == 403
        assert client.delete("/v1/templates/a", headers=mine).status_code == 403
        assert client.get("/v1/templates").status_code == 401

    with pytest.raises(ForbiddenError, match="builds no templates over HTTP") as refused:
        build_template("a", url=server.url, api_key=server.token)

    assert "--template-builds true" in refused.value.hint
