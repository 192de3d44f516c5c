"""One cluster of two machines for the tests of a module, and a client of its server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from .machines import Cluster, missing

# A quarter of an hour; the fastest faults are in `test_cluster.py`.
collect_ignore = [] if os.environ.get("EVERY_FAULT") else ["test_survival.py"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two machines, the second with labels; the host daemons keep no pools."""
    if why := missing():
        pytest.skip(why)

    # Short, because of the paths of sockets.
    with tempfile.TemporaryDirectory(prefix="fh-", dir="/tmp") as folder:
        running = Cluster(
            Path(folder),
            2,
            labels={1: {"zone": "a"}, 2: {"zone": "b"}},
            sandbox_seconds=0,
            max_sandbox_seconds=0,
        )
        yield running
        running.close()


@pytest.fixture
def api(cluster: Cluster) -> Iterator[httpx2.Client]:
    """A client of the cluster's server, as its owner."""
    with httpx2.Client(base_url=cluster.server.url, headers=cluster.server.headers, timeout=60) as client:
        yield client
