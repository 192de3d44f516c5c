"""The bytecode of our guest code, beside its sources in the base jail, so that no template compiles them at its start.

Runs on the host, and takes the bytecode that Python keeps beside the sources of this installation; a source without
bytecode is compiled in the jail. It reads no data from a jail. The files are written before the template's interpreter
starts, into the same read-only root as the sources: a process that could change one could change the other. No path of
the host is in them.
"""

from __future__ import annotations

import importlib.util
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.machinery import SourceFileLoader
from marshal import dumps
from pathlib import Path
from typing import Any, NoReturn

# Of PEP 552: named by a hash of the source, which is not looked at. The sources have no time in the jail.
_UNCHECKED_HASH = 1
_NO_HASH = bytes(8)


class _NotCachedError(Exception):
    """Python has no usable cached bytecode of a source."""


class _CacheReader(SourceFileLoader):
    """Loads the cached code of a source if it matches that source and this Python; never compiles.

    Args:
        path: The source.
        place: The path of the source in the guest, which the code object names.
    """

    def __init__(self, path: Path, place: str) -> None:
        super().__init__(path.stem, place)
        self._source = str(path)

    def path_stats(self, _: object) -> Mapping[str, Any]:
        return super().path_stats(self._source)

    def get_data(self, path: str) -> bytes:
        is_source = path == self.path
        return super().get_data(self._source if is_source else importlib.util.cache_from_source(self._source))

    def source_to_code(self, *_: object, **__: object) -> NoReturn:  # type: ignore[override]
        raise _NotCachedError


def guest_bytecode(
    code: Iterable[tuple[str, Path]], folder: str, version: tuple[int, int, int]
) -> dict[str, str]:
    """Returns the bytecode files of guest code: their paths in the jail, and their content in base64.

    An interpreter with another bytecode format ignores the files and compiles the sources.

    Args:
        code: Each file below `folder`, and its path on the host; other files than Python sources are left out.
        folder: The folder of the files in the guest.
        version: The Python version of the guest's interpreter; if it differs from this interpreter's, no file is
            returned.
    """
    tag = sys.implementation.cache_tag

    # Optimised code has no assertions, and the jail's interpreter is not optimised.
    if tag is None or version[:2] != sys.version_info[:2] or sys.flags.optimize:
        return {}

    found = {}

    for name, path in code:
        if path.suffix == ".py":
            place = Path(folder, name)

            with suppress(_NotCachedError):
                found[f"{place.parent}/__pycache__/{place.stem}.{tag}.pyc"] = _bytecode(path, str(place))

    return found


@cache
def _bytecode(path: Path, place: str) -> str:
    """Returns the content of one file; cached, because a server starts many templates.

    Raises:
        _NotCachedError: Python keeps no bytecode of this source.
    """
    code = _CacheReader(path, place).get_code(path.stem)

    if code is None:
        raise _NotCachedError

    head = importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH.to_bytes(4, "little") + _NO_HASH
    return b64encode(head + dumps(code)).decode()
