"""What is known of a saved state: the values of its manifest, and the reports of saving and loading.

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
    """Something that could not be kept, or could not be made again.

    Attributes:
        kind: What it is; moment: that files are not all of the moment at which the variables were written down.
        name: Its name: of a variable, a path, the id of a context.
        reason: Why.
        context_id: The context, of a variable.
    """

    kind: LeftOutKind
    name: str
    reason: str
    context_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPart:
    """One part of the file that a state is saved in.

    Attributes:
        name: Its name in there.
        size_bytes: How large it is.
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
        size_bytes: What it takes in the saved state; what it shares with one before it is counted there.
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
        id: Its name where it was saved; all but `default` have another one where they are loaded.
        language: python, or bash.
        cwd: Its working directory.
        environment: The environment variables of its process.
        execution_count: The number of the next cell.
        variables: Its variables, in the order of their bytes.
        imports: The modules among them.
        pickle: The part with the variables, or None.
        pickled_by: What has pickled them.
        record: The part with what ran in it.
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
        path: Where it lay in the sandbox.
        type: file, dir, symlink, or hardlink: another name of a file before it.
        mode: Its permission bits.
        modified_ns: When it was last changed, in nanoseconds.
        content: The part with what is in it, of a file.
        target: Where a link leads.
    """

    path: str
    type: SavedFileType
    mode: int
    modified_ns: int
    content: SavedPart | None = None
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in a saved state.

    Attributes:
        format: What kind of file it is.
        version: Of that kind.
        fumehood: The version of fumehood that wrote it.
        python: The version of the interpreter inside.
        template: The name of the sandbox's template.
        sandbox_id: The sandbox.
        saved_at: When it was written, in ISO 8601.
        envs: The environment that the sandbox was made with.
        contexts: Its contexts, the default one first.
        files: Its files, each directory before what is in it.
        left_out: What could not be kept.
        memory: The part with the image of its whole memory, of a runtime that can make one; None here.
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
    """What was saved.

    Attributes:
        location: Where it is.
        size_bytes: How large the saved state is.
        variables: The names of the variables and modules that were kept, by context.
        left_out: What was not, and why.
        files: How many files were kept, directories and links not counted.
        files_bytes: How large they are, all together.
        manifest: All that is known of it.
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
    """What was loaded.

    Attributes:
        contexts: The contexts of the saved state and what each is called now.
        missing: What the saved state has, and could not be made again here, and why.
        left_out: What the saved state never had.
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
