"""The records in a saved state: written within a bound, and parsed from untrusted bytes.

Runs in the host process, in threads; pure. A record that passes here can be stored, returned and saved again; whether
its cells ever ran cannot be checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from fumehood.bounds import MIB
from fumehood.errors import SavedStateDamagedError
from fumehood.values.codec import DataError, read_value
from fumehood.values.execution import Execution, Record, RecordedCell
from fumehood.values.json_values import parse
from fumehood.values.plain_data import as_data

# The most bytes of the records of all contexts. In memory they take 16 MiB at most; JSON can take six bytes for each.
MAX_RECORD_BYTES = 64 * MIB
# A sandbox itself keeps fewer.
MAX_CELLS = 10_000
_MAX_COUNT = 2**31
# More than any saved state needs.
MAX_VALUES = 2_000_000


def record_bytes(record: Record, max_bytes: int) -> bytes:
    """Returns the bytes of a record; of one that is too long, only the latest cells and the number of missing ones."""
    content = _written(record)
    return content if len(content) <= max_bytes else _written(_shortened(record, max_bytes))


def read_record(content: bytes, name: str) -> Record:
    """Returns the record in these bytes.

    Args:
        content: The bytes.
        name: The name of the part, for errors.

    Raises:
        SavedStateDamagedError: The bytes are not a valid record.
    """
    try:
        data = parse(content, MAX_VALUES)
        # NaN could be stored here, but a caller could not read the record.
        json.dumps(data, allow_nan=False)
        record = read_value(Record, data)
        _check(record)
        as_data(record)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SavedStateDamagedError(part=name, reason=reason) from None

    return record


def as_ours(record: Record, context_id: str) -> Record:
    """Returns a record under the id of the context it is loaded into, without heads of the old audit record."""
    cells = (
        replace(cell, execution=replace(cell.execution, context_id=context_id, audit_head=None))
        for cell in record.cells
    )
    return replace(record, context_id=context_id, cells=tuple(cells))


def _written(record: Record) -> bytes:
    return json.dumps(as_data(record)).encode("ascii")


def _shortened(record: Record, max_bytes: int) -> Record:
    left_bytes = max_bytes - len(_written(replace(record, cells=())))
    cells: list[RecordedCell] = []

    for cell in reversed(record.cells):
        # Two bytes for what stands between them.
        left_bytes -= len(json.dumps(as_data(cell))) + 2

        if left_bytes < 0:
            break

        cells.insert(0, cell)

    return replace(
        record,
        cells=tuple(cells),
        dropped_cells=record.dropped_cells + len(record.cells) - len(cells),
        dropped_outputs=sum(cell.outputs_dropped for cell in cells),
    )


def _check(record: Record) -> None:
    if len(record.cells) > MAX_CELLS:
        raise DataError(f"it has more than {MAX_CELLS:,} cells")

    if not all(0 <= count <= _MAX_COUNT for count in _counts(record)):
        raise DataError("a count in it does not fit")


def _counts(record: Record) -> Iterator[int]:
    yield record.dropped_cells
    yield record.dropped_outputs
    executions: Iterable[Execution] = (cell.execution for cell in record.cells)

    for execution in executions:
        yield execution.execution_count or 0
