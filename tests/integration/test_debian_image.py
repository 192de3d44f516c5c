"""A Dockerfile over a whole Debian, which mmdebstrap makes without a registry: `make test-images` runs this.

It downloads some 60 MB from the mirror of this machine's own sources.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.image_homes import make_home, remove_home, shared_interpreter
from tests.image_layouts import needs_program

from fumehood import Network, Sandbox, build_template

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("EVERY_IMAGE"), reason="downloads a Debian: `make test-images` runs it"
    ),
    pytest.mark.timeout(1200),
]
_HOSTS = ("deb.debian.org", "security.debian.org")
_DOCKERFILE = """\
FROM scratch AS base
ADD base.tar /
ENV DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
RUN apt-get update && apt-get install -y --no-install-recommends sl xvfb && dpkg -L sl > /files-of-sl

FROM base
ARG WHO=app
RUN useradd --create-home $WHO
COPY --from=base /files-of-sl /app/files
COPY --chown=app:app note.txt /app/
WORKDIR /app
USER app
CMD ["sl"]
"""


@pytest.fixture(scope="module")
def context(tmp_path_factory) -> Iterator[Path]:
    """A folder with a Debian and a Dockerfile."""
    mmdebstrap = needs_program("mmdebstrap")
    folder = tmp_path_factory.mktemp("debian")
    home = make_home(folder / "home", shared_interpreter(tmp_path_factory))
    context = folder / "context"
    context.mkdir()
    subprocess.run(
        [mmdebstrap, "--quiet", "--variant=apt", "bookworm", str(context / "base.tar")], check=True
    )
    (context / "Dockerfile").write_text(_DOCKERFILE)
    (context / "note.txt").write_text("noted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUMEHOOD_HOME", str(home))
        patch.setenv("FUMEHOOD_POOL_SIZE", "0")
        yield context

    remove_home(home)


def _network() -> Network:
    """The mirrors of Debian, also where their names lead to an address that is not public."""
    found = {socket.gethostbyname(host) for host in _HOSTS}
    private = [f"{address}:80" for address in found if not ipaddress.ip_address(address).is_global]
    return Network(allow=(*(f"{host}:80" for host in _HOSTS), *private))


def _build(context: Path) -> list[str]:
    """Builds, and returns the steps that were not in the store."""
    heard: list[str] = []
    build_template(
        "debian",
        dockerfile=str(context / "Dockerfile"),
        network=_network(),
        display=True,
        on_progress=heard.append,
    )
    begun = [line.partition("] ")[2] for line in heard if line.startswith("[")]
    return [line.split()[0] for line in begun if "is here" not in line and not line.startswith("done")]


def test_packages_are_installed_and_run(context):
    """Two stages with apt-get, COPY --chown, ARG and USER; a second build runs nothing, a change the later ones."""
    assert _build(context) == ["ADD", "RUN", "RUN", "COPY", "COPY", "WORKDIR"]

    with Sandbox("debian") as sandbox:
        said = sandbox.commands.run(
            "dpkg-query -W -f '${Status}' sl; echo; id -un; cat note.txt; grep -c sl files"
        ).stdout
        assert said.startswith("install ok installed\napp\nnoted")
        assert sandbox.run_code("import ssl, sqlite3; 6 * 7").text == "42"
        assert sandbox.screenshot().startswith(b"\x89PNG")

    assert _build(context) == []
    (context / "note.txt").write_text("changed")
    assert _build(context) == ["COPY", "WORKDIR"]
