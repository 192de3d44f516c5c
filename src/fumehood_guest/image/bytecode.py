"""Compiles what an image's own Python imports at each start of a sandbox: our code, our packages, and its own modules.

Runs in a build jail, as a program of the image: in the image's Python, of which nothing is trusted. It writes a line
for each file to standard output; the host checks the paths, stores the bytes, and never loads them
(`fumehood.templates.images.bytecode`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from base64 import b64encode
from contextlib import suppress
from marshal import dumps
from typing import Iterator, Sequence

# Of PEP 552: the hash of the source is in the file and compared with the source when it is loaded.
_CHECKED_HASH = 3
_BY_TIME = 0
_HALF = 0xFFFFFFFF
MARK = "fumehood-bytecode"


def main(hashed: Sequence[str]) -> None:
    """Imports what zygote, jail init and contexts import, and writes the bytecode of all that.

    Args:
        hashed: The folders of our code and packages, whose files get another time with each copy. Of the first one all
            modules are compiled, since contexts import some of them late.
    """
    _import_all()

    for path in sorted({*_imported(), *_modules_below(hashed[0])}):
        with suppress(OSError, SyntaxError, ValueError):
            data = _bytecode(path, is_hashed=path.startswith(tuple(f"{folder}/" for folder in hashed)))
            name = importlib.util.cache_from_source(path, optimization="")
            sys.stdout.write(f"\n{MARK} {name} {b64encode(data).decode()}\n")

    sys.stdout.flush()


def _import_all() -> None:
    # IPython as a whole, and not as the zygote imports it: contexts import the rest of it late.
    from fumehood_guest.shared.preloads import Preloading
    from fumehood_guest.template import jail_init, zygote  # noqa: F401 - imported for what they import

    # A module of the image that cannot be imported has its message at the trial of the template.
    with suppress(Exception):
        from fumehood_guest.context.rehearsal import prepare_shell

        prepare_shell(Preloading([], lambda _: None))


def _imported() -> Iterator[str]:
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)

        if isinstance(origin, str) and origin.startswith("/") and origin.endswith(".py"):
            yield origin


def _modules_below(folder: str) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".py"):
                yield f"{root}/{name}"


def _bytecode(path: str, *, is_hashed: bool) -> bytes:
    with open(path, "rb") as file:
        source = file.read()
        info = os.fstat(file.fileno())

    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    numbers = (int(info.st_mtime) & _HALF, info.st_size & _HALF)
    kind = _CHECKED_HASH if is_hashed else _BY_TIME
    head = importlib.util.source_hash(source) if is_hashed else b"".join(
        number.to_bytes(4, "little") for number in numbers
    )  # fmt: skip
    return importlib.util.MAGIC_NUMBER + kind.to_bytes(4, "little") + head + dumps(code)
