"""Labels of a living sandbox: changed by its key, found by lists, told to those who follow."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from fumehood import InvalidArgumentError, Sandbox
from fumehood.cli.main import main
from fumehood.engine.feed import MAX_FEED_BYTES


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
        assert main(["metadata", sandbox.id, "step=", "note=a=b", *words]) == 0
        assert capsys.readouterr().out == "team=blue\nnote=a=b\n"
        # Its name of before.
        assert main(["label", sandbox.id, *words]) == 0
        assert capsys.readouterr().out == "team=blue\nnote=a=b\n"
        assert main(["ps", "--metadata", "note=a=b", *words]) == 0
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


def _made(api: httpx2.Client, **options: Any) -> str:
    answer = api.post("/v1/sandboxes", json=options)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["id"]
    return made


def _too_many() -> dict[str, dict[str, str]]:
    # UTF-8 takes two bytes for each é.
    return {
        "at most 64 labels": {f"n{number}": "" for number in range(65)},
        "names of at most 128 characters": {"n" * 129: ""},
        "at most 16,384 bytes": {"a": "é" * 4096, "b": "é" * 4096},
    }


def test_labels_are_bounded(server: Any, api: httpx2.Client, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever a sandbox gets labels; the refusal names the bound. All that it allows is kept."""
    widest = {f"{number:02}" + "n" * 126: "x" * 128 for number in range(64)}
    place = f"/v1/sandboxes/{_made(api, metadata=widest)}"
    # Control: others than labels have the bounds that they had.
    envs = {f"E{number}": "x" * 300 for number in range(100)}
    assert api.delete(f"/v1/sandboxes/{_made(api, envs=envs)}").status_code == 204
    others = httpx2.Client(
        base_url=server.url, headers={"X-API-Key": f"e2b_{server.token.encode().hex()}"}, timeout=30
    )
    saved = api.post(f"{place}/save").content

    for bound, labels in _too_many().items():
        loaded = {"data": {"options": json.dumps({"metadata": labels})}, "files": {"state": ("state", saved)}}
        emptied = api.patch(place, json={"metadata": dict.fromkeys(widest)})
        assert emptied.json()["metadata"] == {}

        for answer in (
            api.post("/v1/sandboxes", json={"metadata": labels}),
            api.patch(place, json={"metadata": labels}),
            api.post(f"{place}/forks", json={"metadata": labels}),
            api.post("/v1/sandboxes/load", **loaded),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), answer.text[:300]
            assert bound in answer.text

        answer = others.post("/sandboxes", json={"templateID": "base", "timeout": 9, "metadata": labels})
        assert (answer.status_code, answer.json()["code"]) == (400, 400), answer.text[:300]
        assert bound in answer.json()["message"]
        words = ["--url", server.url, "--api-key", server.token]
        said = [f"{name}={text or 'x'}" for name, text in labels.items()]
        assert main(["label", place.rpartition("/")[2], *said, *words]) != 0
        assert bound in capsys.readouterr().err
        assert api.get(place).json()["metadata"] == {}
        assert api.patch(place, json={"metadata": widest}).json()["metadata"] == widest

    # Change by change it grows no further either.
    answer = api.patch(place, json={"metadata": {"one more": ""}})
    assert (answer.status_code, "at most 64 labels" in answer.text) == (422, True)
    assert api.delete(place).status_code == 204
    others.close()


def test_a_feed_counts_labels(api: httpx2.Client) -> None:
    """One who reads nothing costs what the feed's bound says, though each change brings all labels."""
    sandbox = _made(api)
    path = f"/v1/sandboxes/{sandbox}/events"

    with api.stream("GET", path) as unread:
        here = json.loads(next(unread.iter_lines()))

        for number in range(80):
            labels = {"note": f"{number:02}" + "x" * 16_000}
            assert api.patch(f"/v1/sandboxes/{sandbox}", json={"metadata": labels}).status_code == 200

        kept = []

        with api.stream("GET", path, params={"after": here["seq"]}) as answer:
            for line in answer.iter_lines():
                event = json.loads(line) if line else {}

                if event.get("type") == "changed":
                    kept.append(len(line))

                    if event["sandbox"]["metadata"]["note"].startswith("79"):
                        break

    assert api.delete(f"/v1/sandboxes/{sandbox}").status_code == 204
    assert 0.5 * MAX_FEED_BYTES < sum(kept) <= MAX_FEED_BYTES, (len(kept), sum(kept))
