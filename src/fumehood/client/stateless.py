"""Stateless runs over HTTP: the body of a single run, batches of many, and the lines of the answers.

Runs in the process that asks. It only translates; `http.py` sends.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from fumehood.bounds import MIB
from fumehood.cancellation import complete
from fumehood.client.connection import error_of, event_of
from fumehood.errors import BatchNotFoundError, FumehoodError, HostUnavailableError
from fumehood.values.codec import DataError, read_value
from fumehood.values.events import Event
from fumehood.values.plain_data import as_data
from fumehood.values.stateless import DEFAULT_OUTPUT_BYTES, StatelessReply, StatelessRequest

# The bounds of one request: the number of items, and their size before base64 makes it a third larger.
_MAX_BATCH = 10_000
_MAX_BATCH_BYTES = 16 * MIB
# A connection that breaks off is made again, after 0.1 s, 0.2 s, and so on: six seconds in all.
_TRIES = 6
_FIRST_WAIT_SECONDS = 0.1

Answer = tuple[int, StatelessReply | FumehoodError]
Numbered = tuple[int, StatelessRequest]
Lines = AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True, slots=True)
class GroupedRun:
    """A run that a server sends to a host daemon together with others.

    Attributes:
        request: The run.
        request_id: The id of the caller's request, for log lines during the run.
        trace: The value of its trace header; empty if there is none.
    """

    request: StatelessRequest
    request_id: str
    trace: str = ""


def group_body(name: str, runs: Sequence[GroupedRun]) -> dict[str, Any]:
    """Returns the body of a request for a group of runs to a host daemon."""
    return {
        "name": name,
        "runs": [
            {"request": stateless_body(run.request), "request_id": run.request_id, "trace": run.trace}
            for run in runs
        ],
    }


def fits_one_request(request: StatelessRequest) -> bool:
    """Returns whether a run fits into one request to a server."""
    return isinstance(request.spec.template, str) and request.max_output_bytes == DEFAULT_OUTPUT_BYTES


def stateless_body(request: StatelessRequest) -> dict[str, Any]:
    """Returns the body that asks for a stateless run."""
    return {
        "code": request.code.code,
        "language": request.code.language,
        "template": request.spec.template,
        "limits": as_data(request.spec.limits_asked),
        "envs": {**request.spec.envs, **request.code.envs},
        "strict": request.spec.strict,
        "isolation": request.spec.isolation,
        "network": as_data(request.spec.network),
        "labels": dict(request.spec.labels),
        "stdin": request.stdin,
        "timeout_seconds": request.code.wall_seconds,
        "outputs": list(request.outputs),
        "files": {
            path: {"base64": base64.b64encode(content).decode()} for path, content in request.files.items()
        },
    }


def stateless_item(line: Mapping[str, Any]) -> Event | StatelessReply:
    """Returns the event or the reply in a line of a stateless run's stream; raises DataError for any other line."""
    if line.get("type") == "reply":
        return read_value(StatelessReply, line)

    return event_of(dict(line))


def batches_of(requests: Sequence[StatelessRequest]) -> Iterator[list[Numbered]]:
    """Yields the requests with their numbers, as many at a time as a server takes in one request."""
    batch: list[Numbered] = []
    size = 0

    for number, request in enumerate(requests):
        weight = weight_of(request)

        if batch and (len(batch) == _MAX_BATCH or size + weight > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0

        batch.append((number, request))
        size += weight

    if batch:
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCalls:
    """The requests about one batch.

    Attributes:
        begin: Sends the body of the batch; yields the lines of the answer.
        read_on: Called with the batch's id and the number of the last received line; yields the lines after it.
        end: Called with the batch's id; ends the batch and removes it from the server.
    """

    begin: Callable[[dict[str, Any]], Lines]
    read_on: Callable[[str, int], Lines]
    end: Callable[[str], Awaitable[object]]


async def answers_of(
    batch: list[Numbered], calls: BatchCalls, concurrency: int | None
) -> AsyncGenerator[Answer, None]:
    """Sends a batch and yields each answer when it arrives.

    If the connection breaks off, it is made again and reading continues after the last received line; if that fails,
    the error is the answer to all remaining requests. Closing the iterator before the end ends the batch.

    Args:
        batch: The requests, with their numbers.
        calls: The requests to the server.
        concurrency: How many run at the same time; None: as many as the server allows.

    Raises:
        FumehoodError: The server refused the whole batch; no run was started.
    """
    left = dict(enumerate(number for number, _ in batch))
    body: dict[str, Any] = {
        "requests": [stateless_body(request) for _, request in batch],
        "resumable": True,
    }

    if concurrency is not None:
        body["concurrency"] = concurrency

    fault: FumehoodError = HostUnavailableError(
        host="the server", reason="it left requests unanswered", outcome_unknown=True
    )

    try:
        async with aclosing(_BatchReader(calls).lines(body)) as lines:
            async for line in lines:
                index, answer = answer_in(line)

                if index not in left:
                    raise DataError(f"request {index} was not sent, or is answered twice")

                yield left.pop(index), answer
    except DataError as error:
        fault = HostUnavailableError(
            host="the server", reason=f"its answer does not fit: {error}", outcome_unknown=True
        )
    except FumehoodError as error:
        if len(left) == len(batch) and not error.outcome_unknown:
            raise

        fault = error

    for number in left.values():
        yield number, fault


class _BatchReader:
    """The lines of a batch, read over several connections if one breaks off."""

    def __init__(self, calls: BatchCalls) -> None:
        self._calls = calls
        self._batch_id = ""
        self._cursor = 0

    async def lines(self, body: dict[str, Any]) -> Lines:
        """Begins a batch and yields its lines; ends the batch at the end."""
        try:
            async with aclosing(self._connected(body)) as lines:
                async for line in lines:
                    yield line
        finally:
            if self._batch_id:
                await complete(self._end())

    async def _connected(self, body: dict[str, Any]) -> Lines:
        coming = self._calls.begin(body)
        fault: FumehoodError | None = None
        tries = 0

        while True:
            cursor = self._cursor
            try:
                async with aclosing(self._noted(coming)) as lines:
                    async for line in lines:
                        yield line
                return
            except HostUnavailableError as error:
                if not self._batch_id:
                    raise

                fault = error if fault is None or self._cursor > cursor else fault
                tries = 0 if self._cursor > cursor else tries
            except BatchNotFoundError as error:
                # The server was restarted meanwhile, or the connection was gone for too long.
                raise _lost(fault or error) from None

            if tries == _TRIES:
                raise _lost(fault)

            await asyncio.sleep(_FIRST_WAIT_SECONDS * 2**tries)
            tries += 1
            coming = self._calls.read_on(self._batch_id, self._cursor)

    async def _noted(self, coming: Lines) -> Lines:
        """Yields the lines of one connection, and records the number of the last one."""
        async with aclosing(coming):
            async for line in coming:
                if "index" in line:
                    self._cursor = _number(line, "cursor")
                    yield line
                else:
                    self._batch_id = str(line.get("batch_id", ""))

    async def _end(self) -> None:
        # It may have ended, or the server may be gone: then nothing is left to be ended.
        with suppress(FumehoodError):
            await self._calls.end(self._batch_id)


def _lost(fault: FumehoodError) -> FumehoodError:
    """Returns the error that ended a batch, as the answer for items that may have run."""
    fault.outcome_unknown = True
    return fault


def _number(line: Mapping[str, Any], name: str) -> int:
    number = line.get(name)

    if not isinstance(number, int):
        raise DataError(f"a line has no {name}")

    return number


def answer_in(line: Mapping[str, Any]) -> Answer:
    """Returns the number and the answer in a line; raises DataError for any other line."""
    index = _number(line, "index")

    if isinstance(problem := line.get("problem"), dict):
        return index, error_of(problem)

    return index, read_value(StatelessReply, line.get("reply"))


def weight_of(request: StatelessRequest) -> int:
    """Returns approximately how many bytes a run takes in a request."""
    text = len(request.code.code) + len(request.stdin or "") + sum(map(len, request.outputs))
    named = (request.files, request.spec.envs, request.code.envs, request.spec.labels)
    return text + sum(len(name) + len(content) for given in named for name, content in given.items())
