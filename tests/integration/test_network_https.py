"""https from inside, by real clients: through the proxy as it is, and with a secret that the proxy adds; and git."""

from __future__ import annotations

import http.server
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.egress.conftest import Certificates

from fumehood import Network, Sandbox

NAME = "api.example.com"
SECRET = "Bearer hush-4711"


class Web(http.server.ThreadingHTTPServer):
    """A web server on the loopback, with or without TLS; it keeps the headers of what it was asked."""

    daemon_threads = True

    def __init__(self, folder: Path, context: Any = None) -> None:
        self.asked: list[dict[str, str]] = []

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_GET(self) -> None:
                self.server.asked.append(dict(self.headers))  # type: ignore[attr-defined]
                super().do_GET()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_side=True)

        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    """An authority that this machine trusts for as long as the test runs."""
    pytest.importorskip("cryptography", reason="needs the extra `egress`")
    (tmp_path / "authority").mkdir()
    made = Certificates(tmp_path / "authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority_file))
    return made


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Web]]:
    """Starts web servers for a folder with one page."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "page").write_text("the page")
    started: list[Web] = []

    def start(context: Any = None) -> Web:
        started.append(Web(folder, context))
        return started[-1]

    start.folder = folder  # type: ignore[attr-defined]
    yield start

    for web in started:
        web.shutdown()
        web.server_close()


def listed(web: Web, **more: Any) -> Network:
    return Network(allow=[f"{NAME}:{web.port}", f"127.0.0.1:{web.port}"], hosts={NAME: "127.0.0.1"}, **more)


CLIENTS = (
    "curl -sSf {url}",
    "python3 -c \"import urllib.request as u; print(u.urlopen('{url}').read().decode())\"",
    "python3 -c \"import requests; print(requests.get('{url}').text)\"",
)


def test_https_goes_through_as_it_is(certificates, serve):
    """The client's own TLS, to the server's own certificate: nobody in between decides whether to trust it."""
    web = serve(certificates.server_context(NAME))

    with Sandbox(network=listed(web)) as sandbox:
        sandbox.files.write("authority.pem", certificates.authority_file.read_bytes())
        url = f"https://{NAME}:{web.port}/page"
        envs = {"SSL_CERT_FILE": "/home/user/authority.pem", "REQUESTS_CA_BUNDLE": "/home/user/authority.pem"}

        for client in CLIENTS:
            assert "the page" in sandbox.commands.run(client.format(url=url), envs=envs).stdout

        said = sandbox.run_code(
            f"import requests\nrequests.get('{url}', verify='/etc/ssl/certs/ca-certificates.crt')"
        )
        assert "CERTIFICATE_VERIFY_FAILED" in str(said.error)
        assert {record.kind for record in sandbox.egress_log()} == {"connect"}


def test_n14_a_secret_for_https_is_added_outside(certificates, serve):
    """Clients need no setting for it; what they send under that name is left out; nothing inside has it."""
    web = serve(certificates.server_context(NAME))
    place = f"{NAME}:{web.port}"

    with Sandbox(network=listed(web, secrets={place: {"Authorization": SECRET}})) as sandbox:
        for client in CLIENTS:
            assert "the page" in sandbox.commands.run(client.format(url=f"https://{place}/page")).stdout

        mine = (
            f"import requests\nrequests.get('https://{place}/page', headers={{'authorization': 'mine'}}).text"
        )
        assert sandbox.run_code(mine).text == "'the page'"
        assert [headers["Authorization"] for headers in web.asked] == [SECRET] * 4

        looked = sandbox.commands.run(
            "env; cat /home/user/.fumehood/*; grep -r hush-4711 /home /tmp /mnt /run 2>/dev/null; true"
        )
        assert "hush-4711" not in looked.stdout
        assert "PRIVATE KEY" not in looked.stdout
        assert "hush-4711" not in repr((sandbox.get_info(), sandbox.egress_log()))


def test_n14_a_server_that_is_not_who_it_says_gets_no_secret(certificates, serve):
    """Its certificate is for somebody else; the guest is told."""
    web = serve(certificates.server_context("other.example.com"))
    place = f"{NAME}:{web.port}"

    with Sandbox(network=listed(web, secrets={place: {"Authorization": SECRET}})) as sandbox:
        code = f"import requests\nr = requests.get('https://{place}/page')\nprint(r.status_code, r.text)"
        said = "".join(sandbox.run_code(code).logs.stdout)
        assert said.startswith("502 the certificate of api.example.com is not to be trusted")
        assert web.asked == []


@pytest.mark.skipif(not shutil.which("git"), reason="needs the program git")
def test_git_clones_through_the_proxy(serve, tmp_path):
    """A repository behind plain http."""
    web = serve()
    source = tmp_path / "source"
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    subprocess.run([*words, "init", "-q", str(source)], check=True)
    (source / "read.me").write_text("cloned\n")
    subprocess.run([*words, "-C", str(source), "add", "."], check=True)
    subprocess.run([*words, "-C", str(source), "commit", "-qm", "one"], check=True)
    target = serve.folder / "project.git"
    subprocess.run([*words, "clone", "-q", "--bare", str(source), str(target)], check=True)
    subprocess.run(["git", "-C", str(target), "update-server-info"], check=True)

    with Sandbox(network=listed(web)) as sandbox:
        done = sandbox.commands.run(
            f"git clone -q http://{NAME}:{web.port}/project.git && cat project/read.me"
        )
        assert done.stdout == "cloned\n"
