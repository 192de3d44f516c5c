"""Classifies paths: the sandbox's workspace, other paths, and those that only an attacker uses.

Pure functions over text. Nothing here touches a file: a path of hostile code is only parsed.
"""

from __future__ import annotations

import posixpath
import re

_WORKSPACE = ("/home/user", "/mnt/data", "/tmp")  # noqa: S108
_HARMLESS = frozenset({"/dev/null", "/dev/zero", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/urandom"})
_MAX_PATH_CHARACTERS = 4096

SENSITIVE_PATH = re.compile(
    r"/etc/(?:passwd|shadow|gshadow|sudoers|crontab|ssh)\b|/proc/(?:\d{1,10}|self|thread-self)/"
    r"(?:environ|mem|maps|fd|root|cwd|cmdline|ns|auxv|task|mountinfo|mounts|status|exe)\b|/proc/(?:kcore|kallsyms|sysrq-trigger|kmsg)"
    r"|/sys/(?:kernel|firmware)\b|/dev/(?:mem|kmem|port|kvm|sd[a-z]|nvme)"
    r"|\.ssh/|\bid_(?:rsa|ed25519|ecdsa)\b|\.aws/credentials|\.netrc\b|\.kube/config|\.docker/config|\.git-credentials"
    r"|docker\.sock|containerd\.sock|/run/secrets\b|/var/run/secrets\b|/root/\.(?:bash_history|config|netrc)"
)
METADATA_ADDRESS = re.compile(
    r"(?<![\d.])169\.254\.(?:169\.254|170\.(?:2|23))(?!\d)|metadata\.google\.internal|\bfd00:ec2::254\b|(?<![\d.])100\.100\.100\.200(?!\d)"
    r"|(?<!\d)2852039166(?!\d)|\b0xa9fea9fe\b|\b0xa9\.0xfe\.0xa9\.0xfe\b|\b0251\.0376\.0251\.0376\b|::ffff:a9fe:a9fe",
    re.IGNORECASE,
)
METADATA_NUMBER = 0xA9FEA9FE


def outside_workspace(path: str) -> str:
    """Return the path as the sandbox would find it, if that lies outside of its workspace; else an empty text."""
    if not path or len(path) > _MAX_PATH_CHARACTERS or "\0" in path:
        return ""

    path = path.removeprefix("file://")

    if "://" in path:
        return ""

    if path.startswith("~"):
        user, _, rest = path[1:].partition("/")
        path = f"/home/{user or 'user'}/{rest}" if user != "root" else f"/root/{rest}"

    whole = posixpath.normpath(posixpath.join("/home/user", path))
    # Two slashes at the front are kept by POSIX and mean nothing here.
    whole = f"/{whole.lstrip('/')}"
    is_inside = any(whole == root or whole.startswith(f"{root}/") for root in _WORKSPACE)
    return "" if is_inside or whole in _HARMLESS else whole
