"""A real registry of images on this machine, Debian's `docker-registry`, and what `docker push` does to it."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.image_layouts import Layout, needs_program
from tests.tied import tied
from tests.waiting import until


@dataclass
class Registry:
    """A real registry, with a user `me` and the password `secret`."""

    host: str
    folder: Path

    def push(self, layout: Layout, name: str, tag: str = "latest") -> None:
        """What `docker push` does."""
        manifest = json.loads(layout.path(layout.tags[tag]["digest"]).read_bytes())

        for blob in (manifest["config"], *manifest["layers"]):
            content = layout.path(blob["digest"]).read_bytes()
            started = self._ask("POST", f"/v2/{name}/blobs/uploads/")
            place = started.headers["Location"]
            self._ask("PUT", f"{place}&digest={blob['digest']}", content, "application/octet-stream")

        self._ask("PUT", f"/v2/{name}/manifests/{tag}", json.dumps(manifest).encode(), manifest["mediaType"])

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        kind, _, value = digest.partition(":")
        return self.folder / "docker/registry/v2/blobs" / kind / value[:2] / value / "data"

    def login(self, password: str = "secret") -> dict[str, str]:
        """What `docker login` stores, as an environment variable."""
        word = base64.b64encode(f"me:{password}".encode()).decode()
        return {"DOCKER_AUTH_CONFIG": json.dumps({"auths": {self.host: {"auth": word}}})}

    def _ask(self, method, path, data=None, kind=""):
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        word = base64.b64encode(b"me:secret").decode()
        headers = {"Authorization": f"Basic {word}", "Content-Type": kind}
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            urllib.request.Request(url, data=data, method=method, headers=headers), timeout=30
        )


@contextmanager
def running_registry(folder: Path, *, wants_login: bool = False) -> Iterator[Registry]:
    """A registry on a free port, with its files in this folder; skips the test where the program is not installed."""
    program = needs_program("docker-registry")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    # What `htpasswd -nbB me secret` prints.
    (folder / "users").write_text("me:$2b$05$CCCCCCCCCCCCCCCCCCCCC.pIKrLVkBX9/OvQMSygY1pWEVn72t6na\n")
    login = f"auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}\n" if wants_login else ""
    (folder / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}', secret: x}}\n{login}"
    )
    process = subprocess.Popen(
        tied([program, "serve", str(folder / "config.yml")]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers, "the registry answers")
        yield Registry(f"127.0.0.1:{port}", folder / "data")
    finally:
        process.terminate()
        process.wait()
