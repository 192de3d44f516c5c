"""Files of the host's /etc and /var/lib that belong to languages: Debian keeps parts of R, Java and GHC there.

Runs on the host, when the root of a template is planned. It names files that packages have installed and that every
user of the host may read; never one that holds settings of the site, such as R's `Renviron.site`, since people keep
tokens in those.
"""

from __future__ import annotations

import glob
import os
import stat

_PATTERNS = (
    "fpc.cfg",
    "racket/config.rktd",
    "gnucobol*/*",
    "ldc2.conf",
    "R/Makeconf",
    "R/Renviron",
    "R/ldpaths",
    "R/repositories",
    "java-*/*.properties",
    "java-*/jvm-*.cfg",
    "java-*/jfr/*.jfc",
    "java-*/security/*.policy",
    "java-*/security/blocked.certs",
    "java-*/security/java.security",
    "java-*/security/nss.cfg",
    "java-*/security/policy/*/*.policy",
    "mono/config",
    "mono/*/machine.config",
    "ssl/certs/java/cacerts",
)


# Below /var/lib: what GHC knows of its packages.
_STATE_PATTERNS = ("ghc/package.conf.d/*",)


def language_files(etc: str = "/etc", state: str = "/var/lib") -> list[str]:
    """Returns the paths of the files that exist and that every user may read."""
    found = (
        os.path.join(folder, name)
        for folder, patterns in ((etc, _PATTERNS), (state, _STATE_PATTERNS))
        for pattern in patterns
        for name in sorted(glob.glob(pattern, root_dir=folder))
    )
    return [path for path in found if _is_open(path)]


def _is_open(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False

    return stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IROTH)
