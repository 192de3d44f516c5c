"""Labels of a living sandbox: changed by its key, found by lists, told to those who follow."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from fumehood import InvalidArgumentError, Sandbox
from fumehood.cli.main import main


def test_labels_change_while_it_lives(
    server: Any, api: httpx2.Client, other: httpx2.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over HTTP, in Python and at the command line; what is not named stays, null takes away."""
    words = ["--url", server.url, "--api-key", server.token]

    with Sandbox(url=server.url, api_key=server.token, metadata={"team": "blue", "run": "1"}) as sandbox:
        place = f"/v1/sandboxes/{sandbox.id}"
        changed = api.patch(place, json={"metadata": {"run": None, "step": "load"}})
        assert changed.json()["metadata"] == {"team": "blue", "step": "load"}
        found = api.get("/v1/sandboxes", params={"metadata.step": "load"}).json()["items"]
        assert [one["id"] for one in found] == [sandbox.id]
        sandbox.set_metadata({"step": "train"})
        assert Sandbox.list(metadata={"step": "load"}, url=server.url, api_key=server.token) == []
        (info,) = Sandbox.list(metadata={"step": "train"}, url=server.url, api_key=server.token)
        assert info.id == sandbox.id
        assert main(["label", sandbox.id, "step=", "note=a=b", *words]) == 0
        assert capsys.readouterr().out == "team=blue\nnote=a=b\n"
        assert main(["ps", "--label", "note=a=b", *words]) == 0
        assert sandbox.id in capsys.readouterr().out
        assert main(["ps", "--label", "note=other", *words]) == 0
        assert sandbox.id not in capsys.readouterr().out
        assert "labelled" in [entry["kind"] for entry in api.get(f"{place}/audit").json()["entries"]]
        # A paused one too, and it stays so.
        api.post(f"{place}/pause")
        assert api.patch(place, json={"metadata": {"x": ""}}).json()["state"] == "paused"

        assert other.patch(place, json={"metadata": {"x": "1"}}).status_code == 404
        assert api.patch(place, json={"metadata": {"x": 1}}).status_code == 422
        assert api.patch(place, json={"owner": "another"}).status_code == 422

        with pytest.raises(InvalidArgumentError):
            sandbox.set_metadata({f"n{number}": "x" * 100_000 for number in range(100)})

        assert api.get(place).json()["metadata"] == {"team": "blue", "note": "a=b", "x": ""}
