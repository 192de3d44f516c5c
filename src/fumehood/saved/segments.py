"""Splits the concatenated bytes of pickled variables, and computes the digest of each.

Pure functions. The lengths come from the guest; the bytes are never parsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from fumehood.saved.guest_answers import FoundVariable, GuestStepError
from fumehood.values.saved_state import SavedVariable


class Segments:
    """The digests of variables that come one behind the other."""

    def __init__(self, found: Sequence[FoundVariable]) -> None:
        self.variables: list[SavedVariable] = []
        self.left_bytes = 0
        self._waiting: Iterator[FoundVariable] = iter(found)
        self._current: FoundVariable | None = None
        self._digest = hashlib.sha256()
        self._next()

    def update(self, data: bytes) -> None:
        """Takes the next bytes."""
        view = memoryview(data)

        while view and self._current is not None:
            taken = view[: self.left_bytes]
            self._digest.update(taken)
            self.left_bytes -= len(taken)
            view = view[len(taken) :]

            if not self.left_bytes:
                self._end()

    def _end(self) -> None:
        found = self._current
        assert found is not None
        digest = self._digest.hexdigest()
        self.variables.append(
            SavedVariable(name=found.name, type=found.type[:200], size_bytes=found.size_bytes, sha256=digest)
        )
        self._next()

    def _next(self) -> None:
        self._current = next(self._waiting, None)
        self._digest = hashlib.sha256()
        self.left_bytes = 0 if self._current is None else self._current.size_bytes

        if self._current is not None and self.left_bytes <= 0:
            raise GuestStepError("it says that a variable takes no bytes")
