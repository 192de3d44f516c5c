"""The report of `fumehood run` after the code has ended: the files that were copied back, and the execution as JSON.

Runs in the user's terminal, whichever process had the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fumehood.cli.terminal import line_of_path, note
from fumehood.values.plain_data import as_data

if TYPE_CHECKING:
    from fumehood.api.transfers import Saved


def report(saved: Sequence[Saved], ran: Mapping[str, object] | None) -> None:
    """Print the files that were copied back and those that were not.

    Args:
        saved: The files.
        ran: The executions as plain data, printed with the files; None to leave them out.
    """
    for item in saved:
        if item.skipped:
            note(f"{line_of_path(item.source)} was left out: {item.skipped}")
        elif ran is None:
            note(f"{line_of_path(item.source)} -> {item.path}")

    if ran is not None:
        print(json.dumps({**ran, "files": as_data(saved)}, indent=2))
