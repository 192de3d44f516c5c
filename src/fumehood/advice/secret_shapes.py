"""Secrets by their well-known shapes, found and masked.

Pure functions over bounded patterns. What is found is never repeated in full, neither in a message nor in a snippet.
Placeholders, such as a row of the same letter, are no secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Kind, marks of which one must be in the text for the shape to be looked for at all, shape.
_SHAPES = tuple(
    (kind, marks.split("|"), re.compile(shape))
    for kind, marks, shape in (
        ("AWS access key", "AKIA|ASIA", r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
        ("GitHub token", "ghp_|gho_|ghu_|ghs_|ghr_", r"\bgh[pousr]_[A-Za-z0-9]{36,255}"),
        ("GitHub fine-grained token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9_]{22,255}"),
        ("Anthropic key", "sk-ant-", r"\bsk-ant-[A-Za-z0-9_-]{20,255}"),
        ("OpenAI key", "sk-", r"\bsk-(?!ant-)[A-Za-z0-9_-]{20,255}"),
        ("Google key", "AIza", r"\bAIza[0-9A-Za-z_-]{35}"),
        ("Slack token", "xox", r"\bxox[abeprs]-[0-9A-Za-z-]{10,255}"),
        ("Stripe key", "k_live_", r"\b[sr]k_live_[0-9A-Za-z]{16,255}"),
        ("Hugging Face token", "hf_", r"\bhf_[A-Za-z0-9]{30,255}"),
        ("GitLab token", "glpat-", r"\bglpat-[0-9A-Za-z_-]{20,255}"),
        ("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}"),
        ("PyPI token", "pypi-AgE", r"\bpypi-AgE[0-9A-Za-z_-]{50,255}"),
        (
            "private key",
            "PRIVATE KEY",
            r"-----BEGIN (?:[A-Z]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:[^-]{0,8000}-----END[^-]{0,40}-----)?",
        ),
        (
            "password in an address",
            "://",
            r"\b[a-z][a-z0-9+]{1,15}://[^\s:/@'\"{}]{1,64}:[^\s:/@'\"{}]{3,128}@",
        ),
    )
)
_PLACEHOLDER = re.compile(
    r"EXAMPLE|example|placeholder|your[-_]|YOUR|(.)\1{7}|://[^:]+:(?:pass|password|secret|\*+)@"
)


def secrets_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield the kind and the place of each secret."""
    for kind, marks, shape in _SHAPES:
        if any(mark in text for mark in marks):
            yield from (
                (kind, match.start()) for match in shape.finditer(text) if not _PLACEHOLDER.search(match[0])
            )


def masked(text: str) -> str:
    """Return `text` with each secret reduced to its first letters."""
    for _, marks, shape in _SHAPES:
        if any(mark in text for mark in marks):
            text = shape.sub(_mask, text)

    return text


def _mask(match: re.Match[str]) -> str:
    if _PLACEHOLDER.search(match[0]):
        return match[0]

    return f"{match[0][:6]}…({len(match[0])} characters)"
