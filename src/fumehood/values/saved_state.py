"""The manifest of a saved state, and the reports of saving and loading.

Used by all host code and by callers. Frozen, and made of numbers, text and one another only. Names and reasons come
from a guest: show them through `fumehood.text.visible`, never use one as a path of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LeftOutKind = Literal["variable", "file", "context", "environment", "moment"]
SavedFileType = Literal["file", "dir", "symlink", "hardlink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that could not be kept, or could not be restored.

    Attributes:
        kind: Its kind; `moment` means that not all files are of the moment at which the variables were pickled.
        name: The name of a variable, a path, or the id of a context.
        reason: Why it was left out.
        context_id: The context of a variable.
    """

    kind: LeftOutKind
    name: str
    reason: str
    context_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPart:
    """One part of the file of a saved state.

    Attributes:
        name: Its name in the file.
        size_bytes: Its size.
        sha256: The digest of its bytes, in hexadecimal digits.
    """

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedVariable:
    """A variable that was kept.

    Attributes:
        name: Its name.
        type: The name of its class.
        size_bytes: Its size in the saved state; objects shared with an earlier variable are counted there.
        sha256: The digest of these bytes.
    """

    name: str
    type: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedImport:
    """A variable that is a module: it is imported again.

    Attributes:
        name: The name of the variable.
        module: The name of the module.
    """

    name: str
    module: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedContext:
    """A context that was kept.

    Attributes:
        id: Its id in the saved sandbox; all contexts but `default` get another id when they are loaded.
        language: Its name, such as `python`, `bash` or `javascript`; never an alias.
        cwd: Its working directory.
        environment: The environment variables of its process.
        execution_count: The number of the next cell.
        variables: Its variables, in the order of their bytes.
        imports: The modules among them.
        pickle: The part with the variables, or None.
        pickled_by: The library that pickled them.
        record: The part with its record.
    """

    id: str
    language: str
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict)
    execution_count: int = 1
    variables: tuple[SavedVariable, ...] = ()
    imports: tuple[SavedImport, ...] = ()
    pickle: SavedPart | None = None
    pickled_by: str = ""
    record: SavedPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A file that was kept.

    Attributes:
        path: Its path in the sandbox.
        type: file, dir, symlink, or hardlink: another name of a file that comes earlier in the list.
        mode: Its permission bits.
        modified_ns: When it was last changed, in nanoseconds.
        content: The part with the content, for a file.
        target: The target of a link.
    """

    path: str
    type: SavedFileType
    mode: int
    modified_ns: int
    content: SavedPart | None = None
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The manifest of a saved state.

    Attributes:
        format: The kind of file.
        version: The version of that format.
        fumehood: The version of fumehood that wrote it.
        python: The version of the interpreter inside.
        template: The name of the sandbox's template.
        sandbox_id: The sandbox.
        saved_at: When it was written, in ISO 8601.
        envs: The environment that the sandbox was made with.
        contexts: Its contexts, the default one first.
        files: Its files, each directory before its content.
        left_out: The items that could not be kept.
        memory: The part with an image of the sandbox's whole memory, for a runtime that can make one; None at present.
    """

    format: str
    version: int
    fumehood: str
    python: str
    template: str
    sandbox_id: str
    saved_at: str
    envs: Mapping[str, str] = field(default_factory=dict)
    contexts: tuple[SavedContext, ...] = ()
    files: tuple[SavedFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    memory: SavedPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveReport:
    """The report of saving.

    Attributes:
        location: The file or URL.
        size_bytes: The size of the saved state.
        variables: The names of the variables and modules that were kept, by context.
        left_out: The items that were not kept, with the reasons.
        files: How many files were kept, directories and links not counted.
        files_bytes: Their total size.
        manifest: The manifest.
    """

    location: str
    size_bytes: int
    variables: Mapping[str, tuple[str, ...]]
    left_out: tuple[LeftOut, ...]
    files: int
    files_bytes: int
    manifest: Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The report of loading.

    Attributes:
        contexts: The ids of the contexts in the saved state, each with its id now.
        missing: Parts of the saved state that could not be restored here, and why.
        left_out: Parts that were not in the saved state.
        template: The template that it was saved with.
        python: The version of the interpreter that it was saved with.
        sandbox_id: The sandbox that it was saved from.
    """

    contexts: Mapping[str, str]
    missing: tuple[LeftOut, ...]
    left_out: tuple[LeftOut, ...]
    template: str
    python: str
    sandbox_id: str
