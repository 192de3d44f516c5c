"""Going back and forks, against a model: random cells, checkpoints and so on, and after each step a look at everything.

The model is plain Python: what variables and files should be, copied at each checkpoint. FUMEHOOD_MODEL_SEQUENCES sets
how many sequences are tried; without it as many as a run of the tests has time for.
"""

from __future__ import annotations

import ast
import copy
import os
import random
from typing import Any

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fumehood import Limits, Sandbox

SEQUENCES = int(os.environ.get("FUMEHOOD_MODEL_SEQUENCES", "0"))
PATHS = ("a", "b", "d/a", "d/e/a")
FOLDERS = ("d", "d/e", "g")
HANDLES = ("h0", "h1")
MAX_CHECKPOINTS = 5
MAX_GENERATION = 8
LIMITS = Limits(grace_seconds=0.5)

# Each sequence begins so, in a context and with files of its own.
BEGIN = """
import os, shutil, random, numpy as np
for name in os.listdir():
    shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.remove(name)
def count():
    for number in range(10_000):
        yield number
number, items, array, numbers, handles, draws = 0, [], np.zeros(4, dtype=int), count(), {}, []
random.seed(5)
def seen():
    files = {}
    for folder, folders, names in os.walk('.'):
        for name in folders:
            files[os.path.relpath(os.path.join(folder, name))] = None
        for name in names:
            path = os.path.relpath(os.path.join(folder, name))
            files[path] = open(path).read()
    rest = numbers.gi_frame.f_locals.get('number', -1)
    return (number, items, array.tolist(), rest, draws, sorted(handles), files)
"""
LOOK = "seen()"

paths = strategies.sampled_from(PATHS)
folders = strategies.sampled_from(FOLDERS)
handles = strategies.sampled_from(HANDLES)
texts = strategies.text("xyz", min_size=1, max_size=3)
FAILURES = {
    "1 / 0": "error",
    "import os; os._exit(1)": "context_died",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "context_died",
    "import sys; sys.exit(1)": "error",
    "raise KeyboardInterrupt": "error",
    "while True: pass": "time_limit",
}


class World:
    """What the sandbox should hold."""

    def __init__(self) -> None:
        self.number = 0
        self.items: list[int] = []
        self.array = [0, 0, 0, 0]
        self.generated = -1
        self.random = random.Random(5)
        self.draws: list[float] = []
        # Content by path, None for a folder; and the paths of open handles by their names.
        self.files: dict[str, str | None] = {}
        self.handles: dict[str, str] = {}

    def has_folder_of(self, path: str) -> bool:
        """Whether something can be made there."""
        folder = os.path.dirname(path)
        return not folder or (folder in self.files and self.files[folder] is None)

    def is_open(self, path: str) -> bool:
        """Whether a handle leads to what lies there, or below."""
        return any(one == path or one.startswith(f"{path}/") for one in self.handles.values())

    def below(self, path: str) -> list[str]:
        """What lies in a folder, at any depth."""
        return [one for one in self.files if one.startswith(f"{path}/")]


class Change:
    """A cell, and what it does to the model."""

    def __init__(self, code: str, apply: Any) -> None:
        self.code = code
        self.apply = apply


@strategies.composite
def changes(draw: Any) -> Any:
    """Draws a change as a function of the world: what makes no sense there changes nothing."""
    kind = draw(strategies.sampled_from((*KINDS, *ON_FILES, *ON_FILES)))
    return KINDS[kind], draw(paths), draw(paths), draw(folders), draw(handles), draw(texts)


def set_number(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change:
    """Another object under the same name."""
    return Change("number += 7", lambda w: setattr(w, "number", w.number + 7))


def append(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change:
    """A list is changed in place."""
    return Change(f"items.append({len(text)})", lambda w: w.items.append(len(text)))


def fill(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change:
    """An array is changed in place."""

    def apply(w: World) -> None:
        w.array[len(text)] += 1

    return Change(f"array[{len(text)}] += 1", apply)


def advance(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change:
    """A generator goes on."""
    return Change("_ = next(numbers)", lambda w: setattr(w, "generated", w.generated + 1))


def draw_number(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change:
    """The random state goes on, which no fork may disturb."""
    return Change("draws.append(random.random())", lambda w: w.draws.append(w.random.random()))


def write(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A file is made, or written anew; never under an open handle, whose place would make the model long."""
    if not world.has_folder_of(path) or world.is_open(path):
        return None

    return Change(
        f"with open({path!r}, 'w') as file: _ = file.write({text!r})", lambda w: w.files.update({path: text})
    )


def extend(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A file is appended to."""
    if world.files.get(path) is None or world.is_open(path):
        return None

    return Change(
        f"with open({path!r}, 'a') as file: _ = file.write({text!r})",
        lambda w: w.files.update({path: w.files[path] + text}),
    )


def remove(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A file is deleted."""
    if world.files.get(path) is None or world.is_open(path):
        return None

    return Change(f"os.remove({path!r})", lambda w: w.files.pop(path))


def rename(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A file takes another name, and perhaps another file's place."""
    if world.files.get(path) is None or not world.has_folder_of(other) or path == other:
        return None

    if world.is_open(path) or world.is_open(other):
        return None

    return Change(f"os.rename({path!r}, {other!r})", lambda w: w.files.update({other: w.files.pop(path)}))


def make_folder(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A directory is made."""
    if folder in world.files or not world.has_folder_of(folder):
        return None

    return Change(f"os.mkdir({folder!r})", lambda w: w.files.update({folder: None}))


def remove_folder(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A directory goes with all that is in it, or is replaced by a file."""
    if folder not in world.files or world.is_open(folder):
        return None

    def apply(w: World) -> None:
        for one in [*w.below(folder), folder]:
            del w.files[one]

        if text == "x":
            w.files[folder] = text

    instead = f"; open({folder!r}, 'w').write('x')" if text == "x" else ""
    gone = f"shutil.rmtree({folder!r})" if world.files[folder] is None else f"os.remove({folder!r})"
    return Change(f"{gone}{instead}", apply)


def open_handle(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """A file is opened to be written to, and stays open."""
    if handle in world.handles or not world.has_folder_of(path) or world.is_open(path):
        return None

    def apply(w: World) -> None:
        w.files[path] = w.files.get(path) or ""
        w.handles[handle] = path

    # Buffered by lines: what is written is there.
    return Change(f"handles[{handle!r}] = open({path!r}, 'a', buffering=1)", apply)


def write_handle(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """What is open is written to."""
    if handle not in world.handles:
        return None

    place = world.handles[handle]
    return Change(
        f"_ = handles[{handle!r}].write({text!r} + '\\n')",
        lambda w: w.files.update({place: f"{w.files[place]}{text}\n"}),
    )


def close_handle(world: World, path: str, other: str, folder: str, handle: str, text: str) -> Change | None:
    """What was open is closed."""
    if handle not in world.handles:
        return None

    return Change(f"handles.pop({handle!r}).close()", lambda w: w.handles.pop(handle))


KINDS = {
    one.__name__: one
    for one in (
        set_number,
        append,
        fill,
        advance,
        draw_number,
        write,
        extend,
        remove,
        rename,
        make_folder,
        remove_folder,
        open_handle,
        write_handle,
        close_handle,
    )
}

# Where most can go wrong is drawn more often.
ON_FILES = ("write", "extend", "remove", "rename")


class TimeTravel(RuleBasedStateMachine):
    """Steps that a caller may take, in any order."""

    sandbox: Sandbox
    # Whether it is what it was: a fork may have taken its place in the sequence before.
    is_first = True

    @initialize()
    def begin(self) -> None:
        """A fresh context, no files, no checkpoints."""
        if not self.is_first:
            self.sandbox.kill()
            TimeTravel.sandbox, TimeTravel.is_first = Sandbox(limits=LIMITS), True

        self.generation = 0

        for checkpoint in self.sandbox.list_checkpoints():
            self.sandbox.drop_checkpoint(checkpoint)

        self.sandbox.restart_code_context("default")
        self.world = World()
        self._run(BEGIN)
        self._run(
            f"os.makedirs('d/e')\nfor path in {PATHS}:\n    with open(path, 'w') as file: _ = file.write(path)"
        )
        self.world.files = {"d": None, "d/e": None, **{path: path for path in PATHS}}
        self.kept: dict[str, World] = {}
        self.names = 0

    @rule(drawn=strategies.lists(changes(), min_size=1, max_size=4))
    def cell(self, drawn: list[Any]) -> None:
        """Code changes variables and files."""
        self._run(self._apply(self.world, drawn))

    @rule(drawn=strategies.lists(changes(), min_size=1, max_size=3))
    def transaction_that_stays(self, drawn: list[Any]) -> None:
        """Code that does well changes them too."""
        execution = self.sandbox.run_code(self._apply(self.world, drawn), transactional=True)
        assert execution.error is None
        assert execution.transaction.outcome == "committed"

    @rule(
        drawn=strategies.lists(changes(), min_size=1, max_size=3),
        end=strategies.sampled_from(tuple(FAILURES)),
    )
    def transaction_that_fails(self, drawn: list[Any], end: str) -> None:
        """Code that fails changes nothing, however it fails."""
        code = self._apply(copy.deepcopy(self.world), drawn)
        execution = self.sandbox.run_code(
            f"{code}\n{end}", transactional=True, timeout=0.1 if "while" in end else 30
        )
        assert (execution.transaction.outcome, execution.transaction.reason) == ("rolled_back", FAILURES[end])
        assert not execution.state_lost

    @rule(drawn=strategies.lists(changes(), min_size=1, max_size=3))
    def transaction_that_is_refused(self, drawn: list[Any]) -> None:
        """The caller says no."""
        code = self._apply(copy.deepcopy(self.world), drawn)
        execution = self.sandbox.run_code(code, transactional=True, on_commit=lambda _: False)
        assert execution.transaction.reason == "refused"

    @precondition(lambda self: len(self.kept) < MAX_CHECKPOINTS)
    @rule()
    def checkpoint(self) -> None:
        """A point to go back to."""
        self.names += 1
        info = self.sandbox.checkpoint(f"c{self.names}")
        assert info.left_behind == ()
        self.kept[f"c{self.names}"] = copy.deepcopy(self.world)

    @precondition(lambda self: self.kept)
    @rule(data=strategies.data())
    def go_back(self, data: Any) -> None:
        """Everything is as it was at one of them."""
        self._return_to(data)

    @precondition(lambda self: self.kept)
    @rule(
        data=strategies.data(),
        ways=strategies.lists(strategies.lists(changes(), min_size=3, max_size=8), min_size=3, max_size=3),
    )
    def try_ways(self, data: Any, ways: list[list[Any]]) -> None:
        """Several ways from one point, each of which begins with what the one before has put back."""
        name = data.draw(strategies.sampled_from(sorted(self.kept)))

        for drawn in ways:
            self.sandbox.rollback(name)
            self.world = copy.deepcopy(self.kept[name])
            self.is_as_the_model_says()
            self._run(self._apply(self.world, drawn))

    @precondition(lambda self: self.kept)
    @rule(data=strategies.data())
    def drop(self, data: Any) -> None:
        """A point less."""
        name = data.draw(strategies.sampled_from(sorted(self.kept)))
        self.sandbox.drop_checkpoint(name)
        del self.kept[name]

    @rule(
        data=strategies.data(),
        mine=strategies.lists(changes(), min_size=1, max_size=4),
        own=strategies.lists(changes(), min_size=1, max_size=4),
    )
    def fork(self, data: Any, mine: list[Any], own: list[Any]) -> None:
        """A fork goes on from here or from a point, and neither sees what the other does."""
        name = data.draw(strategies.sampled_from(("", *sorted(self.kept))))
        world = copy.deepcopy(self.kept[name] if name else self.world)

        with self.sandbox.fork(checkpoint=name or None, reseed=False) as child:
            assert child.left_behind == ()
            self._compare(child, world)
            self._run(self._apply(self.world, mine))
            assert child.run_code(self._apply(world, own)).error is None
            self._compare(child, world)

    @precondition(lambda self: self.generation < MAX_GENERATION)
    @rule(drawn=strategies.lists(changes(), min_size=1, max_size=4))
    def go_on_in_a_fork(self, drawn: list[Any]) -> None:
        """A fork takes the place of what it was forked from, without its points."""
        child = self.sandbox.fork(reseed=False)
        self.sandbox.adopt(child)
        TimeTravel.is_first = False
        self.generation += 1
        self.kept.clear()
        self._run(self._apply(self.world, drawn))

    @precondition(lambda self: self.kept)
    @rule(data=strategies.data(), by=strategies.sampled_from(("restart", "crash")))
    def lose_the_context(self, data: Any, by: str) -> None:
        """The context is gone, the files stay, and a checkpoint brings both to where they were."""
        if by == "restart":
            self.sandbox.restart_code_context("default")
        else:
            assert self.sandbox.run_code("import os; os._exit(1)").state_lost

        self._return_to(data)

    @invariant()
    def is_as_the_model_says(self) -> None:
        """A look at everything."""
        if not hasattr(self, "world"):
            return

        self._compare(self.sandbox, self.world)
        assert {one.name for one in self.sandbox.list_checkpoints()} == set(self.kept)

    # -- inside

    @staticmethod
    def _compare(sandbox: Sandbox, world: World) -> None:
        found = ast.literal_eval(sandbox.run_code(LOOK).text or "")
        number, items, array, generated, draws, names, files = found
        files.pop(".local", None)
        assert (number, items, array) == (world.number, world.items, world.array)
        assert (generated, draws) == (world.generated, world.draws)
        assert (names, files) == (sorted(world.handles), world.files)

    def _return_to(self, data: Any) -> None:
        name = data.draw(strategies.sampled_from(sorted(self.kept)))
        self.sandbox.rollback(name)
        self.world = copy.deepcopy(self.kept[name])

    def _apply(self, world: World, drawn: list[Any]) -> str:
        """Applies changes to the model, and returns the code that does the same."""
        lines = ["pass"]

        for make, *arguments in drawn:
            change = make(world, *arguments)

            if change is not None:
                change.apply(world)
                lines.append(change.code)

        return "\n".join(lines)

    def _run(self, code: str) -> None:
        execution = self.sandbox.run_code(code)
        assert execution.error is None, execution.error


def test_a_sandbox_is_what_the_model_says() -> None:
    """Whatever is done to it, and wherever it goes back to."""
    TimeTravel.sandbox = Sandbox(limits=LIMITS)
    run_state_machine_as_test(
        TimeTravel,
        settings=settings(
            max_examples=SEQUENCES or 8,
            stateful_step_count=30,
            deadline=None,
            derandomize=not SEQUENCES,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert TimeTravel.sandbox.get_metrics().processes < 20
    TimeTravel.sandbox.kill()
