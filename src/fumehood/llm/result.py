"""The result of one call of the tool: the text for a model, its pictures and its files.

Plain values of the user's process. The text is made for a model and bounded; the complete `Execution` is there beside
it. Texts, names and bytes come from a guest: they are data for the model, never a path of the host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fumehood import Execution

FileChangeWord = Literal["new", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolImage:
    """A picture for the model.

    Attributes:
        name: A name of our own, such as `image-1.png`.
        mime: image/png or image/jpeg; the bytes begin as such a file does.
        data: The bytes of the file.
    """

    name: str
    mime: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFile:
    """A file that is new, or was changed, since the last call.

    Attributes:
        name: Last part of the path.
        path: Absolute path inside the sandbox.
        size_bytes: Its size.
        mime: The media type by its name; `application/octet-stream` if the name shows none.
        change: new or changed.
        url: The address at which a user gets it, if it was published.
        data: Its content, in an answer of `ask`, whose sandbox has ended; None while the sandbox lives, and for
            a file too large to be kept.
    """

    name: str
    path: str
    size_bytes: int
    mime: str
    change: FileChangeWord = "new"
    url: str | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of one call of the tool.

    Attributes:
        text: The text for the model: output, values, the error with a hint, files; within `max_text_chars`.
        images: The pictures, in order, within the bounds.
        files: Files that are new or changed, at most as many as are listed in the text.
        is_error: Whether the code failed, or was not run.
        execution: The complete execution; None when nothing was run.
        blocked_by: Why the scan refused the code; empty if it did not.
        state_lost: Whether the variables of earlier calls are gone.
        undone: Whether all effects of the call were undone, because it failed and was a transaction.
    """

    text: str
    images: tuple[ToolImage, ...] = ()
    files: tuple[ToolFile, ...] = ()
    is_error: bool = False
    execution: Execution | None = None
    blocked_by: str = ""
    state_lost: bool = False
    undone: bool = False

    def __str__(self) -> str:
        return self.text
