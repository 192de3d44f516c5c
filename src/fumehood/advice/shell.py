"""Searches shell commands by patterns of words.

Pure functions over bounded patterns. A shell's language is not parsed here: a command that is put together at run
time is reported as such where that is visible, and missed where it is not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from fumehood.advice.rules import METADATA_ADDRESS, SENSITIVE_PATH

_MAX_SPLIT_CHARACTERS = 4096
_MAX_REPORTED = 200


@dataclass(frozen=True, slots=True)
class ShellFinding:
    """One finding in a command: the rule, the message, and the position of the character."""

    rule: str
    message: str
    at: int


_WORD = r"(?:^|[\s;&|(`{$/'\"])"
_SHELL = r"(?:sudo\s{1,9})?(?:/usr)?(?:/bin/)?(?:ba|da|z|k|a)?sh\b"
_PIPED = rf"\|\s{{0,9}}(?:{_SHELL}|python|perl|ruby|node)"
_EVERYTHING = r"[\"']?(?:/|~|\$HOME|/home/user|/mnt/data|/mnt|/home)/?\*?[\"']?(?=\s|;|&|\||$)"
_INSTALLERS = "pip3?|pipx|uv pip|conda|mamba|apt|apt-get|apk|yum|dnf|npm|pnpm|yarn|gem|cargo"
_NETWORK = "curl|wget|nc|ncat|netcat|socat|ssh|scp|sftp|rsync|telnet|ftp|nmap|dig|nslookup|host|ping"
_PRIVILEGES = (
    "sudo|su|nsenter|unshare|mount|umount|chroot|docker|podman|kubectl|insmod|modprobe|gdb|strace|setcap"
)

# Rule, message, pattern. Every repetition is bounded, so that searching stays linear.
_SHAPES: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (rule, f"a shell command {message}", re.compile(shape, re.MULTILINE))
    for rule, message, shape in (
        ("remote-code", "runs what it fetches", rf"\b(?:curl|wget)\b[^\n|;]{{0,300}}{_PIPED}"),
        (
            "remote-code",
            "runs what it fetches",
            rf"(?:{_SHELL}\s{{1,9}}(?:-c\s{{1,9}})?|\bsource\s{{1,9}}|\beval\s{{1,9}})[\"']?"
            r"(?:<\(|\$\(|`)\s{0,9}(?:curl|wget)\b",
        ),
        (
            "hidden-code",
            "runs what it decodes",
            rf"\b(?:base64|base32|xxd|openssl|uudecode|gunzip|zcat)\b[^\n;|]{{0,300}}{_PIPED}",
        ),
        (
            "hidden-code",
            "runs what it decodes",
            r"\beval\b[^\n]{0,20}(?:\$\(|`)[^\n]{0,120}?\b(?:base64|xxd|rev|printf)\b",
        ),
        ("reverse-shell", "connects a shell to the network", r"/dev/(?:tcp|udp)/"),
        (
            "reverse-shell",
            "connects a shell to the network",
            rf"\b(?:nc|ncat|netcat)\b[^\n]{{0,200}}?\s-[a-z]{{0,5}}[ec]\b|\bsocat\b[^\n]{{0,200}}?\bexec:"
            rf"|\b{_SHELL}\s{{1,9}}-i\s{{0,9}}[>&]",
        ),
        (
            "bomb",
            "starts itself without end",
            r"(?<![\w:.])([\w:.]{1,30})\s{0,9}\(\)\s{0,9}\{\s{0,9}\1\s{0,9}\|\s{0,9}\1\s{0,9}&",
        ),
        (
            "destructive",
            "deletes everything",
            rf"\brm\s{{1,9}}(?:-{{1,2}}[\w-]{{1,30}}\s{{1,9}}){{1,5}}{_EVERYTHING}",
        ),
        (
            "destructive",
            "overwrites a device",
            r"\bmkfs(?:\.\w{1,10})?\s|\bdd\b[^\n]{0,200}?\bof=/dev/(?!null)|>\s{0,9}/dev/(?:sd|nvme|mem|vd)",
        ),
        (
            "install",
            "installs packages",
            rf"\b(?:{_INSTALLERS})\s{{1,9}}(?:-\S{{1,30}}\s{{1,9}}){{0,5}}(?:install|add|i)\b|\beasy_install\b",
        ),
        (
            "network",
            "uses the network",
            rf"{_WORD}(?:{_NETWORK})\s|\bgit\s{{1,9}}(?:clone|pull|fetch|push)\b",
        ),
        ("privileges", "gains privileges or changes namespaces", rf"{_WORD}(?:{_PRIVILEGES})\s"),
        ("process", "signals processes", rf"{_WORD}(?:kill|pkill|killall)\s"),
    )
)


def findings_in(command: str) -> Iterator[ShellFinding]:
    """Yield what is found in a command, or in a script."""
    for rule, message, shape in _SHAPES:
        for number, match in enumerate(shape.finditer(command)):
            if number == _MAX_REPORTED:
                break

            yield ShellFinding(rule, message, match.start())

    for match in SENSITIVE_PATH.finditer(command):
        yield ShellFinding("sensitive-path", f"a shell command names {match[0]}", match.start())

    for match in METADATA_ADDRESS.finditer(command):
        yield ShellFinding("metadata-address", f"a shell command names {match[0]}", match.start())


def python_in(command: str) -> str:
    """Return the Python of `python -c CODE`, or an empty text."""
    if "python" not in command or " -c" not in command or len(command) > _MAX_SPLIT_CHARACTERS:
        return ""

    try:
        words = shlex.split(command)
    except ValueError:
        return ""

    at = next((index for index, word in enumerate(words) if word == "-c"), len(words))
    return words[at + 1] if at + 1 < len(words) and any("python" in word for word in words[:at]) else ""
