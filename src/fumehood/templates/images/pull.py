"""Pulls an image: reads its description, and unpacks the layers that are not in the store yet.

Runs in the host process. Stored bytes are hashed here while they stream to the jailed unpacker, and the digest of the
unpacked archive, which the unpacker reports, must be the one that the image's configuration names. A layer that fails
leaves nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any

from fumehood.errors import ImageDamagedError, ImageError, TemplateStoreError
from fumehood.templates.images.credentials import RegistryLogins
from fumehood.templates.images.description import ImageDescription, ImageSource, LayerBlob, describe
from fumehood.templates.images.jailed import Jailed, compiled_policy, image_ids, jailed
from fumehood.templates.images.layers import LayerInfo, LayerStore, layer_key
from fumehood.templates.images.on_disk import ArchiveSource, LayoutSource
from fumehood.templates.images.reference import Reference
from fumehood.templates.images.registry import RegistrySource
from fumehood_guest.image.unpack import ZSTD_MODULES
from fumehood_jail import users

Say = Callable[[str], None]
_CHUNK_BYTES = 1 << 20
_MEMORY_BYTES = 1 << 30
_NEEDS_ZSTD = "its layers are compressed by zstd: Python 3.14 reads that, or pip install 'fumehood[images]'"
# How many digits of a digest are shown.
_SHOWN = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackBounds:
    """The bounds on the content of an image.

    Attributes:
        max_bytes: The largest size of all its layers together, unpacked.
        max_entries: Files, folders and links of all its layers.
        max_growth: The largest ratio of a layer's unpacked size to its stored size; gzip reaches a thousand for uniform
            content.
        free_growth_bytes: Bytes that are added to that bound for every layer.
    """

    max_bytes: int = 32 << 30
    max_entries: int = 600_000
    max_growth: int = 50
    free_growth_bytes: int = 256 << 20


@contextmanager
def open_source(reference: Reference, logins: RegistryLogins) -> Iterator[ImageSource]:
    """Opens the registry, folder or archive that a reference names."""
    if reference.kind == "docker-archive":
        with closing(ArchiveSource(reference)) as archive:
            yield archive
    elif reference.kind == "oci":
        yield LayoutSource(reference)
    else:
        yield RegistrySource(reference, logins.find(reference.place))


def pull(
    reference: Reference,
    store: LayerStore,
    logins: RegistryLogins,
    *,
    say: Say,
    bounds: UnpackBounds | None = None,
) -> ImageDescription:
    """Stores all layers of an image and returns its description; the caller keeps the store in use.

    Raises:
        ImageError: The image cannot be read, does not match its digests, or is refused.
        TemplateStoreError: This machine cannot hold images.
    """
    bounds = bounds or UnpackBounds()
    ids = image_ids(reference.text)

    with open_source(reference, logins) as source:
        return _pull_from(source, reference, store, ids, bounds, say)


def _pull_from(
    source: ImageSource,
    reference: Reference,
    store: LayerStore,
    ids: users.IdPlan,
    bounds: UnpackBounds,
    say: Say,
) -> ImageDescription:
    image = describe(source, reference)
    count = len(image.layers)

    for number, layer in enumerate(image.layers, 1):
        key = layer_key("sha256", layer.diff_id)
        info = store.info(key)

        if info is None:
            started = time.monotonic()
            info = _fetch(source, reference, layer, store, ids, bounds)
            say(_line(number, count, layer, info, time.monotonic() - started))
        else:
            say(f"layer {number}/{count} {layer.diff_id[:_SHOWN]}: is here")

        bounds = replace(
            bounds,
            max_bytes=max(bounds.max_bytes - info.size_bytes, 0),
            max_entries=max(bounds.max_entries - info.entries, 0),
        )

    return image


def _line(number: int, count: int, layer: LayerBlob, info: LayerInfo, seconds: float) -> str:
    dropped = [
        f"{many} {what} dropped"
        for many, what in ((info.set_id, "set-id bits"), (info.devices, "device nodes"))
        if many
    ]
    size = f"{info.size_bytes / 1e6:.1f} MB in {info.entries} entries"
    return ", ".join([f"layer {number}/{count} {layer.diff_id[:_SHOWN]}: {size}, {seconds:.1f} s", *dropped])


def _fetch(
    source: ImageSource,
    reference: Reference,
    layer: LayerBlob,
    store: LayerStore,
    ids: users.IdPlan,
    bounds: UnpackBounds,
) -> LayerInfo:
    with store.making(ids.uid_map[0][1]) as made:
        plan = {
            "task": "unpack",
            "ids": ids.to_dict(),
            "folder": made.content,
            "seccomp": compiled_policy("image"),
            "rlimits": {
                "as": _MEMORY_BYTES,
                "core": 1,
                "fsize": _most_bytes(layer, bounds),
                "nofile": 1024,
                "nproc": 64,
            },
            "order": {
                "packages": _zstd_packages(),
                "compression": layer.compression,
                "max_bytes": _most_bytes(layer, bounds),
                "max_entries": bounds.max_entries,
                "owners": ids.kind == "image",
            },
        }

        with jailed(plan) as process:
            digest, size_bytes = _stream(source, reference, layer, process)
            answer = process.answer()

        _check(reference, layer, answer, digest, size_bytes)
        info = _info(reference, layer, answer)
        made.keep(layer_key("sha256", layer.diff_id), info)

    return info


def _most_bytes(layer: LayerBlob, bounds: UnpackBounds) -> int:
    if layer.compression == "none" or not layer.size_bytes:
        return bounds.max_bytes

    return min(bounds.max_bytes, layer.size_bytes * bounds.max_growth + bounds.free_growth_bytes)


def _stream(source: ImageSource, reference: Reference, layer: LayerBlob, process: Jailed) -> tuple[str, int]:
    """Feeds a layer to the unpacker; returns digest and size of what was read."""
    digest = hashlib.sha256()
    size_bytes = 0
    try:
        with source.open_blob(layer.digest) as blob:
            while chunk := blob.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)

                if layer.size_bytes and size_bytes > layer.size_bytes:
                    raise ImageDamagedError(
                        image=reference.text,
                        reason=f"layer {layer.digest} is longer than the {layer.size_bytes} bytes that are named",
                    )

                if not process.feed(chunk):
                    break
    except ImageError:
        raise
    except (OSError, HTTPException) as error:
        raise ImageDamagedError(
            image=reference.text, reason=f"layer {layer.digest} broke off after {size_bytes} bytes: {error}"
        ) from None

    return f"sha256:{digest.hexdigest()}", size_bytes


def _zstd_packages() -> str | None:
    """Returns the folder of the module for zstd; None if there is none."""
    for name in ZSTD_MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue

        if found is not None and found.origin is not None:
            return os.path.dirname(os.path.dirname(os.path.dirname(found.origin)))

    return None


def _check(
    reference: Reference, layer: LayerBlob, answer: Mapping[str, Any], digest: str, size_bytes: int
) -> None:
    """Checks the digests of the stored and the unpacked layer; a wrong one is reported before other faults."""
    if "failed" in answer:
        raise TemplateStoreError(
            template=reference.text,
            operation="build",
            reason=f"the unpacker could not be started: {answer['failed']}: {answer.get('detail')}",
            hint="`fumehood doctor` says what this machine lacks",
        )

    is_stopped = answer.get("refused") in ("hostile", "bounds")

    if not is_stopped and layer.size_bytes and size_bytes < layer.size_bytes:
        raise ImageDamagedError(
            image=reference.text,
            reason=f"layer {layer.digest} ends after {size_bytes} of {layer.size_bytes} bytes",
            hint="fetch or push it anew",
        )

    if not is_stopped and digest != layer.digest:
        raise ImageDamagedError(
            image=reference.text,
            reason=f"layer {layer.digest} has the digest {digest}",
            hint="fetch or push it anew",
        )

    if "refused" in answer:
        kind = ImageDamagedError if answer["refused"] == "damaged" else ImageError
        raise kind(
            image=reference.text,
            reason=f"layer {layer.digest[:_SHOWN]} is refused: {answer.get('detail')}",
            hint=_NEEDS_ZSTD if layer.compression == "zstd" and _zstd_packages() is None else "",
        )

    if answer.get("diff_id") != layer.diff_id:
        raise ImageDamagedError(
            image=reference.text,
            reason=f"layer {layer.digest} holds {str(answer.get('diff_id'))[:80]}, "
            f"its configuration says {layer.diff_id}",
        )


def _info(reference: Reference, layer: LayerBlob, answer: Mapping[str, Any]) -> LayerInfo:
    dropped = answer.get("dropped")
    counts = dropped if isinstance(dropped, dict) else {}
    numbers = (
        answer.get("size_bytes"),
        answer.get("entries"),
        counts.get("set_id", 0),
        counts.get("devices", 0),
    )

    if not all(isinstance(one, int) and one >= 0 for one in numbers):
        raise ImageError(
            image=reference.text, reason=f"the unpacker of layer {layer.digest} gave an invalid answer"
        )

    size_bytes, entries, set_id, devices = (int(one) for one in numbers if one is not None)
    return LayerInfo(
        made_by=layer.diff_id, size_bytes=size_bytes, entries=entries, set_id=set_id, devices=devices
    )
