"""Stateless runs as a server's requests: the body of one, batches of many, and the lines that answer them.

Runs in the process that asks. It only translates; `http.py` sends.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from fumehood.bounds import MIB
from fumehood.client.connection import error_of, event_of
from fumehood.errors import FumehoodError, HostUnavailableError
from fumehood.values.codec import DataError, read_value
from fumehood.values.events import Event
from fumehood.values.plain_data import as_data
from fumehood.values.stateless import DEFAULT_OUTPUT_BYTES, StatelessReply, StatelessRequest

# What a server takes in one request: so many, and so much of it before base64 makes it a third larger.
_MAX_BATCH = 1000
_MAX_BATCH_BYTES = 16 * MIB

Answer = tuple[int, StatelessReply | FumehoodError]
Numbered = tuple[int, StatelessRequest]
Lines = AsyncGenerator[dict[str, Any], None]


def fits_one_request(request: StatelessRequest) -> bool:
    """Tells whether a server can be asked to do all of it at once."""
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
        "stdin": request.stdin,
        "timeout_seconds": request.code.wall_seconds,
        "outputs": list(request.outputs),
        "files": {
            path: {"base64": base64.b64encode(content).decode()} for path, content in request.files.items()
        },
    }


def stateless_item(line: Mapping[str, Any]) -> Event | StatelessReply:
    """Returns what a line of a stateless run's stream stands for; raises DataError for nothing."""
    if line.get("type") == "reply":
        return read_value(StatelessReply, line)

    return event_of(dict(line))


def batches_of(requests: Sequence[StatelessRequest]) -> Iterator[list[Numbered]]:
    """Yields the requests with their numbers, as many at a time as a server takes in one request."""
    batch: list[Numbered] = []
    size = 0

    for number, request in enumerate(requests):
        weight = _weight(request)

        if batch and (len(batch) == _MAX_BATCH or size + weight > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0

        batch.append((number, request))
        size += weight

    if batch:
        yield batch


async def answers_of(
    batch: list[Numbered], follow: Callable[[dict[str, Any]], Lines], concurrency: int | None
) -> AsyncGenerator[Answer, None]:
    """Asks for a batch and gives each answer as it comes; what breaks it off is the answer to all that are left.

    Args:
        batch: Which.
        follow: Sends the body and gives the lines of the answer.
        concurrency: How many run at once; None: as many as the server likes.

    Raises:
        FumehoodError: The server refused the whole batch: nothing of it was begun.
    """
    left = dict(enumerate(number for number, _ in batch))
    body: dict[str, Any] = {"requests": [stateless_body(request) for _, request in batch]}

    if concurrency is not None:
        body["concurrency"] = concurrency

    fault: FumehoodError = HostUnavailableError(
        host="the server", reason="it left requests unanswered", outcome_unknown=True
    )

    try:
        async with aclosing(follow(body)) as lines:
            async for line in lines:
                index, answer = _answer(line)

                if index not in left:
                    raise DataError(f"request {index} was not asked, or is answered twice")

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


def _answer(line: Mapping[str, Any]) -> Answer:
    index = line.get("index")

    if not isinstance(index, int):
        raise DataError("a line has no index")

    if isinstance(problem := line.get("problem"), dict):
        return index, error_of(problem)

    return index, read_value(StatelessReply, line.get("reply"))


def _weight(request: StatelessRequest) -> int:
    text = len(request.code.code) + len(request.stdin or "")
    return text + sum(len(path) + len(content) for path, content in request.files.items())
