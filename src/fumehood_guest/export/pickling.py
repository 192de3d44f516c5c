"""Variables as bytes and back: all serialisable ones in one stream, so that shared objects stay shared.

Runs in a context, between two cells, when its sandbox is saved or loaded; the only place of ours that pickles. Each
variable is a segment of its own with a memo common to all, and protocol 3 numbers the entries of that memo: a segment
can be left out, and a variable that needs an object in it then fails instead of finding the wrong object. Whether a
variable serialises is found by trying, within bounds of size and time. Functions of the cells are stored as code and
bound to the namespace again; classes of the cells need cloudpickle in the template.
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


class Pickled(NamedTuple):
    """The result of pickling: the variables in the stream, and the reason for each one that is not."""

    segments: List[Segment]
    left_out: Dict[str, str]


class Bounds(NamedTuple):
    """Bounds for one variable, and for all of them."""

    each_bytes: int
    all_bytes: int
    each_seconds: float
    all_seconds: float


class _TooMuchError(Exception):
    """A bound was exceeded; the message names it."""


def pickled_by() -> str:
    """Returns the name and version of the pickler."""
    return "pickle" if cloudpickle is None else f"cloudpickle {cloudpickle.__version__}"


def reason_of(error: BaseException) -> str:
    """Returns a bounded reason for a failure. The text is the user's, and computing it can fail as well."""
    try:
        text = str(error)
    except Exception:
        text = ""

    name = "" if isinstance(error, _TooMuchError) else type(error).__name__
    return ": ".join(part for part in (name, text) if part)[:_MAX_REASON_CHARACTERS]


def pickle_variables(variables: Mapping[str, Any], file: BinaryIO, bounds: Bounds) -> Pickled:
    """Writes those of `variables` that can be serialised to an empty file."""
    return _Attempt(variables, file, bounds).carry_out()


def unpickle_variables(
    file: BinaryIO, segments: Sequence[Segment], namespace: Dict[str, Any]
) -> Dict[str, str]:
    """Sets variables from a file that `pickle_variables` has written; returns the reasons for those that failed."""
    missing: Dict[str, str] = {}

    while True:
        values, failed, reason = _load_all(file, segments, missing)

        if failed is None:
            namespace.update(values)
            return missing

        # Other variables must not refer to its half-built objects: everything is read again without it.
        missing[failed] = reason

        if len(missing) > _MOST_RELOADS:
            unread = "it was not tried: too many others could not be read"
            return {**{one.name: unread for one in segments}, **missing}


class _Attempt:
    """Finds which variables serialise, and writes them."""

    def __init__(self, variables: Mapping[str, Any], file: BinaryIO, bounds: Bounds) -> None:
        self._variables = variables
        self._file = file
        self._bounds = bounds
        self._deadline = time.monotonic() + bounds.all_seconds
        self._left_out: Dict[str, str] = {}

    def carry_out(self) -> Pickled:
        tries = 0

        while True:
            segments, failed = self._write([name for name in self._variables if name not in self._left_out])

            if failed is None:
                return Pickled(segments, self._left_out)

            tries += 1

            if tries == _TRIES_OF_ALL:
                self._try_each()

            if time.monotonic() > self._deadline:
                return self._stop(segments)

    def _stop(self, segments: List[Segment]) -> Pickled:
        """Keeps the segments written before the time limit: no segment needs a later one."""
        self._file.truncate(sum(segment.size_bytes for segment in segments))
        written = {segment.name for segment in segments}

        for name in self._variables:
            if name not in written:
                self._left_out.setdefault(name, "there was no time left to look at it")

        return Pickled(segments, self._left_out)

    def _write(self, names: Sequence[str]) -> Tuple[List[Segment], Optional[str]]:
        """Writes the variables up to the first that fails, whose name it records and returns."""
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
        """Finds the variables that fail on their own, so that the next attempts do not fail on one after the other."""
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
    """A file that discards its content."""

    def write(self, data: Any) -> int:
        """Accepts and discards data."""
        return len(data)


class _Counted:
    """A file with a bound on the bytes written."""

    def __init__(self, file: Any, bounds: Bounds) -> None:
        self._file = file
        self._bounds = bounds
        self._all_bytes = 0
        self.segment_bytes = 0

    def begin(self) -> None:
        """Restarts the count of bytes for the next variable."""
        self.segment_bytes = 0

    def write(self, data: Any) -> int:
        """Writes, or raises if a bound is exceeded."""
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
    """Raises _TooMuchError in the block after `seconds`, since user code that runs in it may never return."""

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
            # A timer of the user is restored, and fires at once if it expired meanwhile.
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)


# -- beyond pickle

_Pickler: Any = pickle.Pickler if cloudpickle is None else cloudpickle.Pickler


class _StatePickler(_Pickler):  # type: ignore[misc]
    """A pickler for objects that cells define."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=PROTOCOL)
        # The closure cells of our functions, by id: created empty, and filled once the functions exist.
        self._shared: Dict[int, CellType] = {}

    def reducer_override(self, value: Any) -> Any:
        """Returns how to rebuild a value, where pickle itself cannot."""
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
    """Returns a function's code, and cells to be filled once it exists: a function can refer to itself."""
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
    """Makes a function in this namespace. Saved states refer to this name: it must not change."""
    if tuple(version) != sys.version_info[:2]:
        raise ValueError(
            f"the function {name} is code of Python {version[0]}.{version[1]}, and this is"
            f" {sys.version_info[0]}.{sys.version_info[1]}"
        )

    return FunctionType(marshal.loads(code), _namespace(), name, None, closure or None)  # noqa: S302


def cache_again(function: Any, maxsize: Optional[int], typed: bool) -> Any:
    """Makes a function with an empty cache. Saved states refer to this name: it must not change."""
    return functools.lru_cache(maxsize, typed)(function)


def make_cell() -> CellType:
    """Makes an empty closure cell. Saved states refer to this name: it must not change."""
    return CellType()


def fill_function(function: Any, state: Mapping[str, Any]) -> None:
    """Fills a function made by `make_function`. Saved states refer to this name: it must not change."""
    function.__defaults__ = state["defaults"]
    function.__kwdefaults__ = state["kwdefaults"]
    function.__qualname__ = state["qualname"]
    function.__module__ = state["module"]
    function.__doc__ = state["doc"]
    function.__annotations__ = state["annotations"]
    function.__dict__.update(state["attributes"])

    for cell, content in state["contents"]:
        cell.cell_contents = content


# -- unpickling


class _Segments(io.RawIOBase):
    """A file that is read one segment at a time."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._left = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def begin(self, start: int, size_bytes: int) -> None:
        """Selects the bytes of the variable to read next."""
        self._file.seek(start)
        self._left = size_bytes

    def readinto(self, buffer: Any) -> int:
        """Reads from the current segment, up to the size of the buffer."""
        data = self._file.read(min(len(buffer), self._left))
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _load_all(
    file: BinaryIO, segments: Sequence[Segment], without: Mapping[str, str]
) -> Tuple[Dict[str, Any], Optional[str], str]:
    """Reads all segments except the skipped ones; returns the values, and the segment that failed with the reason."""
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
