"""Writes the table of events in docs/guides/logging.md from their declarations; `make reference` runs it.

A test compares the page with what this would write.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fumehood.log.events import EVENTS, ROOT, LogEvent

PAGE = Path(__file__).parent / "guides" / "logging.md"
_BEGIN, _END = "<!-- events: written by `make reference` -->\n", "<!-- end of events -->\n"


def page() -> str:
    """The whole page, with the table as it has to be now."""
    before, rest = PAGE.read_text(encoding="utf-8").split(_BEGIN)
    _, after = rest.split(_END)
    rows = [_row(event) for event in sorted(EVENTS.values(), key=lambda event: event.name)]
    head = "| event | level | logger | fields | when |\n|---|---|---|---|---|\n"
    return f"{before}{_BEGIN}{head}{''.join(rows)}{_END}{after}"


def _row(event: LogEvent) -> str:
    level = logging.getLevelName(event.level).lower()
    fields = ", ".join(f"`{name}`" for name in event.fields)
    words = f"{event.text[0].upper()}{event.text[1:]}. {event.meaning}"
    return f"| `{event.name}` | {level} | `{ROOT}.{event.package}` | {fields} | {words} |\n"


if __name__ == "__main__":
    if "--write" not in sys.argv:
        sys.exit("usage: python docs/log_events.py --write")

    PAGE.write_text(page(), encoding="utf-8")
