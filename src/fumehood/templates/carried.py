"""Copies a built template from the store of one machine to the store of another, as one stream.

Runs in host daemons, in worker threads. The paths in a build are absolute, so both stores must lie in the same folder.
A stream is a tar: the record first, then the build. It comes from another daemon of the same cluster; no code of it
is run here, and nothing is written outside the new build.
"""

from __future__ import annotations

import json
import os
import tarfile
from io import BytesIO
from typing import IO, Any

from fumehood.errors import TemplateStoreError
from fumehood.templates.recipe import is_store_name
from fumehood.templates.store import TemplateStore, fields_of, read_record

_RECORD = "record.json"
_END = "end-of-template"
_MAX_RECORD_BYTES = 1 << 20


def pack(store: TemplateStore, name: str, out: IO[bytes]) -> None:
    """Writes a template to a stream.

    Raises:
        TemplateStoreError: No template has this name, it is damaged, or its root is a container image's.
    """
    record = store.record(name)

    if record is None:
        raise _refused(name, "there is none of this name")

    if record.image is not None:
        raise _refused(name, "its root is that of a container image, which is made on each machine")

    with store.held_build(name) as folder, tarfile.open(fileobj=out, mode="w|") as tar:
        head = json.dumps({"store": store.folder, "record": fields_of(record)}).encode()
        entry = tarfile.TarInfo(_RECORD)
        entry.size = len(head)
        tar.addfile(entry, BytesIO(head))

        for child in sorted(os.listdir(folder)):
            if child != store.LOCK:
                tar.add(os.path.join(folder, child), arcname=child)

        # The end is marked, because a stream that was cut off between two files looks complete.
        tar.addfile(tarfile.TarInfo(_END))


def unpack(store: TemplateStore, name: str, source: IO[bytes]) -> bool:
    """Makes a template from a stream; returns False if this store has the same one already, or one that is newer.

    Raises:
        TemplateStoreError: The stream was not written by `pack`, was cut off, comes from a store in another folder, or
            its template cannot be used on this machine. The store is unchanged then.
    """
    if not is_store_name(name):
        raise _refused(name, "this is no name of a template")

    try:
        with tarfile.open(fileobj=source, mode="r|") as tar:
            head = _head_of(tar)
            record = read_record(name, head["record"], "")

            if head["store"] != store.folder:
                raise _refused(
                    name,
                    f"it was built in {head['store']!r}, and the templates of this machine lie elsewhere",
                )

            known = store.record(name)

            if known is not None and (
                known.build == record.build or known.info.built_at > record.info.built_at
            ):
                return False

            with store.building(name, lambda _: None), store.new_build(name, record.build) as build:
                _extract(tar, build.folder)

                if not os.access(os.path.join(build.folder, record.interpreter), os.X_OK):
                    raise _refused(name, "its Python is not there on this machine")

                store.publish(record)
    except (tarfile.TarError, KeyError, TypeError, ValueError, AttributeError, EOFError) as error:
        raise _refused(name, f"what was sent is damaged: {error}") from None
    except OSError as error:
        raise _refused(name, f"it cannot be written: {error}") from None

    return True


def _head_of(tar: tarfile.TarFile) -> dict[str, Any]:
    entry = tar.next()

    if entry is None or entry.name != _RECORD or not 0 < entry.size <= _MAX_RECORD_BYTES:
        raise ValueError("it begins with no record")

    file = tar.extractfile(entry)
    assert file is not None
    head: dict[str, Any] = json.loads(file.read())
    return head


def _extract(tar: tarfile.TarFile, folder: str) -> None:
    """Writes the entries that follow the record into a folder."""
    while (entry := tar.next()) is not None:
        if entry.name == _END:
            return

        tar.extract(entry, folder, filter="tar")

    raise ValueError("it was cut off")


def _refused(name: str, reason: str) -> TemplateStoreError:
    return TemplateStoreError(
        template=name, operation="carry", reason=reason, hint="build it on that machine as well"
    )
