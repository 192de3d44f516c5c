"""How a record becomes a line: of JSON, or of text."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest

from fumehood.errors import PathNotFoundError, SandboxStartError
from fumehood.log import events
from fumehood.log.events import EVENTS, LogEvent
from fumehood.log.formats import ConsoleFormatter, JsonFormatter
from fumehood.log.request_ids import RequestIdFilter, apart, logged_request, note_key, request_id


class Lines(logging.Handler):
    """Keeps formatted lines."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.addFilter(RequestIdFilter())
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def logged(request):
    """Gives what is logged below `fumehood` while a test runs, as a handler of this format keeps it."""
    logger = logging.getLogger("fumehood")
    handler = Lines(request.param())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler.lines
    logger.removeHandler(handler)
    logger.setLevel(level)


JSON = pytest.mark.parametrize("logged", [JsonFormatter], indirect=True)
CONSOLE = pytest.mark.parametrize("logged", [ConsoleFormatter], indirect=True)


@JSON
def test_an_event_is_one_object(logged):
    with logged_request("abc") as current:
        note_key("key-1")
        events.QUOTA_REFUSED.log(key_id=current.key_id, quota="sandboxes", used=3, maximum=None)

    line = json.loads(logged[0])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "fumehood.server",
        "event": "quota.refused",
        "message": "a quota is used up",
        "request_id": "abc",
        "key_id": "key-1",
        "quota": "sandboxes",
        "used": 3,
    }


@CONSOLE
def test_an_event_is_one_line_of_text(logged):
    with logged_request("abc"):
        events.SERVER_STARTED.log(
            address="http://x", version="1 2", pid=7, settings={"a": ("b c", 1.5, True)}
        )

    time, _, rest = logged[0].partition(" ")
    assert time.endswith("Z")
    assert rest == (
        'INFO    fumehood.server: the server listens address=http://x version="1 2" pid=7 '
        'settings={"a": ["b c", 1.5, true]} request_id=abc'
    )


@pytest.mark.parametrize("logged", [JsonFormatter, ConsoleFormatter], indirect=True)
@pytest.mark.parametrize("text", ["a\nfake line", "a\x1b[31m", "a\u2028b", "\ud800", "x" * 10_000, "a\r\nb"])
def test_a_value_stays_on_its_line(logged, text):
    """Whatever a value holds, it can neither begin another line nor write to a terminal, and it is bounded."""
    events.HOUSEKEEPING_FAILED.log(reason=text)
    line = logged[0]
    assert len(line.splitlines()) == 1
    assert line.encode()
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", line)
    assert len(line) < 1500


@pytest.mark.parametrize("logged", [JsonFormatter, ConsoleFormatter], indirect=True)
def test_names_and_numbers_of_entries_are_bounded(logged):
    """A mapping has no longer names than values, a list no end, and both no depth without an end."""
    deep: object = "x"

    for _ in range(200):
        deep = [deep]

    for given in (
        {"a\nb": 1},
        {"x" * 100_000: 1},
        {str(n): n for n in range(10_000)},
        list(range(10_000)),
        deep,
    ):
        logged.clear()
        events.SERVER_STARTED.log(address="http://x", version="1", pid=7, settings={"given": given})
        assert len(logged[0].splitlines()) == 1
        assert len(logged[0]) < 5_000


@pytest.mark.parametrize("logged", [JsonFormatter, ConsoleFormatter], indirect=True)
def test_a_message_of_another_logger_is_one_line_without_its_extras(logged):
    logging.getLogger("fumehood.other").warning("a %s", "b\nc", extra={"color_message": "marker"})
    assert len(logged[0].splitlines()) == 1
    assert "b\\\\nc" in logged[0] or "b\\nc" in logged[0]
    assert "marker" not in logged[0]


@JSON
def test_a_traceback_quotes_nothing_of_a_request(logged):
    """Types and places are there, and messages of faults of the system; those of parsers are left out."""
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            int("marker-of-a-request")
    except ValueError as error:
        events.REQUEST_FAILED.log(exc_info=ExceptionGroup("of tasks", [error]))

    exception = json.loads(logged[0])["exception"]
    assert "builtins.ValueError (its message may quote a request: left out)" in exception
    assert "builtins.OSError: [Errno 28] No space left on device" in exception
    assert "test_formats.py" in exception
    assert "invalid literal" not in exception


@JSON
def test_a_traceback_shows_of_our_errors_what_the_log_may_show(logged):
    """Some are also a RuntimeError or an OSError, whose messages are shown; those of ours may be a guest's words."""
    words = "marker-of-a-guest"

    try:
        raise SandboxStartError(step="start", reason=words, logged="it ended")
    except SandboxStartError as error:
        missing = PathNotFoundError(path="/marker", operation="read", errno_value=2)
        events.REQUEST_FAILED.log(exc_info=ExceptionGroup("of tasks", [error, missing]))

    exception = json.loads(logged[0])["exception"]
    assert "SandboxStartError: start: it ended" in exception
    assert "PathNotFoundError: path_not_found" in exception
    assert "marker" not in exception


@JSON
def test_a_task_apart_belongs_to_no_request(logged):
    async def said() -> str:
        events.FILES_REMOVED.log(count=1)
        return request_id()

    async def scene() -> None:
        with logged_request("abc"):
            assert await asyncio.create_task(said()) == "abc"
            assert await apart(said()) == ""

        assert request_id() == ""

    asyncio.run(scene())
    assert ["request_id" in json.loads(line) for line in logged] == [True, False]


def test_other_programs_formatters_have_words_and_fields(caplog):
    """What a library user's own formatter prints is complete."""
    with caplog.at_level(logging.INFO, "fumehood"):
        events.FILES_REMOVED.log(count=3)

    record = caplog.records[-1]
    assert record.getMessage() == "expired files were removed: count=3"
    assert (record.event, record.fields) == ("files.removed", {"count": 3})


def test_what_nobody_listens_to_is_not_formatted(monkeypatch):
    """A line below the level costs a look at the level, and no more."""

    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    monkeypatch.setattr(events.KEY_USED.logger, "level", logging.INFO)
    events.KEY_USED.logger.manager._clear_cache()
    events.KEY_USED.log(key_id=Costly())


def test_events_are_declared_well():
    """Names are two words, fields have units and no name of logging's own, texts say something."""
    for name, event in EVENTS.items():
        assert isinstance(event, LogEvent)
        assert re.fullmatch(r"[a-z_]+\.[a-z_]+", name)
        assert not {"time", "level", "logger", "event", "message", "request_id", "exception"} & set(
            event.fields
        )
        assert event.text
        assert event.meaning.endswith(".")
