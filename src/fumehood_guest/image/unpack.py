"""The unpacker: reads one compressed layer from its standard input and unpacks it into its root folder.

Runs in an image jail (`image.jail`), without any file of the host and without a network. Decompression and the archive
format are parsed here and nowhere else. It answers with one line of JSON; the host trusts only the digest of the
content, which it compares with the digest in the image's configuration.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import lzma  # noqa: F401 - tarfile imports it late, when there are no files any more
import os
import sys
import tarfile
import zlib
from typing import Any, Dict, List

from fumehood_guest.image.tar_layer import LayerError, UnpackedLayer

# The factor by which a layer may grow when it is unpacked, plus a fixed part: real layers grow by two to ten.
_BLOCK_BYTES = 1 << 20
_ZSTD = "zstd"
_GZIP = "gzip"


class Counted(io.RawIOBase):
    """The uncompressed content: counted, bounded, and hashed."""

    def __init__(self, source: Any, max_bytes: int) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self.count = 0
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        """Returns True: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads the next part.

        Raises:
            LayerError: The content exceeds the bound.
        """
        data = self._source.read(len(buffer))
        self.count += len(data)

        if self.count > self._max_bytes:
            raise LayerError("bounds", f"it is larger than {self._max_bytes} bytes when it is unpacked")

        self.digest.update(data)
        buffer[: len(data)] = data
        return len(data)


# Part of the standard library since Python 3.14, and before of PyPI under another name.
ZSTD_MODULES = ("compression.zstd", "backports.zstd")
_zstd: List[Any] = []


def prepare(order: Dict[str, Any]) -> None:
    """Imports the modules that an order needs, before the jail hides Python's files.

    Args:
        order: `compression`, and `packages`, the folder in which the host has found the module for it, or None.
    """
    if order["compression"] != _ZSTD or order.get("packages") is None:
        return

    sys.path.append(order["packages"])

    for name in ZSTD_MODULES:
        try:
            _zstd.append(importlib.import_module(name))
        except ImportError:
            continue

        break

    sys.path.remove(order["packages"])


def unpack(order: Dict[str, Any]) -> None:
    """Carries out an order of the host and writes the answer to standard output.

    Args:
        order: `compression` (gzip, zstd or none), `max_bytes`, `max_entries`, and whether to set `owners`.
    """
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    layer = UnpackedLayer(root, order["max_entries"], order["owners"])
    try:
        content = Counted(_decompressed(order["compression"]), order["max_bytes"])
        stream = io.BufferedReader(content, _BLOCK_BYTES)

        with tarfile.open(fileobj=stream, mode="r|") as archive:
            layer.unpack(archive)

        # The archive may end before its file does.
        while stream.read(_BLOCK_BYTES):
            pass
    except LayerError as error:
        _answer(refused=error.kind, detail=error.detail[:500])
        return
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, ImportError, *_errors()) as error:
        _answer(refused="damaged", detail=f"{type(error).__name__}: {error}"[:500])
        return
    except (MemoryError, RecursionError) as error:
        _answer(refused="bounds", detail=f"reading it takes too much memory ({type(error).__name__})")
        return

    _answer(
        diff_id=f"sha256:{content.digest.hexdigest()}",
        size_bytes=content.count,
        entries=layer.entries,
        dropped=layer.dropped,
        dropped_names=layer.dropped_names,
    )


def _decompressed(compression: str) -> Any:
    source = open(0, "rb", closefd=False)  # noqa: SIM115 - it lives as long as this process

    if compression == _GZIP:
        return gzip.GzipFile(fileobj=source)

    if compression == _ZSTD:
        if not _zstd:
            raise ImportError("no module of Python reads zstd here")

        return _zstd[0].ZstdFile(source)

    return source


def _errors() -> List[Any]:
    """Returns the exceptions of decompressors that damaged content raises."""
    return [module.ZstdError for module in _zstd]


def _answer(**fields: Any) -> None:
    data = json.dumps(fields).encode("utf-8", "replace")

    while data:
        data = data[os.write(1, data) :]
