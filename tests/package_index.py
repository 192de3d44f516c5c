"""A package index on the loopback with one package, `bouquet`, for tests that install."""

from __future__ import annotations

import functools
import http.server
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def package_index(folder: Path) -> Iterator[str]:
    """Serve the index out of a folder; gives its address."""
    shelf = folder / "simple" / "bouquet"
    shelf.mkdir(parents=True)
    wheel = "bouquet-1.0-py3-none-any.whl"
    (shelf / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    about = "bouquet-1.0.dist-info"

    with zipfile.ZipFile(shelf / wheel, "w") as archive:
        archive.writestr("bouquet.py", "roses = 12")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: bouquet\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")

    serve = functools.partial(_Quiet, directory=str(folder))

    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()

        try:
            yield f"http://127.0.0.2:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()
