"""Texts about output that was dropped because of a limit: E2B has no field for it.

Pure functions.
"""

from __future__ import annotations

from fumehood.values.sandbox import Truncation


def dropped_text(truncated: Truncation) -> str:
    """Returns a text about the dropped output; empty if there is none."""
    counts = {
        "bytes of stdout": truncated.stdout_bytes,
        "bytes of stderr": truncated.stderr_bytes,
        "results": truncated.results,
    }
    lost = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{', '.join(lost)} dropped because of the sandbox's limits" if lost else ""
