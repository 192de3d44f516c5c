"""Transactional executions: what they change stays only if they do well; and what an execution has changed."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from fumehood import CommitRequestEvent, ExecutionFinished, InvalidArgumentError, Limits
from fumehood.portal import call

STATE = "import os; (x, open('f').read(), sorted(os.listdir()))"
BEFORE = "([1], 'one', ['.local', 'f'])"


@pytest.fixture
def kept(sandbox):
    """A sandbox with a variable and a file."""
    assert sandbox.run_code("x = [1]; _ = open('f', 'w').write('one')").error is None
    return sandbox


def test_what_does_well_stays(kept):
    """The execution says so, and nothing of the transaction is left."""
    execution = kept.run_code("x.append(2); _ = open('f', 'w').write('two'); x", transactional=True)
    assert execution.text == "[1, 2]"
    assert execution.transaction.outcome == "committed"
    assert execution.transaction.reason == ""
    assert kept.run_code(STATE).text == "([1, 2], 'two', ['.local', 'f'])"
    assert kept.list_checkpoints() == []


@pytest.mark.parametrize(
    ("end", "reason", "says"),
    [
        ("1 / 0", "error", "division by zero"),
        ("while True: pass", "time_limit", "the state is as it was before"),
        (
            "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass",
            "time_limit",
            "as it was before",
        ),
        ("import os; os._exit(3)", "context_died", "the state is as it was before"),
        ("import sys; sys.exit(1)", "error", "1"),
        ("def f(:", "error", ""),
    ],
)
def test_what_fails_is_undone(kept, end, reason, says):
    """Variables and files are as before, whatever the failure, and the state is not lost."""
    code = f"x.append(2); _ = open('f', 'w').write('two'); _ = open('new', 'w').write('')\n{end}"
    # Only what never ends shall meet its limit.
    seconds = 0.5 if reason == "time_limit" else 60
    execution = kept.run_code(code, transactional=True, timeout=seconds)
    assert execution.transaction.outcome == "rolled_back"
    assert execution.transaction.reason == reason
    assert says in execution.error.value
    assert not execution.state_lost
    assert kept.run_code(STATE).text == BEFORE
    # And again: each has a checkpoint of its own.
    assert kept.run_code(f"x.clear()\n{end}", transactional=True, timeout=seconds).error is not None
    assert kept.run_code(STATE).text == BEFORE


def test_memory_that_runs_out_is_undone(face):
    """The kernel kills the context; what it held is there again."""
    sandbox = face.open(limits=Limits(memory_bytes=300 << 20))
    sandbox.run_code("x = [1]; _ = open('f', 'w').write('one')")
    execution = sandbox.run_code("x.append(2)\nbig = b'x' * (1 << 30)", transactional=True)
    assert execution.transaction.outcome == "rolled_back"
    assert execution.transaction.reason in ("out_of_memory", "error")
    assert sandbox.run_code(STATE).text == BEFORE


def test_a_disk_that_is_full_is_undone(face):
    """What was written to in place gets its content back without any room beside it."""
    sandbox = face.open(limits=Limits(disk_bytes=20 << 20))
    sandbox.run_code(
        "import os\nx = [1]; _ = open('f', 'w').write('one'); _ = open('a', 'wb').write(b'a' * (8 << 20))\n"
        "os.link('a', 'b'); os.chmod('f', 0o400)"
    )
    execution = sandbox.run_code(
        "x.append(2); os.chmod('f', 0o600); _ = open('f', 'w').write('two')\n"
        "_ = open('a', 'wb').write(b'b' * (8 << 20)); file = open('c', 'wb'); file.write(b'c' * (30 << 20))",
        transactional=True,
    )
    assert (execution.transaction.outcome, execution.transaction.reason) == ("rolled_back", "error")
    assert "No space left" in execution.error.value
    look = "len(x), open('f').read(), oct(os.stat('f').st_mode), set(open('a', 'rb').read()), os.stat('b').st_nlink"
    assert sandbox.run_code(look).text == "(1, 'one', '0o100400', {97}, 2)"
    assert (
        sandbox.run_code("os.path.samefile('a', 'b'), os.listdir()").text
        == "(True, ['b', 'a', 'f', '.local'])"
    )


def test_the_caller_decides(kept):
    """It hears what was changed; anything but True undoes it."""
    seen = []

    def decide(changes):
        seen.append(changes)
        return len(seen) > 1

    code = "x.append(2); y = 5; _ = open('f', 'w').write('two')"
    refused = kept.run_code(code, transactional=True, on_commit=decide)
    assert (refused.transaction.outcome, refused.transaction.reason) == ("rolled_back", "refused")
    assert kept.run_code(STATE).text == BEFORE
    committed = kept.run_code(code, transactional=True, on_commit=decide)
    assert committed.transaction.outcome == "committed"
    assert kept.run_code(STATE).text == "([1, 2], 'two', ['.local', 'f'])"

    for changes in seen:
        assert {(one.name, one.kind) for one in changes.variables} == {("x", "changed"), ("y", "added")}
        assert [(one.path, one.kind) for one in changes.files] == [("/home/user/f", "modified")]

    # Code that fails asks nobody.
    kept.run_code("1 / 0", transactional=True, on_commit=decide)
    assert len(seen) == 2


def test_a_caller_who_goes_away_has_not_said_yes(kept):
    """Leaving the stream while the question is open undoes what was done."""
    for event in kept.stream_code(
        "x.append(2)", transactional=True, on_commit=lambda _: pytest.fail("asked")
    ):
        if not isinstance(event, CommitRequestEvent):
            assert not isinstance(event, ExecutionFinished)
            continue

        break

    assert kept.run_code(STATE).text == BEFORE


def test_an_interrupted_transaction_is_undone(face):
    """As any execution it can be interrupted, and it leaves nothing."""
    sandbox = face.open()
    sandbox.run_code("x = [1]; _ = open('f', 'w').write('one')")
    interrupt = sandbox.interrupt if face.is_sync else sandbox.async_impl.interrupt
    execution = sandbox.run_code(
        "x.append(2)\nprint('go')\nimport time\nwhile True: time.sleep(0.01)",
        transactional=True,
        on_stdout=lambda _: interrupt(),
    )
    assert execution.transaction.reason == "interrupted"
    assert sandbox.run_code(STATE).text == BEFORE


def test_what_an_execution_changed_is_reported(kept):
    """Variables by kind, type and size; files by kind and size; nothing when nothing was asked."""
    kept.run_code(
        "import numpy as np, pandas as pd; a = np.zeros(1000); df = pd.DataFrame({'n': [1, 2]}); gone = 1"
    )
    execution = kept.run_code(
        "a[500] = 1; df.loc[0, 'n'] = 9; x.append('s'); del gone; text = 'hi'; os = 0\n"
        "_ = open('new.txt', 'w').write('abc'); import os as _os; _os.remove('f')",
        changes=True,
    )
    assert execution.error is None
    found = {one.name: (one.kind, one.type) for one in execution.changes.variables}
    assert found == {
        "a": ("changed", "ndarray"),
        "df": ("changed", "DataFrame"),
        "x": ("changed", "list"),
        "gone": ("deleted", "int"),
        "text": ("added", "str"),
        "os": ("added", "int"),
    }
    text = next(one for one in execution.changes.variables if one.name == "text")
    assert text.summary == "'hi'"
    assert text.size_bytes > 0
    files = {one.path: (one.kind, one.size_bytes) for one in execution.changes.files}
    assert files == {"/home/user/new.txt": ("created", 3), "/home/user/f": ("deleted", 3)}
    assert kept.run_code("1").changes is None


@pytest.mark.parametrize(
    ("before", "cell"),
    [
        ("v = [[1]]", "v[0].append(2)"),
        ("v = {'a': {'b': 1}}", "v['a']['b'] = 2"),
        ("v = [-1]", "v[0] = -2"),
        ("v = [1]", "v[0] = True"),
        ("from collections import Counter; v = Counter('a')", "v['a'] += 1"),
        ("from collections import deque; v = deque([1])", "v.append(2)"),
        ("class L(list):\n    __iter__ = __len__ = None\nv = L([1])", "list.append(v, 2)"),
        ("class C: pass\nv = C(); v.a = [1]", "v.a.append(2)"),
        ("class C: __slots__ = ('a',)\nv = C(); v.a = 1", "v.a = 2"),
        ("class v: pass", "v.a = 1"),
        ("v = pd.DataFrame({'n': [1, 2], 's': ['x', 'y']})", "v.loc[0, 's'] = 'z'"),
        ("v = pd.DataFrame({'n': [1, 2], 's': ['x', 'y']})", "v.loc[0, 'n'] = 3"),
        ("v = pd.DataFrame({'n': [1, 2], 's': ['x', 'y']})", "v['m'] = 1"),
        ("v = pd.DataFrame({'n': [1, 2], 's': ['x', 'y']})", "v.columns = ['n', 't']"),
        ("v = pd.DataFrame({'c': pd.Categorical(['x', 'y'])})", "v.loc[0, 'c'] = 'y'"),
        ("v = pd.Series([1, None], dtype='Int64')", "v[0] = 2"),
        ("v = {'table': np.zeros(9)}", "v['table'][3] = 1"),
        ("v = np.zeros((400, 400))[::2, ::3]", "v[:, :] = 1"),
        ("v = 0.0", "v = -v"),
        # Whatever comes where something was let go of has its address, and often its size.
        ("v = np.float64(1.5)", "v = v + 1; v = v * 2"),
        ("v = 'a' * 100_000", "v = v.upper(); v = v.replace('A', 'b')"),
        ("v = b'a' * 1_000_000", "v = v.upper(); v = v.replace(b'A', b'b')"),
        ("v = 3 ** 4000", "v = v ^ 1; v = v ^ 2"),
        ("from decimal import Decimal; v = Decimal(1) / 3", "v = v + v; v = v * v"),
        ("day = pd.Timedelta(days=1); v = pd.Timestamp('2020-01-01')", "v = v + day; v = v + day"),
        ("import pathlib; v = pathlib.Path('a')", "v = v / 'b'; v = v / 'c'"),
    ],
)
def test_what_changed_inside_is_reported(sync_face, before, cell):
    """Not only that another object has a name: what it holds, and what that holds; nothing else is named."""
    sandbox = sync_face.open()
    assert sandbox.run_code(f"import pandas as pd, numpy as np\n{before}").error is None
    told = [sandbox.run_code(code, changes=True) for code in ("v; repr(1)", cell)]
    assert [[(one.kind, one.name) for one in each.changes.variables] for each in told] == [
        [],
        [("changed", "v")],
    ]
    assert [each.error for each in told] == [None, None]


def test_looking_for_changes_runs_no_code_of_the_users(kept):
    """Hostile methods are not called, and a great many variables take a bounded time."""
    kept.run_code(
        """
class Trap:
    def __getattribute__(self, name): raise SystemExit(1)
    def __repr__(self): raise SystemExit(2)
    def __eq__(self, other): raise SystemExit(3)
    def __hash__(self): raise SystemExit(4)
    def __sizeof__(self): raise SystemExit(5)
    __len__ = __iter__ = __reduce__ = __repr__
trap = Trap(); traps = [Trap() for _ in range(10)]; inside = {'t': Trap()}
class Meta(type):
    @property
    def __name__(cls): raise SystemExit(6)
class Odd(metaclass=Meta): pass
class ndarray:
    __module__ = 'numpy'
    def reshape(self, *shape): raise SystemExit(7)
    shape = property(reshape)
class Name(str):
    def __str__(self): raise SystemExit(8)
    __hash__ = __eq__ = __str__
class Elsewhere:
    __module__ = Trap()
    @property
    def __dict__(self): raise SystemExit(9)
Elsewhere.__name__ = Name('Elsewhere')
class Full(dict):
    def items(self): raise SystemExit(10)
    __iter__ = __len__ = __getitem__ = items
import numpy, pandas
class Title:
    def __repr__(self): raise SystemExit(11)
liar, elsewhere, full = ndarray(), Elsewhere(), Full(a=1)
titled = numpy.zeros(2, dtype=[((Title(), 'a'), int)])
for i in range(20_000): globals()[f'v{i}'] = object()
big = 1 << 1_000_000
"""
    )
    execution = kept.run_code(
        "traps.append(Trap()); other = Odd(); more = 1 << 2_000_000; liar = ndarray(); elsewhere = Elsewhere()\n"
        "dict.update(full, b=2); nameless = eval('type(str(), (), {})()', {})\n"
        "reduced = pandas.Series(); reduced._mgr = 0; titled['a'] = 1",
        changes=True,
    )
    assert execution.error is None
    found = {one.name: one for one in execution.changes.variables}
    assert {"other", "more", "liar", "elsewhere", "full", "nameless", "reduced", "titled"} <= set(found)
    assert found["more"].summary == "an integer of 2,000,001 bits"
    assert found["other"].type == "Odd"


def test_who_puts_a_class_of_their_own_in_the_place_of_a_library_s_is_not_waited_for(kept):
    """What it does when it is looked at, it does to its own report alone."""
    kept.run_code(
        "import numpy, sys\nclass ndarray:\n    __module__ = 'numpy'\n    dtype = property(lambda self: sys.exit())\n"
        "numpy.ndarray = ndarray; odd = ndarray()"
    )
    execution = kept.run_code("y = 1", changes=True, timeout=20)
    assert execution.error is None
    assert kept.run_code("y").text == "1"


def test_modules_are_not_looked_into(kept):
    """An error leaves its mark in `sys`, which is no variable of the user's that has changed."""
    kept.run_code("import sys, os")
    execution = kept.run_code("os.environ['A'] = 'b'; y = 1; 1 / 0", changes=True)
    assert [one.name for one in execution.changes.variables] == ["y"]


def test_a_look_for_changes_survives_threads(kept):
    """Another thread may change what is looked at, at any moment."""
    kept.run_code(
        """
import threading
busy = {n: n for n in range(500)}
stop = False
def change():
    while not stop:
        for n in range(500, 900): busy[n] = n
        for n in range(500, 900): del busy[n]
thread = threading.Thread(target=change, daemon=True); thread.start()
"""
    )

    for _ in range(30):
        assert kept.run_code("x.append(1)", changes=True, timeout=20).error is None

    kept.run_code("stop = True; thread.join()")


def test_a_cancelled_caller_at_any_moment_leaves_nothing(kept):
    """A transaction that is cancelled is undone, wherever it was, unless it was done already; never half of it."""
    processes = kept.get_metrics().processes

    async def give_up(events):
        code = "x.append(2); _ = open('f', 'w').write('two')"
        async_impl = kept._async if hasattr(kept, "_async") else kept.async_impl
        task = asyncio.ensure_future(async_impl.run_code(code, transactional=True))

        for _ in range(events):
            await asyncio.sleep(0)

        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    was_cancelled = []

    for events in (*range(0, 40, 4), 200, 1000, 5000):
        was_cancelled.append(call(lambda events=events: give_up(events)))

        if not was_cancelled[-1]:
            break

        found = kept.run_code(STATE, timeout=10).text

        if found != BEFORE:
            # It was done when its caller gave up: all of it, or nothing.
            assert found == "([1, 2], 'two', ['.local', 'f'])"
            break

    assert True in was_cancelled
    assert kept.list_checkpoints() == []
    kept.run_code("1")
    # The last one that was killed may be on its way.
    until(lambda: kept.get_metrics().processes <= processes)


def test_a_cancelled_caller_on_a_paused_transaction_does_not_wait(kept):
    """It is undone when the sandbox goes on; whoever comes next waits for that."""
    async_impl = kept._async if hasattr(kept, "_async") else kept.async_impl

    async def pause_and_give_up():
        began = asyncio.Event()
        code = "x.append(2); print('go', flush=True)\nimport time; time.sleep(60)"
        task = asyncio.ensure_future(
            async_impl.run_code(code, transactional=True, on_stdout=lambda _text: began.set())
        )
        await began.wait()
        await async_impl.pause()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=30)
        await async_impl.resume()
        return bool(done)

    assert call(pause_and_give_up)
    assert kept.run_code(STATE).text == BEFORE


def test_tools_and_questions_within_a_transaction(kept):
    """What they did outside stays done; what the code made of it is undone."""
    asked = []
    execution = kept.run_code(
        "x.append(ask(n=1)); input(); 1 / 0",
        transactional=True,
        tools={"ask": lambda n: asked.append(n) or n},
        on_input=lambda _prompt: "line",
    )
    assert (execution.transaction.reason, len(execution.tool_calls), asked) == ("error", 1, [1])
    assert kept.run_code(STATE).text == BEFORE
    assert kept.run_code("ask(n=2)", tools={"ask": lambda n: n + 1}).text == "3"


def test_what_makes_no_sense_is_refused(kept):
    """Before anything runs."""
    with pytest.raises(InvalidArgumentError):
        kept.run_code("1", language="javascript", transactional=True)

    with pytest.raises(InvalidArgumentError):
        kept.run_code("1", on_commit=lambda _: True)
