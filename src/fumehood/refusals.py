"""Renames the field of a refusal to the name that the user knows: an option, a variable, a key of a file.

Used by the code that reads these; pure. The check of a value does not know where the value came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fumehood.errors import InvalidArgumentError


@contextmanager
def naming_arguments(names: Mapping[str, str]) -> Iterator[None]:
    """Rename the field of an InvalidArgumentError that the block raises to the name that the user knows.

    Args:
        names: The user's name by the name of the field; other fields keep their names.
    """
    try:
        yield
    except InvalidArgumentError as error:
        _rename(error, names.get(error.field, error.field))
        raise


def _rename(error: InvalidArgumentError, name: str) -> None:
    known = error.field
    error.field = name

    if error.message.startswith(known):
        error.message = name + error.message.removeprefix(known)
        error.args = (error.message,)

    if error.hint.startswith(f"{known} takes"):
        error.hint = name + error.hint.removeprefix(known)
