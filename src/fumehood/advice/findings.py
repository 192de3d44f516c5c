"""The findings of a scan: their values, and the bounded collection of them during the scan.

Snippets and messages show parts of hostile code, so they pass here as bounded, visible lines with secrets masked: a
secret is known by its well-known shape and never repeated in full; placeholders, such as a row of the same letter, are
no secrets. However much is found, the first findings of each severity are kept, so that none is crowded out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from fumehood.advice.characters import shown_line
from fumehood.advice.rules import RULES

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
    """Yield the kind and the position of each secret."""
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


Severity = Literal["info", "warning", "danger"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "danger")

_MAX_EACH = 100
_MAX_SNIPPET_CHARACTERS = 120
_MAX_MESSAGE_CHARACTERS = 240
# Around what is found, this much of a line is looked at for a snippet.
_NEAR_CHARACTERS = 60
_MAX_REASONS = 3
_MAX_COUNTED_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a scan has found.

    Attributes:
        rule: Stable id of the rule, such as `process`.
        severity: info, warning or danger.
        line: Line of the code, from 1.
        column: Character of the line, from 1.
        message: A description for a person or a model.
        snippet: The code there: one bounded line, hidden characters spelled out, secrets masked.
    """

    rule: str
    severity: Severity
    line: int
    column: int
    message: str
    snippet: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.severity}: {self.message} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The findings of a scan, in the order of the code, and whether they justify refusing it.

    Attributes:
        found: The findings; at most 100 of each severity.
        left_out: The number of further findings.
        blocks: True when the code must not run: a finding has at least the severity that was chosen to block.
        reason: Why the code is blocked, in one line for a model or a person; empty if it is not.
    """

    found: tuple[Finding, ...] = ()
    left_out: int = 0
    blocks: bool = False
    reason: str = ""

    @property
    def worst(self) -> Severity | None:
        """The highest severity; None when nothing was found."""
        return max((finding.severity for finding in self.found), key=SEVERITIES.index, default=None)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.found]

        if self.left_out:
            lines.append(f"and {self.left_out:,} more")

        return "\n".join(lines) or "nothing was found"


class Collection:
    """Collects findings while a piece of code is scanned.

    Args:
        code: The code, for snippets.
        allow: Rules whose findings are left out.
    """

    def __init__(self, code: str, allow: Iterable[str] = ()) -> None:
        self._lines = code.split("\n")
        self._allow = frozenset(allow)
        self._found: dict[Severity, dict[tuple[str, int, str], Finding]] = {name: {} for name in SEVERITIES}
        self._left_out = 0

    def add(
        self, rule: str, message: str, *, line: int = 1, column: int = 1, severity: Severity | None = None
    ) -> None:
        """Add one finding; the same finding twice in a line counts once."""
        if rule in self._allow:
            return

        severity = severity or RULES[rule].severity
        kept = self._found[severity]
        key = (rule, line, message)

        if key in kept:
            return

        if len(kept) >= _MAX_EACH:
            self._left_out += 1
            return

        kept[key] = Finding(
            rule=rule,
            severity=severity,
            line=line,
            column=column,
            message=shown_line(masked(message), max_characters=_MAX_MESSAGE_CHARACTERS),
            snippet=self._snippet(line, column),
        )

    def characters_before(self, line: int, byte_offset: int) -> int:
        """Return the number of characters of a line before one of its bytes, as the parser counts."""
        text = self._line(line)

        # In a very long line the place is near enough, and counting for each finding would take minutes.
        if text.isascii() or len(text) > _MAX_COUNTED_CHARACTERS:
            return min(byte_offset, len(text))

        return len(text.encode("utf-8", "surrogatepass")[:byte_offset].decode("utf-8", "replace"))

    def findings(self, block: Severity | None) -> Findings:
        """Everything that was found, with the verdict."""
        found = sorted(
            (finding for kept in self._found.values() for finding in kept.values()),
            key=lambda finding: (finding.line, finding.column, -SEVERITIES.index(finding.severity)),
        )
        refused = [finding for finding in found if _is_refused(finding, block)]
        return Findings(
            found=tuple(found), left_out=self._left_out, blocks=bool(refused), reason=_reason(refused)
        )

    def _line(self, line: int) -> str:
        return self._lines[line - 1] if 0 < line <= len(self._lines) else ""

    def _snippet(self, line: int, column: int) -> str:
        text = self._line(line)
        start = max(column - 1 - _NEAR_CHARACTERS, 0) if len(text) > 2 * _NEAR_CHARACTERS else 0
        # Secrets are looked for in a wider piece, so that the cut does not make one unknown.
        wide_start = max(start - 400, 0)
        wide = masked(text[wide_start : start + 800])
        return shown_line(wide[start - wide_start :].strip(), max_characters=_MAX_SNIPPET_CHARACTERS)


def _is_refused(finding: Finding, block: Severity | None) -> bool:
    if block is None:
        return False

    # Code that could not be parsed may do anything.
    return finding.rule == "unparsable" or SEVERITIES.index(finding.severity) >= SEVERITIES.index(block)


def _reason(refused: list[Finding]) -> str:
    lines = [f"line {finding.line}: {finding.message} ({finding.rule})" for finding in refused[:_MAX_REASONS]]

    if len(refused) > _MAX_REASONS:
        lines.append(f"and {len(refused) - _MAX_REASONS} more")

    return "; ".join(lines)
