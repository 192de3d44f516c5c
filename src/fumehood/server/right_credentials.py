"""Digests of credentials that were valid when last checked: a bounded table, fair to each holder.

The holder of one valid credential can make many: by opening a share repeatedly, by other spellings of a token, or by
adding other data to it. When the table is full, the holder with the most entries loses its oldest, so that no holder
can displace the entries of others. It never holds a credential, and admits no caller.
"""

from __future__ import annotations

from collections import OrderedDict

MAX_CREDENTIALS = 10_000


class RightCredentials:
    """The credentials of all holders.

    Args:
        maximum: How many credentials are remembered.
    """

    def __init__(self, maximum: int = MAX_CREDENTIALS) -> None:
        self._maximum = maximum
        self._holders: dict[bytes, str] = {}
        # Those of each holder, the latest last.
        self._held: dict[str, OrderedDict[bytes, None]] = {}

    def __contains__(self, digest: bytes | None) -> bool:
        """Returns whether a credential is among the valid ones."""
        return digest in self._holders

    def add(self, digest: bytes, holder: str) -> None:
        """Remembers that a credential was valid.

        Args:
            digest: The digest of the credential.
            holder: The owner of the credential; credentials that one party can make at will have one owner.
        """
        self.discard(digest)
        self._holders[digest] = holder
        self._held.setdefault(holder, OrderedDict())[digest] = None

        if len(self._holders) > self._maximum:
            largest = max(self._held.values(), key=len)
            self.discard(next(iter(largest)))

    def discard(self, digest: bytes) -> None:
        """Forgets a credential."""
        holder = self._holders.pop(digest, None)

        if holder is None:
            return

        held = self._held[holder]
        del held[digest]

        if not held:
            del self._held[holder]
