"""Secrets by their well-known shapes, found and masked.

Runs in the host process; pure functions over bounded patterns. What is found is never repeated in full, neither in a
message nor in a snippet. Placeholders, such as a row of the same letter, are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Each begins with a mark of its issuer, so that searching takes one pass.
_SHAPES = {
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "GitHub token": r"\bgh[pousr]_[A-Za-z0-9]{36,255}",
    "GitHub fine-grained token": r"\bgithub_pat_[A-Za-z0-9_]{22,255}",
    "Anthropic key": r"\bsk-ant-[A-Za-z0-9_-]{20,255}",
    "OpenAI key": r"\bsk-(?!ant-)[A-Za-z0-9_-]{20,255}",
    "Google key": r"\bAIza[0-9A-Za-z_-]{35}",
    "Slack token": r"\bxox[abeprs]-[0-9A-Za-z-]{10,255}",
    "Stripe key": r"\b[sr]k_live_[0-9A-Za-z]{16,255}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30,255}",
    "GitLab token": r"\bglpat-[0-9A-Za-z_-]{20,255}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}",
    "PyPI token": r"\bpypi-AgE[0-9A-Za-z_-]{50,255}",
    "private key": r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:[^-]{0,8000}-----END[^-]{0,40}-----)?",
    "password in an address": r"\b[a-z][a-z0-9+]{1,15}://[^\s:/@'\"{}]{1,64}:[^\s:/@'\"{}]{3,128}@",
}
_ANY = re.compile("|".join(f"(?P<_{index}>{shape})" for index, shape in enumerate(_SHAPES.values())))
_NAMES = {f"_{index}": name for index, name in enumerate(_SHAPES)}
_PLACEHOLDER = re.compile(
    r"EXAMPLE|example|placeholder|your[-_]|YOUR|(.)\1{7}|://[^:]+:(?:pass|password|secret|\*+)@"
)


def secrets_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and the place of each secret."""
    for match in _ANY.finditer(text):
        if not _PLACEHOLDER.search(match[0]):
            yield _NAMES[match.lastgroup or ""], match.start()


def masked(text: str) -> str:
    """Return `text` with each secret reduced to its first letters."""
    return _ANY.sub(_mask, text)


def _mask(match: re.Match[str]) -> str:
    if _PLACEHOLDER.search(match[0]):
        return match[0]

    return f"{match[0][:6]}…({len(match[0])} characters)"
