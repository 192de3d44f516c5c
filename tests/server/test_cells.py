"""Routes that look: pages of executions, the bytes of a result, lists with their use, the queue and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2


def test_cells_say_who_ran_them_and_by_what(server: Any, api: httpx2.Client) -> None:
    """Code of the native API and of a dialect in one sandbox: the key and the interface stand beside each."""
    made = api.post("/sandboxes", json={"templateID": "base"}).json()
    place = f"/v1/sandboxes/{made['sandboxID']}"
    headers = {
        "E2b-Sandbox-Id": made["sandboxID"],
        "E2b-Sandbox-Port": "49999",
        "X-Access-Token": made["envdAccessToken"],
    }
    ran = httpx2.post(f"{server.url}/execute", json={"code": "b = 2"}, headers=headers, timeout=60)
    assert ran.status_code == 200, ran.text
    api.post(f"{place}/executions", json={"code": "a = 1"})
    page = api.get(f"{place}/contexts/default/executions").json()
    seen = [(cell["code"], cell["by"], cell["via"]) for cell in page["items"]]
    assert seen == [("b = 2", "owner", "e2b"), ("a = 1", "owner", "api")]

    # Only a server in front of a host daemon may say it.
    said = {"X-Fumehood-By": "somebody", "X-Fumehood-Via": "elsewhere"}
    api.post(f"{place}/executions", json={"code": "c = 3"}, headers=said)
    last = api.get(f"{place}/contexts/default/executions", params={"limit": 1}).json()["items"][0]
    assert (last["code"], last["by"], last["via"]) == ("c = 3", "owner", "api")
    api.delete(place)


def test_the_bytes_of_a_result_are_a_download_in_which_nothing_runs(
    api: httpx2.Client, place: str, run: Callable[..., Any]
) -> None:
    """Whole, a part, past the end; a page of a guest is bytes without a type."""
    code = "from IPython.display import HTML\ndisplay(HTML('<script>alert(1)</script>'))\n'x' * 10"
    ran = run(code)["id"]
    base = f"{place}/executions/{ran}/results"
    whole = api.get(f"{base}/1/text/plain")
    assert (whole.status_code, whole.text) == (200, "'xxxxxxxxxx'")
    part = api.get(f"{base}/1/text%2Fplain", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.text, part.headers["content-range"]) == (206, "xxx", "bytes 1-3/12")
    assert api.get(f"{base}/1/text/plain", headers={"Range": "bytes=99-"}).status_code == 416
    page = api.get(f"{base}/0/text/html")
    assert page.text == "<script>alert(1)</script>"
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert (page.headers["content-disposition"], page.headers["x-content-type-options"]) == (
        "attachment",
        "nosniff",
    )
    assert api.get(f"{base}/0/image/png").status_code == 422
    assert api.get(f"{base}/7/text/html").status_code == 422
    assert api.get(f"{place}/executions/nothing").status_code == 404


def test_what_others_run_is_not_seen(api: httpx2.Client, other: httpx2.Client, place: str, run: Any) -> None:
    """Another key finds neither pages nor results; the owner finds both."""
    ran = run("secret = 1; secret")["id"]
    paths = (
        f"{place}/contexts/default/executions",
        f"{place}/executions/{ran}",
        f"{place}/executions/{ran}/results/0/text/plain",
    )

    for path in paths:
        assert (other.get(path).status_code, api.get(path).status_code) == (404, 200), path


def test_a_list_says_what_each_uses(api: httpx2.Client, other: httpx2.Client, run: Any, place: str) -> None:
    """With `with=use`, without a call to any sandbox; by text, by key, and never those of another key."""
    sandbox = place.rpartition("/")[2]
    run("1/0")
    (item,) = api.get("/v1/sandboxes", params={"q": sandbox.upper(), "with": "use"}).json()["items"]
    assert item["id"] == sandbox
    use = item["use"]
    assert (use["cells"], use["last_outcome"], use["is_running"]) == (1, "exception", False)
    assert use["memory_bytes"] is None or use["memory_bytes"] > 1 << 20
    (plain,) = api.get("/v1/sandboxes", params={"q": sandbox}).json()["items"]
    assert "use" not in plain
    assert api.get("/v1/sandboxes", params={"q": sandbox, "owner": "nobody"}).json()["items"] == []
    newest = api.get("/v1/sandboxes", params={"order": "-started", "limit": 1}).json()
    assert newest["items"][0]["id"] == sandbox

    for query in ({}, {"owner": "owner"}, {"q": sandbox}):
        assert other.get("/v1/sandboxes", params=query).json()["items"] == [], query

    assert api.get("/v1/sandboxes", params={"order": "size"}).status_code == 422


def test_the_queue_is_reported_to_its_owner(api: httpx2.Client, other: httpx2.Client) -> None:
    """How many run and wait; a key without the scope is refused."""
    told = api.get("/v1/queue").json()
    assert told["places"] >= 1
    assert (told["running"], told["waiting"], told["oldest_wait_seconds"], told["keys"]) == (0, 0, None, [])
    assert other.get("/v1/queue").status_code == 403


def test_a_record_is_a_file_for_a_download(api: httpx2.Client, place: str, run: Callable[..., Any]) -> None:
    """A notebook, a Python file, a page in which nothing runs; unknown forms are refused."""
    run("print('<script>alert(1)</script>')\n6 * 7")
    base = f"{place}/contexts/default/record"
    notebook = api.get(base, params={"form": "ipynb"})
    assert notebook.json()["nbformat"] == 4
    assert notebook.json()["cells"][0]["outputs"][-1]["data"]["text/plain"] in ("42", ["42"])
    assert api.get(base, params={"form": "py"}).text.rstrip().endswith("6 * 7")
    page = api.get(base, params={"form": "html"})
    assert "&lt;script&gt;" in page.text
    assert page.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert page.headers["content-disposition"].startswith("attachment")
    assert api.get(base).json()["cells"][0]["execution"]["text"] == "42"
    assert api.get(base, params={"form": "pdf"}).status_code == 422


def test_settings_and_security_events_are_for_the_owner(
    api: httpx2.Client, other: httpx2.Client, server: Any
) -> None:
    """Where each setting came from, and no secret; a key is refused, with the scope of keys as well."""
    settings = api.get("/v1/settings")
    by_name = {each["name"]: each for each in settings.json()["items"]}
    assert by_name["port"]["source"] != "default"
    assert by_name["port"]["origin"] in ("--port", "FUMEHOOD_PORT")
    assert (by_name["login_hours"]["source"], by_name["login_hours"]["origin"]) == ("default", "")
    assert server.token not in settings.text
    events = api.get("/v1/security-events").json()
    assert (isinstance(events["items"], list), events["are_counted"]) == (True, True)
    made = api.post("/v1/keys", json={"name": "admin", "scopes": ["keys", "execute", "sandboxes", "metrics"]})
    strong = {"Authorization": f"Bearer {made.json()['token']}"}

    for path in ("/v1/settings", "/v1/security-events"):
        assert other.get(path).status_code == 403, path
        assert api.get(path, headers=strong).status_code == 403, path
