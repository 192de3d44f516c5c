"""Output that was dropped because of a limit, in words: E2B has none for it.

Pure functions.
"""

from __future__ import annotations

from fumehood.values.sandbox import Truncation


def dropped_text(truncated: Truncation) -> str:
    """Returns what was dropped, or nothing if nothing was."""
    counts = {
        "bytes of stdout": truncated.stdout_bytes,
        "bytes of stderr": truncated.stderr_bytes,
        "results": truncated.results,
    }
    lost = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{', '.join(lost)} dropped because of the sandbox's limits" if lost else ""
