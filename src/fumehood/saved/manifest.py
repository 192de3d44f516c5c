"""Parses and checks the manifest of a saved state, which is untrusted.

A manifest that passes here names only parts that are there, paths in the writable places of a sandbox, and sizes within
bounds; the content of a part is checked by its digest.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator

from fumehood.bounds import GIB
from fumehood.errors import InvalidArgumentError, LoadError, SavedStateDamagedError, SavedStateVersionError
from fumehood.saved.archive import MANIFEST, PART_NAME
from fumehood.saved.json_in_pieces import parse_in_pieces
from fumehood.saved.records import MAX_RECORD_BYTES
from fumehood.values.checks import check_envs, check_language, check_path, check_text
from fumehood.values.codec import DataError, read_value
from fumehood.values.guest_paths import DATA_PATH, HOME_PATH
from fumehood.values.plain_data import as_data
from fumehood.values.saved_state import Manifest, SavedContext, SavedFile, SavedPart

FORMAT = "fumehood-state"
VERSION = 1
WRITABLE = (HOME_PATH, DATA_PATH, "/dev/shm", "/tmp", "/var/tmp")  # noqa: S108 - of a sandbox
MAX_FILES = 100_000
MAX_CONTEXTS = 64
MAX_STATE_BYTES = 16 * GIB
# The bound of all contexts together.
_MAX_VARIABLES = 100_000
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MODES = 0o7777
_MAX_NS = 2**62


def manifest_bytes(manifest: Manifest) -> bytes:
    """Returns a manifest as it is written."""
    return json.dumps(as_data(manifest), indent=1).encode("ascii")


def read_manifest(content: bytes, names: frozenset[str]) -> Manifest:
    """Returns the manifest in these bytes.

    Args:
        content: The bytes.
        names: The names of the parts in the file.

    Raises:
        SavedStateDamagedError: The bytes are not a valid manifest.
        SavedStateVersionError: The state has another version.
        LoadError: The state is of a kind that cannot be loaded here.
    """
    try:
        data = parse_in_pieces(content)
    except ValueError as error:
        raise SavedStateDamagedError(part=MANIFEST, reason=f"it is no JSON of ours ({error})") from None

    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise SavedStateDamagedError(part=MANIFEST, reason=f"its format is not {FORMAT}")

    version = data.get("version")

    if type(version) is not int or version != VERSION:
        raise SavedStateVersionError(found=f"the version {version!r}", known=f"version {VERSION}")

    if data.get("memory") is not None:
        raise LoadError(
            reason="it holds the image of a whole memory, and no runtime here can make a sandbox of one",
            hint="load it where it was saved",
        )

    try:
        _check_lengths(data)
        manifest = read_value(Manifest, data)
        _check(manifest, names)
    except (DataError, InvalidArgumentError, RecursionError) as error:
        raise SavedStateDamagedError(part=MANIFEST, reason=str(error)) from None

    return manifest


def _check_lengths(data: dict[str, object]) -> None:
    """Raises if a list is too long, before its values are made."""
    _expect(_length(data, "files") <= MAX_FILES, "files", _length(data, "files"))
    contexts = data.get("contexts")
    found = [one for one in contexts if isinstance(one, dict)] if isinstance(contexts, list) else []
    variables = sum(_length(one, "variables") + _length(one, "imports") for one in found)
    _expect(variables <= _MAX_VARIABLES, "variables", variables)


def _length(data: dict[str, object], name: str) -> int:
    value = data.get(name)
    return len(value) if isinstance(value, list) else 0


def _check(manifest: Manifest, names: frozenset[str]) -> None:
    check_envs(manifest.envs)
    check_text("template", manifest.template, max_bytes=255)
    _expect(0 < len(manifest.contexts) <= MAX_CONTEXTS, "contexts", len(manifest.contexts))
    _expect(manifest.contexts[0].language == "python", "contexts", manifest.contexts[0].language)
    _expect(len({one.id for one in manifest.contexts}) == len(manifest.contexts), "contexts", "a name twice")

    for context in manifest.contexts:
        _check_context(context)

    _check_files(manifest.files)
    parts = [*_parts(manifest)]
    used = {part.name for part in parts}
    _expect(len(used) == len(parts), "parts", "one twice")
    _expect(sum(part.size_bytes for part in parts) <= MAX_STATE_BYTES, "parts", "too large")
    records = [context.record for context in manifest.contexts if context.record is not None]
    _expect(sum(part.size_bytes for part in records) <= MAX_RECORD_BYTES, "records", "too large")

    for part in parts:
        _expect(bool(PART_NAME.fullmatch(part.name)), "part", part.name)
        _expect(bool(_DIGEST.fullmatch(part.sha256)), "sha256", part.sha256)
        _expect(part.size_bytes >= 0, "size_bytes", part.size_bytes)
        _expect(part.name in names, "part that is missing", part.name)

    for name in names - used:
        _expect(False, "part without a mention", name)


def _check_context(context: SavedContext) -> None:
    check_text("context", context.id, max_bytes=255)
    check_language(context.language)
    check_path("cwd", context.cwd)
    check_envs(context.environment)
    _expect(0 <= context.execution_count <= 2**31, "execution_count", context.execution_count)
    sizes = [variable.size_bytes for variable in context.variables]
    stored = context.pickle.size_bytes if context.pickle else 0
    _expect(all(size >= 0 for size in sizes) and sum(sizes) == stored, "variables", "sizes that do not fit")


def _check_files(files: Iterable[SavedFile]) -> None:
    seen: set[str] = set()

    for file in files:
        path = file.path
        check_path("path", path)
        _expect(path == posixpath.normpath(path) and is_writable_place(path), "path", path)
        _expect(path not in seen, "path twice", path)
        _expect(0 <= file.mode <= _MODES and abs(file.modified_ns) <= _MAX_NS, "mode or time of", path)
        _expect((file.type == "file") == (file.content is not None), "content of", path)

        if file.type == "symlink":
            check_path("target", file.target)
        elif file.type == "hardlink":
            _expect(file.target in seen, "target", file.target)

        seen.add(path)


def is_writable_place(path: str) -> bool:
    """Whether a path of a sandbox lies below one of its writable places."""
    return any(path.startswith(f"{place}/") for place in WRITABLE)


def _parts(manifest: Manifest) -> Iterator[SavedPart]:
    for file in manifest.files:
        if file.content is not None:
            yield file.content

    for context in manifest.contexts:
        yield from (part for part in (context.pickle, context.record) if part is not None)


def _expect(holds: bool, what: str, value: object) -> None:
    if not holds:
        raise DataError(f"{what}: {str(value)[:200]!r} does not fit")
