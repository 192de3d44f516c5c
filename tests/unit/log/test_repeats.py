"""What one cause can write to the log: a few records, then a count."""

from __future__ import annotations

import logging

from tests.waiting import until

from fumehood.log.repeats import RepeatFilter, limit_repeats


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logger_with(handler: logging.Handler, window_seconds: float) -> logging.Logger:
    logger = logging.Logger("repeats")
    logger.addHandler(handler)
    handler.addFilter(RepeatFilter(handler, first_records=3, window_seconds=window_seconds))
    return logger


def test_one_cause_is_written_a_few_times_and_then_counted() -> None:
    """A thousand records of one line become three and a summary, which comes though nothing else is logged."""
    kept = Kept()
    logger = logger_with(kept, 0.2)

    for number in range(1000):
        logger.error("request %d failed", number)

    assert kept.lines[:3] == [f"request {number} failed" for number in range(3)]
    until(lambda: len(kept.lines) == 4)
    assert kept.lines[3].startswith("997 more records like the last ones from test_repeats.py:")


def test_other_causes_are_written_meanwhile() -> None:
    """Two errors that one line logs are two causes, and what is no warning is never left out."""
    kept = Kept()
    logger = logger_with(kept, 60)

    def fail(kind: type[Exception]) -> None:
        try:
            raise kind
        except Exception:
            logger.exception("it failed: %s", kind.__name__)

    for _ in range(10):
        fail(ValueError)
        logger.info("as usual")

    fail(KeyError)
    assert kept.lines.count("it failed: ValueError") == 3
    assert kept.lines.count("it failed: KeyError") == 1
    assert kept.lines.count("as usual") == 10


def test_a_new_window_begins_anew() -> None:
    """After the summary the first records of the same cause are written again."""
    kept = Kept()
    logger = logger_with(kept, 0.05)

    def say() -> None:
        for _ in range(4):
            logger.warning("again")

    say()
    until(lambda: len(kept.lines) == 4)
    say()
    assert kept.lines.count("again") == 6


def test_each_handler_is_limited_once() -> None:
    kept = Kept()
    logger = logging.Logger("repeats")
    logger.addHandler(kept)
    limit_repeats(logger)
    limit_repeats(logger)
    assert len(kept.filters) == 1


def test_an_event_may_have_a_bound_of_its_own() -> None:
    """Below the level of a warning, too; others of that level are not bounded."""
    kept = Kept()
    logger = logger_with(kept, 0.2)

    for number in range(100):
        logger.info("%d", number, extra={"max_in_window": 7})
        logger.info("free")

    assert len([line for line in kept.lines if line != "free"]) == 7
    assert kept.lines.count("free") == 100
    until(lambda: kept.lines[-1].startswith("93 more records like the last ones from"))
