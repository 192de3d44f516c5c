"""Fixes sources of differences before code runs again: seeds, the system's randomness in Python, the time of day.

Pure: the text of code that a caller runs in the guest, before the first cell of a replay, and what that leaves open.
"""

from __future__ import annotations

from datetime import UTC, datetime

FIRST_SEED = 0
CLOCK_START = datetime(2000, 1, 1, tzinfo=UTC)
BY_CHANCE = "anything that depends on time or chance"
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


def fixing_code(seed: int = FIRST_SEED, clock_start: datetime = CLOCK_START) -> str:
    """Returns the code that fixes these sources, for a context in which nothing has run."""
    start_ns = round(clock_start.timestamp()) * 1_000_000_000
    return _PROLOGUE.replace("{seed}", str(seed)).replace("{start_ns}", str(start_ns))


def not_fixed(*, deterministic: bool) -> tuple[str, ...]:
    """Returns the sources of differences that a replay does not fix."""
    return NOT_FIXED if deterministic else (BY_CHANCE, *NOT_FIXED)
