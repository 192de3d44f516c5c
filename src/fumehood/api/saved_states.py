"""Reads the content of a saved state without starting a sandbox."""

from __future__ import annotations

import os
from typing import TypeAlias

from fumehood.portal import call
from fumehood.tracebacks import ending_at_caller
from fumehood.values.execution import Record
from fumehood.values.sandbox import ContextInfo
from fumehood.values.saved_state import SaveReport

StatePlace: TypeAlias = str | os.PathLike[str]


@ending_at_caller
def read_saved(place: StatePlace) -> SaveReport:
    """Return the report of a saved state, as `Sandbox.save` did, without starting anything.

    Raises:
        LoadError: See `Sandbox.load`.
    """
    from fumehood.saved.places import report_on

    return call(report_on, place)


@ending_at_caller
def read_saved_record(place: StatePlace, context: ContextInfo | str = "default") -> Record:
    """Return the record of a context of a saved state, as `Sandbox.get_record` did.

    Raises:
        LoadError: See `Sandbox.load`.
        ContextNotFoundError: The saved state has no such context.
    """
    from fumehood.saved.places import record_in

    return call(record_in, place, context.id if isinstance(context, ContextInfo) else context)
