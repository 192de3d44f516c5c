"""The version of envd that this server reports for sandboxes: E2B's clients use the features of that version.

Metadata on files needs a kernel whose memory filesystem keeps attributes of users (6.6).
"""

from __future__ import annotations

import os
from functools import cache

# The newest version whose features all exist here: metadata on files, entries in changes, watches of any mount.
_WITH_METADATA = "0.6.4"
# The newest one before metadata on files (0.6.2).
_WITHOUT_METADATA = "0.5.7"


@cache
def envd_version() -> str:
    """Returns the newest version whose features this kernel supports."""
    # A memfd lies in a filesystem of the same kind as the files of a sandbox.
    fd = os.memfd_create("attributes", os.MFD_CLOEXEC)

    try:
        os.setxattr(fd, "user.e2b.probe", b"x")
    except OSError:
        return _WITHOUT_METADATA
    finally:
        os.close(fd)

    return _WITH_METADATA
