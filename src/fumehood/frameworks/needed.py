"""What an adapter says when the framework that it is for is not installed.

Runs in the user's process, while an adapter is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Name the extra that brings what the imports in the block need.

    Args:
        extra: The extra of this distribution that brings the framework.

    Raises:
        ModuleNotFoundError: Something is not installed; the message says how to install it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed\n\nhint: pip install 'fumehood[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name, path=error.path) from None
