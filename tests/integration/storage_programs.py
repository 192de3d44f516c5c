"""Servers that speak the protocols of S3 and of Azure's storage: real programs on loopback, gone afterwards."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

AZURITE = pathlib.Path(__file__).parents[1] / "npm_programs" / "node_modules" / ".bin" / "azurite-blob"
# Azurite's one account, which its documentation gives to everybody.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Place:
    """Where blobs can be kept, and how to ask the program itself what it holds."""

    location: str
    options: dict[str, Any]
    address: str = ""


@contextlib.contextmanager
def running(command: list[str], announced: str, stream: str) -> Iterator[str]:
    """The address that a program announces on one of its streams."""
    others = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **{**others, stream: subprocess.PIPE}) as program:
        pipe = getattr(program, stream)
        said = []

        try:
            for line in pipe:
                said.append(line)
                found = re.search(announced, line)

                if found:
                    break
            else:
                raise AssertionError("".join(said))

            yield found[1]
        finally:
            program.terminate()
            program.communicate()


@contextlib.contextmanager
def s3() -> Iterator[Place]:
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]

    with running(command, r"Running on (http://\S+)", "stderr") as address:
        ask(urllib.request.Request(f"{address}/bucket", method="PUT"))
        options = {
            "endpoint": address,
            "access_key_id": "key",
            "secret_access_key": "secret",
            "region": "us-east-1",
        }
        yield Place("s3://bucket/some/prefix", options, address)


@contextlib.contextmanager
def azure(folder: pathlib.Path) -> Iterator[Place]:
    if not AZURITE.exists() or shutil.which("node") is None:
        pytest.skip("Azurite is not installed (make test installs it with npm)")

    command = [
        str(AZURITE),
        "--skipApiVersionCheck",
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--silent",
    ]
    command += ["--blobHost", "127.0.0.1", "--blobPort", "0", "--extentMemoryLimit", "512"]

    with running(command, r"listens on (http://\S+)", "stdout") as address:
        ask(signed(f"{address}/{ACCOUNT}", "container"))
        options = {
            "account_name": ACCOUNT,
            "account_key": ACCOUNT_KEY,
            "endpoint": f"{address}/{ACCOUNT}",
        }
        yield Place("az://container/some/prefix", options, address)


def signed(address: str, container: str) -> urllib.request.Request:
    """The request that makes a container, signed with the account's key (Azure's "Authorize with Shared Key")."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    text = "PUT" + "\n" * 12 + f"{lines}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    mark = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mark).decode()}"
    return urllib.request.Request(f"{address}/{container}?restype=container", method="PUT", headers=headers)


def ask(request: urllib.request.Request) -> bytes:
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read()
