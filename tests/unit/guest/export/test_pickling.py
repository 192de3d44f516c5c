"""Variables as bytes and back, within bounds: what serialises is found by trying, and what is shared stays shared."""

from __future__ import annotations

import fnmatch
import importlib
import signal
import sys
import tempfile
import types

import pytest

from fumehood_guest.export import pickling
from fumehood_guest.export.pickling import Bounds, pickle_variables, unpickle_variables

BOUNDS = Bounds(1 << 20, 1 << 22, 5.0, 20.0)


class Fails:
    def __reduce__(self):
        raise ValueError("never")


class Waits:
    def __reduce__(self):
        signal.pause()
        return int, ()


class Exits:
    def __reduce__(self):
        raise SystemExit(3)


class ComesBackNever:
    def __reduce__(self):
        return int, ("no number",)


@pytest.fixture
def main(monkeypatch):
    """A namespace of cells."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module.__dict__


def cells(namespace, source):
    exec(source, namespace)
    return {name: value for name, value in namespace.items() if not name.startswith("__")}


def there_and_back(variables, bounds=BOUNDS):
    """Pickles, and unpickles into a namespace of its own."""
    with tempfile.TemporaryFile() as file:
        kept = pickle_variables(variables, file, bounds)
        found = {}
        missing = unpickle_variables(file, kept.segments, found)
        file.seek(0, 2)
        assert file.tell() == sum(segment.size_bytes for segment in kept.segments)
        return found, kept.left_out, missing


def test_functions_of_modules_stay_theirs():
    """With a cache or without."""
    found, left_out, _ = there_and_back({"cached": fnmatch._compile_pattern, "plain": fnmatch.fnmatch})
    assert left_out == {}
    assert found == {"cached": fnmatch._compile_pattern, "plain": fnmatch.fnmatch}


def test_what_is_shared_stays_shared():
    """Also around what fails, wherever it comes."""
    shared = [1]
    loop = [shared]
    loop.append(loop)
    found, left_out, missing = there_and_back(
        {
            "a": shared,
            "bad": [shared, Fails()],
            "b": {"x": shared},
            "exits": Exits(),
            "loop": loop,
            "worse": Fails(),
        }
    )
    assert set(left_out) == {"bad", "exits", "worse"}
    assert left_out["bad"] == "ValueError: never"
    assert missing == {}
    assert found["a"] is found["b"]["x"] is found["loop"][0]
    assert found["loop"][1] is found["loop"]


def test_many_that_fail_are_found_in_one_look():
    """Not one by one, from the beginning each time."""
    variables = {
        f"{kind}{n}": Fails() if kind == "bad" else n for n in range(200) for kind in ("bad", "good")
    }
    found, left_out, _ = there_and_back(variables)
    assert len(found) == len(left_out) == 200
    assert found["good7"] == 7


def test_what_fails_to_come_back_takes_along_only_what_needs_it():
    """And nobody finds the half that was made."""
    inner = [1, 2]
    found, left_out, missing = there_and_back(
        {"first": 1, "bad": [inner, ComesBackNever()], "needs": [inner], "last": [5]}
    )
    assert left_out == {}
    assert set(missing) == {"bad", "needs"}
    assert found == {"first": 1, "last": [5]}


def test_bounds_hold():
    """Of one variable, of all, and of time; what was there before is there afterwards."""
    before = signal.getsignal(signal.SIGALRM)
    is_timed = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    small = Bounds(1000, 1500, 0.05, 20.0)
    variables = {
        "large": b"x" * 2000,
        "one": b"1" * 900,
        "two": b"2" * 900,
        "waits": Waits(),
        "three": b"3" * 100,
    }
    found, left_out, _ = there_and_back(variables, small)
    assert set(found) == {"one", "three"}
    assert "one variable may" in left_out["large"]
    assert "all variables together" in left_out["two"]
    assert "longer than" in left_out["waits"]
    assert signal.getsignal(signal.SIGALRM) is before
    # The timer of the test runner itself goes on.
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) is is_timed


def test_when_time_is_over_what_is_written_is_kept():
    """And the rest is told."""
    found, left_out, _ = there_and_back({"a": 1, "waits": Waits(), "b": 2}, Bounds(1000, 1000, 9.0, 0.05))
    assert found == {"a": 1}
    assert set(left_out) == {"waits", "b"}
    assert "no time left" in left_out["b"]


SOURCE = """
factor = 2
def double(n, by=None, *, more=0):
    "Doubles."
    return n * factor + more
double.tag = "mine"
def outer():
    seen = []
    def note(n):
        seen.append(n)
        return note
    return note, lambda: seen
note, seen = outer()
note(1)
import functools
@functools.lru_cache(maxsize=3)
def fibonacci(n): return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
del functools
"""


@pytest.mark.parametrize("has_cloudpickle", [True, False])
def test_functions_live_in_the_namespace_again(main, monkeypatch, has_cloudpickle):
    """With what they close over, their defaults and their globals; this needs nothing but the standard library."""
    if not has_cloudpickle:
        monkeypatch.setitem(sys.modules, "cloudpickle", None)

    module = importlib.reload(pickling)
    try:
        assert (module.pickled_by() == "pickle") is not has_cloudpickle
        variables = cells(main, SOURCE)

        with tempfile.TemporaryFile() as file:
            kept = module.pickle_variables(variables, file, BOUNDS)
            main["factor"] = 10
            main["double"] = main["note"] = main["seen"] = main["fibonacci"] = None
            assert module.unpickle_variables(file, kept.segments, main) == {}

        assert kept.left_out == {}
        assert main["double"](3, more=1) == 7
        main["factor"] = 100
        assert main["double"](3) == 300
        assert main["fibonacci"](10) == 55
        assert main["fibonacci"].cache_info().maxsize == 3
        assert main["double"].__doc__ == "Doubles."
        assert main["double"].tag == "mine"
        assert main["note"](2) is main["note"]
        assert main["seen"]() == [1, 2]
    finally:
        monkeypatch.undo()
        importlib.reload(pickling)


def test_without_cloudpickle_classes_of_cells_are_left_out(main, monkeypatch):
    """It says why."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    module = importlib.reload(pickling)
    try:
        variables = cells(main, "class Point: pass\npoint = Point()\nplain = 1")

        with tempfile.TemporaryFile() as file:
            kept = module.pickle_variables(variables, file, BOUNDS)

        assert [segment.name for segment in kept.segments] == ["plain"]
        assert "Point was defined in a cell" in kept.left_out["point"]
    finally:
        monkeypatch.undo()
        importlib.reload(pickling)


def test_code_of_another_python_is_refused(main):
    """Its bytes would mean something else."""
    with pytest.raises(ValueError, match=r"Python 3\.0"):
        pickling.make_function((3, 0), b"", "f", ())


def test_reasons_are_bounded():
    """And an error whose text fails has a name still."""

    class Sly(Exception):
        def __str__(self):
            raise RuntimeError

    assert pickling.reason_of(Sly()) == "Sly"
    assert len(pickling.reason_of(ValueError("x" * 10_000))) <= 300
