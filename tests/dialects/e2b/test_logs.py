"""Logs of sandboxes, as the command line of E2B asks for them: what happened, and nothing of what was said."""

from __future__ import annotations

import json

from e2b_code_interpreter import Sandbox

SECRET = "hunter2"


def test_logs_say_what_happened_and_not_what_was_said(http, addresses):
    """Both generations of the route, of a living sandbox and of one that has ended."""
    headers = {"X-API-Key": addresses["E2B_API_KEY"]}
    sandbox = Sandbox.create(timeout=120, envs={"KEY": SECRET}, metadata={"who": SECRET})
    sandbox.run_code(f"print('{SECRET}')")
    sandbox.commands.run(f"echo {SECRET}", envs={"OTHER": SECRET})
    sandbox.files.write(SECRET, SECRET)
    place = f"/sandboxes/{sandbox.sandbox_id}/logs"
    first = http.get(place, headers=headers)
    assert first.status_code == 200
    lines = [json.loads(one["line"]) for one in first.json()["logs"]]
    said = [line["message"] for line in lines]
    assert said[0] == "created"
    assert {"executed", "command", "file_in"} <= set(said)
    assert {line["level"] for line in lines} == {"info"}
    assert all(line["logger"] for line in lines)
    (executed,) = [line for line in lines if line["message"] == "executed"]
    assert (executed["outcome"], executed["language"]) == ("ok", "python")

    second = http.get(f"/v2{place}", params={"limit": 2, "direction": "backward"}, headers=headers)
    assert [one["message"] for one in second.json()["logs"]] == said[::-1][:2]
    found = http.get(f"/v2{place}", params={"search": "EXEC", "level": "info"}, headers=headers).json()[
        "logs"
    ]
    assert [one["message"] for one in found] == ["executed"]
    later = http.get(place, params={"start": 10**15}, headers=headers).json()
    assert later == {"logs": [], "logEntries": []}

    sandbox.kill()
    ended = http.get(place, headers=headers)
    assert json.loads(ended.json()["logs"][-1]["line"])["message"] == "ended"
    assert SECRET not in first.text + second.text + ended.text

    for wrong in ({"limit": "1001"}, {"start": "-1"}, {"cursor": "x"}):
        path = f"/v2{place}" if "cursor" in wrong else place
        assert http.get(path, params=wrong, headers=headers).status_code == 400

    assert http.get("/sandboxes/nobody/logs", headers=headers).status_code == 404


def test_logs_are_their_owners_alone(http, new_key):
    """Another key finds nothing, as with everything of another's sandbox."""
    with Sandbox.create(timeout=60) as sandbox:
        place = f"/sandboxes/{sandbox.sandbox_id}/logs"
        assert http.get(place, headers={"X-API-Key": new_key()}).status_code == 404
        assert http.get(place).status_code == 401
