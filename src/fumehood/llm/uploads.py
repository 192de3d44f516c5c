"""Files of the caller, uploaded to the sandbox before a turn, and listed in the prompt.

The paths are the caller's own; nothing of a guest is used as one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from os import PathLike

from fumehood import InvalidArgumentError
from fumehood.llm.events import FileUploaded
from fumehood.llm.interpreter import AsyncCodeInterpreter
from fumehood.llm.readable_text import in_bytes
from fumehood.text import visible_line


def check_uploads(files: Iterable[str | PathLike[str]]) -> dict[str, str]:
    """Return the paths of files by the names that they will have.

    Raises:
        InvalidArgumentError: One is no file, or two have the same name.
    """
    if isinstance(files, str | PathLike):
        files = [files]

    uploads: dict[str, str] = {}

    for given in files:
        path = os.fspath(given)
        name = os.path.basename(path)

        if not os.path.isfile(path):
            raise InvalidArgumentError(field="files", value=path, allowed="paths of files that are there")

        if name in uploads:
            raise InvalidArgumentError(field="files", value=path, allowed="files of different names")

        uploads[name] = path

    return uploads


async def upload(interpreter: AsyncCodeInterpreter, uploads: dict[str, str]) -> list[FileUploaded]:
    """Write the files into the sandbox and return their paths."""
    uploaded: list[FileUploaded] = []

    for name, path in uploads.items():
        with open(path, "rb") as file:
            where = await interpreter.upload(name, file)
            uploaded.append(FileUploaded(path=where, size_bytes=file.tell()))

    return uploaded


def describe_uploads(prompt: str, files: Sequence[FileUploaded]) -> str:
    """Return the prompt with a line for each file."""
    lines = [
        f"- {visible_line(file.path, max_characters=300)} ({in_bytes(file.size_bytes)})" for file in files
    ]
    return "\n".join([prompt, "", "Uploaded files:", *lines])
