"""Files in sandboxes at a real server, read by addresses that this server signs."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from email.message import Message

import pytest

from fumehood import (
    AsyncSandbox,
    AsyncSignedFiles,
    InvalidArgumentError,
    PathNotFoundError,
    Sandbox,
    SignedFiles,
)
from fumehood.llm.file_links import publisher_of, rewrite_links


def read(url: str) -> tuple[bytes, Message]:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read(), reply.headers


def test_a_file_at_a_server_is_read_without_a_token(server):
    files = SignedFiles(expires_seconds=600)

    with Sandbox(url=server.url, api_key=server.token) as sandbox:
        execution = sandbox.run_code(
            "from IPython.display import display, Image\n"
            "open('/mnt/data/page.html', 'w').write('<script>1</script>')\n"
            "display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + b'x' * 50, format='png', width=1, height=1))"
        )
        assert execution.error is None
        published = {file.name: file for file in files.publish(sandbox, execution=execution)}
        page = published.pop("page.html")
        content, headers = read(page.url)
        assert content == b"<script>1</script>"
        assert headers["Content-Disposition"].startswith("attachment")
        assert headers["Content-Type"] == "application/octet-stream"
        assert page.expires_at is not None
        assert all(file.url is None and file.skipped for file in published.values())
        assert list(published) == ["figure-1.png"]
        assert [file.name for file in files.publish(sandbox) if file.url] == []
        assert rewrite_links("[p](sandbox:/mnt/data/page.html)", [page]) == f"[p]({page.url})"

        with pytest.raises(PathNotFoundError):
            files.publish(sandbox, ["/mnt/data/nothing"])

        (folder,) = files.publish(sandbox, ["/mnt/data"])
        assert folder.skipped

    with pytest.raises(urllib.error.HTTPError) as caught:
        read(page.url)

    caught.value.close()


def test_the_number_of_files_is_bounded(server):
    async def scene() -> None:
        async with AsyncSandbox(url=server.url, api_key=server.token) as sandbox:
            await sandbox.run_code("for n in range(9): open(f'/mnt/data/{n}', 'w').write('x')")
            published = await AsyncSignedFiles(max_files=3).publish(sandbox)
            assert [bool(file.url) for file in published] == [True, True, True, False]
            assert published[-1].skipped == "3 files are the most; 5 more were left out"

    asyncio.run(scene())


def test_a_sandbox_of_this_process_has_no_server():
    with Sandbox() as sandbox:
        with pytest.raises(InvalidArgumentError, match="sandbox"):
            SignedFiles().publish(sandbox)


def test_it_is_a_publisher():
    assert isinstance(publisher_of(SignedFiles()), AsyncSignedFiles)
