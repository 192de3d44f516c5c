"""Variables as bytes and back: all that serialise in one stream, so that what they share stays shared.

Runs in a context, between two cells, when its sandbox is saved or loaded; the only place of ours that pickles. Each
variable is a segment of its own with a memo that all share, and protocol 3 numbers the entries of that memo: a
segment can be left out, and whoever needs something in it then fails instead of finding the wrong object. What
serialises is found by trying, within bounds of size and time. Functions of the cells go by their code and live in the
namespace again; classes of the cells need cloudpickle, which is the template's to have.
"""

from __future__ import annotations

import functools
import importlib
import io
import marshal
import pickle
import signal
import sys
import time
from contextlib import contextmanager
from types import CellType, FunctionType, ModuleType
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

try:
    import cloudpickle  # type: ignore[import-untyped]
except ImportError:
    cloudpickle = None

PROTOCOL = 3
_MAIN = "__main__"
_TRIES_OF_ALL = 3
_MOST_RELOADS = 16
_MAX_REASON_CHARACTERS = 300
_BUFFER_BYTES = 1 << 16
_CACHED = type(functools.lru_cache(len))


class Segment(NamedTuple):
    """One variable in a stream."""

    name: str
    size_bytes: int


class Kept(NamedTuple):
    """What came of pickling: what is in the stream, and why the rest is not."""

    segments: List[Segment]
    left_out: Dict[str, str]


class Bounds(NamedTuple):
    """How much may be spent: on one variable, and on all of them."""

    each_bytes: int
    all_bytes: int
    each_seconds: float
    all_seconds: float


class _TooMuchError(Exception):
    """A bound is reached; the message says which."""


def pickled_by() -> str:
    """Names what pickles here."""
    return "pickle" if cloudpickle is None else f"cloudpickle {cloudpickle.__version__}"


def reason_of(error: BaseException) -> str:
    """Says in bounded words why something failed. The text is the user's, and to make it can fail as well."""
    try:
        text = str(error)
    except Exception:
        text = ""

    name = "" if isinstance(error, _TooMuchError) else type(error).__name__
    return ": ".join(part for part in (name, text) if part)[:_MAX_REASON_CHARACTERS]


def pickle_variables(variables: Mapping[str, Any], file: BinaryIO, bounds: Bounds) -> Kept:
    """Writes what serialises of `variables` to an empty file."""
    return _Attempt(variables, file, bounds).carry_out()


def unpickle_variables(
    file: BinaryIO, segments: Sequence[Segment], namespace: Dict[str, Any]
) -> Dict[str, str]:
    """Sets variables from a file that `pickle_variables` has written; returns why the others could not be."""
    missing: Dict[str, str] = {}

    while True:
        values, failed, reason = _load_all(file, segments, missing)

        if failed is None:
            namespace.update(values)
            return missing

        # What it has half made may not be found by others: all is read again without it.
        missing[failed] = reason

        if len(missing) > _MOST_RELOADS:
            unread = "it was not tried: too many others could not be read"
            return {**{one.name: unread for one in segments}, **missing}


class _Attempt:
    """Finds out what serialises, and writes it."""

    def __init__(self, variables: Mapping[str, Any], file: BinaryIO, bounds: Bounds) -> None:
        self._variables = variables
        self._file = file
        self._bounds = bounds
        self._deadline = time.monotonic() + bounds.all_seconds
        self._left_out: Dict[str, str] = {}

    def carry_out(self) -> Kept:
        tries = 0

        while True:
            segments, failed = self._write([name for name in self._variables if name not in self._left_out])

            if failed is None:
                return Kept(segments, self._left_out)

            tries += 1

            if tries == _TRIES_OF_ALL:
                self._try_each()

            if time.monotonic() > self._deadline:
                return self._stop(segments)

    def _stop(self, segments: List[Segment]) -> Kept:
        """Keeps what was written before the time was over: no segment needs a later one."""
        self._file.truncate(sum(segment.size_bytes for segment in segments))
        written = {segment.name for segment in segments}

        for name in self._variables:
            if name not in written:
                self._left_out.setdefault(name, "there was no time left to look at it")

        return Kept(segments, self._left_out)

    def _write(self, names: Sequence[str]) -> Tuple[List[Segment], Optional[str]]:
        """Writes these, up to the first that fails, which is noted and named."""
        self._file.seek(0)
        self._file.truncate()
        counted = _Counted(self._file, self._bounds)
        pickler = _pickler(counted)
        segments: List[Segment] = []

        for name in names:
            if not self._dump(pickler, counted, name):
                return segments, name

            segments.append(Segment(name, counted.segment_bytes))

        return segments, None

    def _try_each(self) -> None:
        """Finds those that fail alone, so that the next attempts do not stumble over one after the other."""
        for name in [name for name in self._variables if name not in self._left_out]:
            if time.monotonic() > self._deadline:
                return

            counted = _Counted(_Nowhere(), self._bounds)
            self._dump(_pickler(counted), counted, name)

    def _dump(self, pickler: Any, counted: _Counted, name: str) -> bool:
        counted.begin()
        try:
            with _alarm(min(self._bounds.each_seconds, max(0.01, self._deadline - time.monotonic()))):
                pickler.dump(self._variables[name])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._left_out[name] = reason_of(error)
            return False

        return True


class _Nowhere:
    """A file that nothing is kept in."""

    def write(self, data: Any) -> int:
        """Takes it."""
        return len(data)


class _Counted:
    """A file that is written to within bounds."""

    def __init__(self, file: Any, bounds: Bounds) -> None:
        self._file = file
        self._bounds = bounds
        self._all_bytes = 0
        self.segment_bytes = 0

    def begin(self) -> None:
        """A variable begins."""
        self.segment_bytes = 0

    def write(self, data: Any) -> int:
        """Writes, or refuses."""
        size_bytes = memoryview(data).nbytes
        self.segment_bytes += size_bytes
        self._all_bytes += size_bytes

        if self.segment_bytes > self._bounds.each_bytes:
            raise _TooMuchError(
                f"it takes more than the {self._bounds.each_bytes:,} bytes that one variable may"
            )

        if self._all_bytes > self._bounds.all_bytes:
            raise _TooMuchError(f"all variables together may take {self._bounds.all_bytes:,} bytes")

        self._file.write(data)
        return size_bytes


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Ends what takes longer; code of the user's that runs meanwhile may wait for ever."""

    def ring(_number: int, _frame: Any) -> None:
        raise _TooMuchError(f"it took longer than {seconds:.3g} s")

    began = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)

        if left:
            # One of the user's goes on, and rings at once if its time has come meanwhile.
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)


# -- what pickle alone cannot do

_Pickler: Any = pickle.Pickler if cloudpickle is None else cloudpickle.Pickler


class _StatePickler(_Pickler):  # type: ignore[misc]
    """Pickles what cells define."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=PROTOCOL)
        # What our functions share their variables by, by its number: made empty, and filled when they are there.
        self._shared: Dict[int, CellType] = {}

    def reducer_override(self, value: Any) -> Any:
        """Says how a value is made again, where pickle has no way of its own."""
        kind = type(value)

        if kind is FunctionType and value.__globals__ is _namespace():
            self._shared.update((id(cell), cell) for cell in value.__closure__ or ())
            return _function(value)

        if kind is _CACHED and getattr(value.__wrapped__, "__globals__", None) is _namespace():
            bounds = value.cache_parameters()
            return cache_again, (value.__wrapped__, bounds["maxsize"], bounds["typed"])

        if kind is CellType and id(value) in self._shared:
            return make_cell, ()

        if kind is ModuleType and sys.modules.get(vars(value).get("__name__")) is value:
            return importlib.import_module, (vars(value)["__name__"],)

        if cloudpickle is not None:
            return super().reducer_override(value)

        if kind is FunctionType and (value.__module__ == _MAIN or "<locals>" in value.__qualname__):
            raise pickle.PicklingError("it is a function that no module holds, and needs cloudpickle")

        if isinstance(value, type) and value.__module__ == _MAIN:
            raise pickle.PicklingError(
                f"the class {value.__qualname__} was defined in a cell, and the template has no cloudpickle"
            )

        return NotImplemented


def _pickler(file: Any) -> Any:
    return _StatePickler(file)


def _namespace() -> Dict[str, Any]:
    return sys.modules[_MAIN].__dict__


def _function(function: Any) -> Tuple[Any, ...]:
    """Its code, and cells that are filled when it is there already: a function can hold itself."""
    closure = function.__closure__ or ()
    state = {
        "defaults": function.__defaults__,
        "kwdefaults": function.__kwdefaults__,
        "qualname": function.__qualname__,
        "module": function.__module__,
        "doc": function.__doc__,
        "annotations": function.__annotations__,
        "attributes": function.__dict__,
        "contents": [(cell, cell.cell_contents) for cell in closure if not _is_empty(cell)],
    }
    code = marshal.dumps(function.__code__)
    made = (sys.version_info[:2], code, function.__name__, closure)
    return make_function, made, state, None, None, fill_function


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True

    return False


def make_function(version: Tuple[int, int], code: bytes, name: str, closure: Tuple[Any, ...]) -> FunctionType:
    """Makes a function in this namespace. Saved states call it by this name: it may not change."""
    if tuple(version) != sys.version_info[:2]:
        raise ValueError(
            f"the function {name} is code of Python {version[0]}.{version[1]}, and this is"
            f" {sys.version_info[0]}.{sys.version_info[1]}"
        )

    return FunctionType(marshal.loads(code), _namespace(), name, None, closure or None)  # noqa: S302


def cache_again(function: Any, maxsize: Optional[int], typed: bool) -> Any:
    """Makes a function with a cache, which is empty. Saved states call it by this name: it may not change."""
    return functools.lru_cache(maxsize, typed)(function)


def make_cell() -> CellType:
    """Makes what functions share their variables by. Saved states call it by this name: it may not change."""
    return CellType()


def fill_function(function: Any, state: Mapping[str, Any]) -> None:
    """Fills a function that `make_function` has made. Saved states call it by this name: it may not change."""
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__qualname__ = state["qualname"]
    function.__module__ = state["module"]
    function.__doc__ = state["doc"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])

    for cell, content in state["contents"]:
        cell.cell_contents = content


# -- back again


class _Segments(io.RawIOBase):
    """A file of which one segment can be read at a time."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._left = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def begin(self, start: int, size_bytes: int) -> None:
        """Lets a segment be read."""
        self._file.seek(start)
        self._left = size_bytes

    def readinto(self, buffer: Any) -> int:
        """Reads what is left of the segment, within the room there is."""
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _load_all(
    file: BinaryIO, segments: Sequence[Segment], without: Mapping[str, str]
) -> Tuple[Dict[str, Any], Optional[str], str]:
    """Reads all but some; returns what was read, and which one failed and why."""
    source = _Segments(file)
    load: Callable[[], Any] = pickle.Unpickler(io.BufferedReader(source, _BUFFER_BYTES)).load  # noqa: S301
    values: Dict[str, Any] = {}
    start = 0

    for segment in segments:
        if segment.name not in without:
            source.begin(start, segment.size_bytes)
            try:
                values[segment.name] = load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                return values, segment.name, reason_of(error)

        start += segment.size_bytes

    return values, None, ""
