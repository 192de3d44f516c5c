"""Containers and their files, by the unmodified `openai` package against a running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
import requests

from fumehood import Sandbox
from fumehood.llm import CodeInterpreter

SECONDS = 60


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    """As the owner of the server."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.token, max_retries=0) as made:
        yield made


@pytest.fixture
def new_client(server: Any) -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes keys, and clients that hold them."""
    made: list[openai.OpenAI] = []

    def make(**policy: Any) -> openai.OpenAI:
        answer = requests.post(
            f"{server.url}/v1/keys",
            json={"name": "openai", **policy},
            headers=server.headers,
            timeout=SECONDS,
        )
        assert answer.status_code == 201, answer.text
        made.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key=answer.json()["token"], max_retries=0))
        return made[-1]

    yield make

    for one in made:
        one.close()


@pytest.fixture
def container(client: openai.OpenAI) -> Iterator[Any]:
    made = client.containers.create(name="analysis", expires_after={"anchor": "last_active_at", "minutes": 5})
    yield made
    requests.delete(
        f"{client.base_url}containers/{made.id}",
        headers={"Authorization": f"Bearer {client.api_key}"},
        timeout=SECONDS,
    )


def test_a_container_lives_and_ends(client: openai.OpenAI) -> None:
    """It is made, found, listed and deleted, and then is not there."""
    made = client.containers.create(name="one", memory_limit="1g", network_policy={"type": "disabled"})

    assert made.id.startswith("cntr_")
    assert (made.object, made.status, made.name, made.memory_limit) == ("container", "running", "one", "1g")
    assert made.expires_after is not None
    assert (made.expires_after.anchor, made.expires_after.minutes) == ("last_active_at", 20)
    assert client.containers.retrieve(made.id).created_at == made.created_at
    assert [found.id for found in client.containers.list(name="one")] == [made.id]

    client.containers.delete(made.id)

    for ask in (client.containers.retrieve, client.containers.delete, client.containers.files.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)


def test_lists_come_in_pages(client: openai.OpenAI) -> None:
    """The SDK walks through the pages by itself."""
    made = [client.containers.create(name="paged").id for _ in range(3)]

    try:
        assert [one.id for one in client.containers.list(name="paged", limit=1, order="asc")] == made
        newest = client.containers.list(name="paged", limit=2)
        assert [one.id for one in newest.data] == made[:0:-1]
        assert newest.has_more is True
    finally:
        for container_id in made:
            client.containers.delete(container_id)


def test_files_come_and_go(client: openai.OpenAI, container: Any) -> None:
    """What is uploaded is there for code, and what code makes is found, read and removed."""
    content = b"a,b\n1,2\n\x00\xff"
    sent = client.containers.files.create(container.id, file=("übung 1.csv", content))

    assert (sent.path, sent.bytes, sent.source) == ("/mnt/data/übung 1.csv", len(content), "user")
    assert (sent.object, sent.container_id) == ("container.file", container.id)
    found = client.containers.files.retrieve(sent.id, container_id=container.id)
    assert found.model_dump() == sent.model_dump()
    assert client.containers.files.content.retrieve(sent.id, container_id=container.id).read() == content

    client.containers.files.delete(sent.id, container_id=container.id)

    assert list(client.containers.files.list(container.id)) == []

    with pytest.raises(openai.NotFoundError):
        client.containers.files.content.retrieve(sent.id, container_id=container.id)


def test_an_interpreter_works_in_a_container(server: Any, client: openai.OpenAI, container: Any) -> None:
    """Code runs beside the files of the container, and its item names the container."""
    client.containers.files.create(container.id, file=("in.txt", b"21"))
    sandbox = Sandbox.connect(container.id.removeprefix("cntr_"), url=server.url, api_key=server.token)
    code = "n = int(open('/mnt/data/in.txt').read())\nopen('/mnt/data/out.txt', 'w').write(str(2 * n))\nn"

    item = CodeInterpreter(sandbox).as_code_interpreter_call(code)

    assert item["container_id"] == container.id
    files = {file.path: file for file in client.containers.files.list(container.id)}
    assert {path: file.source for path, file in files.items()} == {
        "/mnt/data/in.txt": "user",
        "/mnt/data/out.txt": "assistant",
    }
    out = files["/mnt/data/out.txt"].id
    assert client.containers.files.content.retrieve(out, container_id=container.id).read() == b"42"


def test_what_is_overwritten_by_code_is_the_codes(server: Any, client: openai.OpenAI, container: Any) -> None:
    """A file of the user's that code has changed is no more what the user sent."""
    sent = client.containers.files.create(container.id, file=("in.txt", b"21"))
    sandbox = Sandbox.connect(container.id.removeprefix("cntr_"), url=server.url, api_key=server.token)
    sandbox.run_code("open('/mnt/data/in.txt', 'w').write('code')")

    assert client.containers.files.retrieve(sent.id, container_id=container.id).source == "assistant"


@pytest.mark.parametrize(
    "asked",
    [
        {"memory_limit": "2g"},
        {"file_ids": ["file-1"]},
        {"skills": [{"type": "skill_reference", "skill_id": "x"}]},
        {"network_policy": {"type": "allowlist", "allowed_domains": []}},
        {"network_policy": {"type": "allowlist", "allowed_domains": ["exa mple"]}},
        {"network_policy": {"type": "everything"}},
        {"expires_after": {"anchor": "last_active_at", "minutes": 0}},
        {"name": ""},
    ],
)
def test_what_cannot_be_had_is_refused_by_name(client: openai.OpenAI, asked: dict[str, Any]) -> None:
    """Nothing that was asked for is passed over in silence."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.containers.create(**{"name": "x", **asked})

    assert raised.value.body["param"].startswith(next(iter(asked))[:7])  # type: ignore[index]


def test_a_network_is_given_where_the_server_allows_it(start_server: Callable[..., Any]) -> None:
    """By names; a server that gives none refuses it."""
    policy: Any = {"type": "allowlist", "allowed_domains": ["api.example.com"]}
    secrets = [{"domain": "api.example.com", "name": "KEY", "value": "v"}]
    closed = start_server(max_network="none", pool_size=0)

    with openai.OpenAI(base_url=f"{closed.url}/v1", api_key=closed.token, max_retries=0) as client:
        with pytest.raises(openai.PermissionDeniedError):
            client.containers.create(name="x", network_policy=policy)

    running = start_server(max_network="listed", pool_size=0)

    with openai.OpenAI(base_url=f"{running.url}/v1", api_key=running.token, max_retries=0) as client:
        made = client.containers.create(name="net", network_policy=policy)
        found = client.containers.retrieve(made.id).network_policy
        assert found is not None
        assert (found.type, found.allowed_domains) == ("allowlist", ["api.example.com"])

        with pytest.raises(openai.BadRequestError, match="domain_secrets"):
            client.containers.create(name="net", network_policy={**policy, "domain_secrets": secrets})


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "1e2"}, {"limit": "101"}, {"order": "up"}])
def test_a_broken_list_is_refused(client: openai.OpenAI, query: dict[str, Any]) -> None:
    """A page that is none is an error and not another page."""
    with pytest.raises(openai.BadRequestError):
        client.containers.list(extra_query=query)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/mnt/data/../../etc/passwd", "/mnt/data/", "", "/mnt/data/./a"]
)
def test_ids_of_files_lead_nowhere_else(client: openai.OpenAI, container: Any, path: str) -> None:
    """An id that somebody has made up opens nothing but a container's files."""
    from fumehood.dialects.openai.bodies import file_id_of

    for file_id in (file_id_of(path), path or "x", "cfile_"):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            client.containers.files.content.retrieve(file_id.replace("/", "%2F"), container_id=container.id)


@pytest.mark.parametrize("name", ["a/b/evil.txt", "C:\\dir\\evil.txt", "evil.txt"])
def test_names_of_uploads_are_names(client: openai.OpenAI, container: Any, name: str) -> None:
    """Directories in a name are dropped."""
    assert client.containers.files.create(container.id, file=(name, b"x")).path == "/mnt/data/evil.txt"


@pytest.mark.parametrize("name", ["../../evil.txt", "a/b/../evil.txt", ".."])
def test_a_name_that_leads_out_is_refused(client: openai.OpenAI, container: Any, name: str) -> None:
    """Nobody guesses what such a name was meant to be."""
    with pytest.raises(openai.BadRequestError):
        client.containers.files.create(container.id, file=(name, b"x"))


def test_an_upload_without_a_file_is_refused(client: openai.OpenAI, container: Any) -> None:
    """A file of another place cannot be named."""
    with pytest.raises(openai.BadRequestError):
        client.containers.files.create(container.id, file_id="file-1")


def test_names_that_are_no_text_do_not_break_the_list(
    server: Any, client: openai.OpenAI, container: Any
) -> None:
    """What code may call a file, the list can tell; and each can be removed or says why not."""
    sandbox = Sandbox.connect(container.id.removeprefix("cntr_"), url=server.url, api_key=server.token)
    sandbox.run_code(
        "for name in (b'\\xff', b'a\\nb', b'\\xe2\\x80\\xae'): open(b'/mnt/data/' + name, 'w').close()"
    )
    files = {file.path: file.id for file in client.containers.files.list(container.id)}
    broken = files.pop("/mnt/data/\\udcff")

    assert len(files) == 2

    for file_id in files.values():
        assert client.containers.files.content.retrieve(file_id, container_id=container.id).read() == b""

    with pytest.raises(openai.BadRequestError, match="encodable as UTF-8"):
        client.containers.files.content.retrieve(broken, container_id=container.id)


def test_links_are_no_files(server: Any, client: openai.OpenAI, container: Any) -> None:
    """A link that code has made leads nobody out of the folder."""
    from fumehood.dialects.openai.bodies import file_id_of

    sandbox = Sandbox.connect(container.id.removeprefix("cntr_"), url=server.url, api_key=server.token)
    sandbox.run_code("import os; os.symlink('/etc/passwd', '/mnt/data/link')")

    assert list(client.containers.files.list(container.id)) == []

    with pytest.raises(openai.NotFoundError):
        client.containers.files.retrieve(file_id_of("/mnt/data/link"), container_id=container.id)


def test_nobody_sees_another_keys_containers(new_client: Callable[..., openai.OpenAI]) -> None:
    """A stranger's container answers like one that never was."""
    mine, other = new_client(scopes=["sandboxes"]), new_client(scopes=["sandboxes"])
    made = mine.containers.create(name="mine")
    sent = mine.containers.files.create(made.id, file=("a.txt", b"a"))

    assert list(other.containers.list()) == []

    for ask in (
        lambda: other.containers.retrieve(made.id),
        lambda: other.containers.delete(made.id),
        lambda: other.containers.files.list(made.id),
        lambda: other.containers.files.create(made.id, file=("b.txt", b"b")),
        lambda: other.containers.files.retrieve(sent.id, container_id=made.id),
        lambda: other.containers.files.content.retrieve(sent.id, container_id=made.id),
        lambda: other.containers.files.delete(sent.id, container_id=made.id),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()

    assert [file.path for file in mine.containers.files.list(made.id)] == ["/mnt/data/a.txt"]
    mine.containers.delete(made.id)


def test_who_may_not_is_reported(server: Any, new_client: Callable[..., openai.OpenAI]) -> None:
    """No key, a wrong key, and a key without the scope."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="nobody", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.containers.list()

    with pytest.raises(openai.PermissionDeniedError):
        new_client(scopes=["execute"]).containers.list()
