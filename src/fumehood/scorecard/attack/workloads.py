"""Ordinary work that must succeed: the controls without which a sandbox that runs nothing would score best.

A part of the program `attack`, which runs in a sandbox, in every kind of process, and outside. Each one returns "ok" or
the error; a package that is not installed is `absent`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from typing import Any


def workloads(is_whole: bool) -> dict[str, str]:
    """Run each workload, or only the quick ones."""
    return {name: _attempt(work) for name, work in WORK.items() if is_whole or work not in SLOW}


def _attempt(work: Any) -> str:
    try:
        work()
    except ModuleNotFoundError as missing:
        return f"absent: {missing.name}"
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is asked for
        return f"{type(error).__name__}: {error}"[:300]

    return "ok"


def _numpy_threads() -> None:
    import threading

    import numpy

    products: list[Any] = []
    matrix = numpy.ones((200, 200))
    threads = [threading.Thread(target=lambda: products.append(matrix @ matrix)) for _ in range(4)]

    for thread in threads:
        thread.start()

    for thread in threads:
        thread.join()

    _expect([product[0, 0] for product in products], [200.0] * 4)


def _pool() -> None:
    from multiprocessing import get_context

    with get_context("fork").Pool(2) as pool:
        _expect(pool.map(abs, [-1, -2, -3]), [1, 2, 3])


def _shared_memory() -> None:
    from multiprocessing.shared_memory import SharedMemory

    made = SharedMemory(create=True, size=4096)
    try:
        written: Any = made.buf
        written[:4] = b"here"
        other = SharedMemory(name=made.name)
        read: Any = other.buf
        content = bytes(read[:4])
        other.close()
        _expect(content, b"here")
    finally:
        made.close()
        made.unlink()


def _subprocess() -> None:
    done = subprocess.run(
        ["sh", "-c", "tr a-z A-Z"], input=b"x" * 1_000_000, stdout=subprocess.PIPE, check=True
    )
    _expect(done.stdout, b"X" * 1_000_000)


def _asyncio() -> None:
    async def work() -> int:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        read = await reader.read()
        writer.close()
        server.close()
        return len(read)

    import threading

    # Where a loop runs already, as in a cell, another thread has none.
    counted: list[int] = []
    thread = threading.Thread(target=lambda: counted.append(asyncio.run(work())))
    thread.start()
    thread.join()
    _expect(counted, [0])


def _sqlite() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = sqlite3.connect(os.path.join(folder, "base"))
        base.execute("PRAGMA journal_mode=WAL")
        base.execute("CREATE TABLE t (x)")
        base.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
        base.commit()
        found = base.execute("SELECT sum(x) FROM t").fetchall()
        base.close()

    _expect(found, [(3,)])


def _matplotlib() -> None:
    import io

    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 2, 3])
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    _expect(drawn.getvalue()[:8], b"\x89PNG\r\n\x1a\n")


def _pip() -> None:
    import pip

    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/made")
        wheel = f"{folder}/tiny-1.0-py3-none-any.whl"
        _write_wheel(wheel)
        words = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--disable-pip-version-check",
            "--no-user",
        ]
        subprocess.run(
            [sys.executable, *words, "--target", f"{folder}/made", wheel], check=True, capture_output=True
        )
        _expect(os.path.exists(f"{folder}/made/tiny.py"), pip.__version__ != "")


def _write_wheel(path: str) -> None:
    import zipfile

    about = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "here = 1\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(
            f"{about}/RECORD", f"tiny.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )


def _names() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "grüße-日本.txt")

        with open(path, "w", encoding="utf-8") as file:
            file.write("ß")

        _expect(os.listdir(folder), ["grüße-日本.txt"])


def _expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r:.100} instead of {wanted!r:.100}")


WORK = {
    "numpy in threads": _numpy_threads,
    "multiprocessing Pool": _pool,
    "multiprocessing SharedMemory": _shared_memory,
    "subprocess, 1 MB through its pipes": _subprocess,
    "asyncio": _asyncio,
    "sqlite with WAL": _sqlite,
    "matplotlib PNG": _matplotlib,
    "pip installs a wheel": _pip,
    "names in UTF-8": _names,
}
SLOW = (_matplotlib, _pip)
