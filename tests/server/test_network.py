"""What network a server and a key allow: none unless the owner says otherwise, and never more than a key may."""

from __future__ import annotations

import os
from typing import Any

import httpx2
import pytest

NAME = "api.example.com"
SECRET = "hush-4711"


def client_of(server: Any, token: str | None = None) -> httpx2.Client:
    headers = server.headers if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.Client(base_url=server.url, headers=headers, timeout=60)


def key_of(owner: httpx2.Client, **policy: Any) -> str:
    made = owner.post("/v1/keys", json={"name": "test", "policy": policy})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


@pytest.mark.parametrize("network", ["internet", {"allow": [NAME]}, {"presets": ["pip"]}, {"internet": True}])
def test_w08_a_server_gives_no_network_unless_it_is_reported_to(start_server, network):
    """Neither to a new sandbox, nor to one that lives, nor to a stateless run or one of a batch."""
    with client_of(start_server(dialects="", pool_size=1)) as client:
        refused = [
            client.post("/v1/sandboxes", json={"network": network}),
            client.post("/v1/execute", json={"code": "1", "network": network}),
        ]
        made = client.post("/v1/sandboxes", json={"network": "none"}).json()

        if isinstance(network, dict):
            refused.append(client.put(f"/v1/sandboxes/{made['id']}/network", json=network))

        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (403, "network_forbidden"), answer.text
            assert answer.json()["fields"]["allowed"] == "none"

        lines = client.post("/v1/execute/batch", json={"requests": [{"code": "1", "network": network}]}).text
        assert "network_forbidden" in lines


def test_a_key_for_the_package_index_cannot_lead_its_name_elsewhere(start_server, monkeypatch):
    """An address that the caller gives to the index's name would be any address of the internet."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)

    with client_of(start_server(dialects="", pool_size=1, max_network="internet")) as owner:
        token = key_of(owner, max_network="pip")
        headers = {"Authorization": f"Bearer {token}"}
        network = {"presets": ["pip"], "hosts": {"pypi.org": "93.184.216.34"}}
        made = owner.post("/v1/sandboxes", json={"network": "none"}, headers=headers).json()

        for refused in (
            owner.post("/v1/sandboxes", json={"network": network}, headers=headers),
            owner.post("/v1/execute", json={"code": "1", "network": network}, headers=headers),
            owner.put(f"/v1/sandboxes/{made['id']}/network", json=network, headers=headers),
        ):
            assert (refused.status_code, refused.json()["code"]) == (403, "network_forbidden"), refused.text
            assert refused.json()["fields"] == {"asked": "listed", "allowed": "pip"}

        # The control: without the address it is allowed.
        alone = owner.put(f"/v1/sandboxes/{made['id']}/network", json={"presets": ["pip"]}, headers=headers)
        assert alone.status_code == 200, alone.text


def test_w09_a_key_has_no_more_than_its_policy_says(server):
    """The least of what the server and the key allow; the policy is shown with the key."""
    with client_of(server) as owner:
        tokens = {level: key_of(owner, max_network=level) for level in ("none", "listed", "internet")}
        asked = {"none": "none", "listed": {"allow": [NAME]}, "internet": "internet"}
        # The server of these tests allows networks that are listed.
        allowed = {"none": {"none"}, "listed": {"none", "listed"}, "internet": {"none", "listed"}}

        for level, token in tokens.items():
            with client_of(server, token) as client:
                for name, network in asked.items():
                    answer = client.post("/v1/sandboxes", json={"network": network})
                    assert answer.status_code == (201 if name in allowed[level] else 403), (level, name)

                    if answer.status_code == 201:
                        client.delete(f"/v1/sandboxes/{answer.json()['id']}")

        policies = [key["policy"]["max_network"] for key in owner.get("/v1/keys").json()["items"]]
        assert {"none", "listed", "internet"} <= set(policies)
        assert owner.post("/v1/keys", json={"name": "x", "policy": {"max_network": "all"}}).status_code == 422


@pytest.mark.parametrize(
    "rule", ["127.0.0.1", "127.0.0.1:80", "10.0.0.0/8", "169.254.169.254", "::1", "fd00::/8"]
)
def test_w08_addresses_of_the_servers_own_network_are_not_a_keys_to_list(server, rule):
    """The server's neighbours are reached only where its owner has said so."""
    with client_of(server) as client:
        answer = client.post("/v1/sandboxes", json={"network": {"allow": [NAME, rule]}})
        assert (answer.status_code, answer.json()["code"]) == (403, "network_forbidden")
        assert answer.json()["fields"]["asked"] == rule

        # A name of the caller's own for such an address does not list it.
        pinned = {"allow": [NAME], "hosts": {NAME: "127.0.0.1"}}
        made = client.post("/v1/sandboxes", json={"network": pinned}).json()
        code = f"import urllib.request\nurllib.request.urlopen('http://{NAME}/')"
        ran = client.post(f"/v1/sandboxes/{made['id']}/executions", json={"code": code}).json()
        assert "403" in ran["error"]["value"]
        client.delete(f"/v1/sandboxes/{made['id']}")


def test_w08_what_the_owner_lets_be_listed_is(start_server):
    """Only that, and on the ports that were named."""
    server = start_server(
        dialects="", pool_size=0, max_network="listed", private_networks="10.1.0.0/16,10.2.0.7:5432"
    )

    with client_of(server) as client:
        for rule, status in (
            ("10.1.2.0/24:80", 201),
            ("10.2.0.7:5432", 201),
            ("10.2.0.7", 403),
            ("10.0.0.0/8", 403),
        ):
            made = client.post("/v1/sandboxes", json={"network": {"allow": [rule]}})
            assert made.status_code == status, rule

            if status == 201:
                client.delete(f"/v1/sandboxes/{made.json()['id']}")


def test_w10_secrets_do_not_come_back(server):
    """Not in an answer, not in a list, not in the log of the server."""
    with client_of(server) as client:
        place = f"http://{NAME}:8080"
        network = {"allow": [f"{NAME}:8080"], "secrets": {place: {"Authorization": SECRET}}}
        made = client.post("/v1/sandboxes", json={"network": network})
        assert made.status_code == 201, made.text
        box = f"/v1/sandboxes/{made.json()['id']}"
        said = [
            made,
            client.get(box),
            client.get("/v1/sandboxes"),
            client.put(f"{box}/network", json=network),
        ]
        said.append(client.get(f"{box}/network/log"))
        assert [answer.status_code for answer in said] == [201, 200, 200, 200, 200]
        assert not any(SECRET in answer.text for answer in said)
        assert made.json()["network"]["secrets"] == {place: {"Authorization": ""}}
        wrong = client.put(f"{box}/network", json={**network, "secrets": {place: {"Host": SECRET}}})
        assert wrong.status_code == 422
        assert SECRET not in wrong.text

        for bad in (
            {place: SECRET},
            [SECRET],
            {place: {"A": [SECRET]}},
            {place: {"A": SECRET + "\n"}},
            SECRET,
        ):
            for answer in (
                client.put(f"{box}/network", json={**network, "secrets": bad}),
                client.post("/v1/sandboxes", json={"network": {**network, "secrets": bad}}),
            ):
                assert answer.status_code == 422
                assert SECRET not in answer.text
        client.delete(box)

    assert not any(SECRET in line for line in server.said)


def test_w09_a_strangers_network_is_nobodys(server):
    """Neither read nor changed."""
    with client_of(server) as owner:
        with client_of(server, key_of(owner)) as mine, client_of(server, key_of(owner)) as stranger:
            box = f"/v1/sandboxes/{mine.post('/v1/sandboxes', json={}).json()['id']}"
            assert mine.get(f"{box}/network/log").json() == {"items": []}
            assert stranger.get(f"{box}/network/log").status_code == 404
            assert stranger.put(f"{box}/network", json={"allow": [NAME]}).status_code == 404
            mine.delete(box)
