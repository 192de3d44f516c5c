"""The error of an adapter whose framework is not installed.

Runs in the user's process, while an adapter is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Turn a failed import in the block into an error that names the extra to install.

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
