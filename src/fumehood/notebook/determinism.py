"""What can honestly be fixed before code runs again: seeds, the system's randomness and the time of day.

Runs in the host process; what it does is one silent piece of code in the sandbox. An interpreter that lives already
cannot be given another hash seed, and clocks that measure spans are left alone, because programs wait by them:
`NOT_FIXED` says so to whoever compares.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fumehood.backends.checks import check_integer
from fumehood.backends.requests import ExecuteRequest
from fumehood.errors import InvalidArgumentError

if TYPE_CHECKING:
    from fumehood.facade.aio import AsyncSandbox

NOT_FIXED = (
    "the hash seed, so the order of sets of text: it is one for all sandboxes of an engine, and another in the next",
    "generators that a library seeds by itself, such as random.Random(), and so the names of temporary files, and"
    " torch.Generator(); os.getrandom",
    "clocks that measure spans: perf_counter, monotonic, process_time; numpy.datetime64('now'), clock_gettime, uuid1,"
    " and the times of files",
    "addresses and ids of objects, process ids, the order in which threads run",
    "other contexts and commands of the sandbox, bash, and what comes over the network",
)

# Runs in the guest, on Python 3.9 and later. Each reading of the time of day is a millisecond after the one before, so
# that two runs that read it equally often read the same.
_PROLOGUE = """
def _fumehood_fix(seed, start_ns):
    import datetime, os, random, sys, time

    random.seed(seed)
    entropy = random.Random(seed)

    def urandom(size):
        return entropy.getrandbits(size * 8).to_bytes(size, "little") if size else b""

    os.urandom = random._urandom = urandom

    try:
        import numpy
        numpy.random.seed(seed % 2**32)
    except ImportError:
        pass

    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)

    now = [start_ns]

    def time_ns():
        now[0] += 1_000_000
        return now[0]

    def time_now():
        return time_ns() / 1_000_000_000

    def sleep(seconds, _sleep=time.sleep):
        _sleep(seconds)
        now[0] += int(seconds * 1e9)

    def at_once(function, place):
        def called(*arguments):
            return function(*arguments) if len(arguments) > place else function(*arguments, reading(place))

        return called

    gmtime, localtime = time.gmtime, time.localtime

    def reading(place):
        return localtime(time_now()) if place == 1 else time_now()

    def asctime(*arguments, _asctime=time.asctime):
        return _asctime(*(arguments or (localtime(time_now()),)))

    time.time, time.time_ns, time.sleep, time.asctime = time_now, time_ns, sleep, asctime
    time.strftime = at_once(time.strftime, 1)
    time.gmtime, time.localtime, time.ctime = at_once(gmtime, 0), at_once(localtime, 0), at_once(time.ctime, 0)

    class Clock:
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time_ns() // 1000 / 1e6, tz)

        @classmethod
        def utcnow(cls):
            return cls.fromtimestamp(time_ns() // 1000 / 1e6, datetime.timezone.utc).replace(tzinfo=None)

    # The class of the standard library stays the one it is, which whatever compares or pickles its objects relies on.
    import ctypes, gc
    names = gc.get_referents(datetime.datetime.__dict__)[0]
    names["now"], names["utcnow"] = Clock.__dict__["now"], Clock.__dict__["utcnow"]
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
    assert datetime.datetime.now(datetime.timezone.utc).timestamp() * 1e9 < now[0] + 1e9
    now[0] = start_ns

_fumehood_fix({seed}, {start_ns})
del _fumehood_fix
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """What is fixed before the first cell.

    Attributes:
        seed: Of `random`, numpy, torch if it is loaded, and of what the system's randomness gives to Python: `secrets`,
            `uuid.uuid4`, `numpy.random.default_rng()`.
        clock_start: Where the time of day begins; each reading is a millisecond later than the one before, and
            `time.sleep` takes the time that it says.
    """

    seed: int = 0
    clock_start: datetime = datetime(2000, 1, 1, tzinfo=UTC)

    def __post_init__(self) -> None:
        check_integer("seed", self.seed, low=0, high=2**63 - 1)

        start = self.clock_start

        if not isinstance(start, datetime) or start.tzinfo is None or not 1971 <= start.year <= 2200:
            raise InvalidArgumentError(
                field="clock_start", value=start, allowed="a time with its zone, from 1971 to 2200"
            )

    async def apply(self, sandbox: AsyncSandbox) -> None:
        """Fix it in the default context of a sandbox, in which nothing has run.

        Raises:
            InvalidArgumentError: The interpreter of the sandbox does not allow it.
        """
        start_ns = round(self.clock_start.timestamp()) * 1_000_000_000
        code = _PROLOGUE.replace("{seed}", str(self.seed)).replace("{start_ns}", str(start_ns))
        execution = await sandbox._lease.backend.run(sandbox.id, ExecuteRequest(code=code, silent=True))

        if execution.error is not None:
            raise InvalidArgumentError(
                field="deterministic",
                value=json.dumps(f"{execution.error.name}: {execution.error.value[:200]}"),
                allowed="False for this template, whose interpreter does not let its time be set",
            )
