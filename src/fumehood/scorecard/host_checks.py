"""Checks that the host makes itself: use the file interface, start and end sandboxes, count connections.

Runs in the user's process. Each check tests one row in one column and returns the successful attacks; a column without
the feature raises NotApplicableError. No attempt harms the machine where it succeeds.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from fumehood.bounds import MIB
from fumehood.errors import FileError, FumehoodError, InvalidArgumentError
from fumehood.scorecard import probes
from fumehood.scorecard.places import AttackTarget, ProgramPlace, SandboxPlace
from fumehood.scorecard.scene import AttackFixtures, Column
from fumehood.values.limits import Limits
from fumehood.values.template import Template

HostCheck = Callable[[AttackFixtures, Column], list[str]]
_GONE_SECONDS = 5.0
_HANG_SECONDS = 1.0
_NO_FILES = "it has no interface for files"
_NO_LIMITS = "it has no limits to set"


class NotApplicableError(Exception):
    """This column lacks what the row tests, or this machine does not allow it."""


def no_missing_layer_is_silent(stage: AttackFixtures, column: Column) -> list[str]:
    """Start with Landlock hidden: strict must refuse, and otherwise the level must show it."""
    if not isinstance(column.place, SandboxPlace):
        raise NotApplicableError("it does not report its layers")

    layers = {layer.name: layer.state for layer in column.place.sandbox.get_info().isolation.layers}

    if layers.get("landlock") != "on":
        raise NotApplicableError("the kernel has no Landlock that could be taken away")

    # The control is above: with Landlock the same answer says that it is on.
    said = _ask_without_landlock()
    got = [] if "landlock" in said["missing"] else ["the level does not name it"]
    return [*got, *([] if said["strict"] == "refused" else ["strict has started"])]


def _ask_without_landlock() -> dict[str, Any]:
    words = [sys.executable, "-P", "-m", "fumehood.scorecard.weakened"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)

    if done.returncode != 0:
        raise NotApplicableError(f"no sandbox starts without Landlock: {done.stderr.strip()[-200:]}")

    said: dict[str, Any] = json.loads(done.stdout)
    return said


def no_descriptor_is_inherited(stage: AttackFixtures, column: Column) -> list[str]:
    """List descriptors while this process has an inheritable one open."""
    if isinstance(column.place, ProgramPlace):
        return probes.opened(column.place.probe_with((stage.leak,), "descriptors"))

    return [
        f"{kind}: {found}"
        for kind in column.place.kinds
        for found in probes.opened(column.place.probe(kind, "descriptors"))
    ]


def links_are_not_read(stage: AttackFixtures, column: Column) -> list[str]:
    """Read a file of the host through symlinks in the sandbox; return those that worked.

    The links are absolute, relative, chained, to its folder, and by `/proc/*/root`.
    """
    if isinstance(column.place, SandboxPlace):
        _plant_links(column.place, stage)
        return [f"read {name}" for name in _LINKS if stage.canary in _read(column.place, f"links/{name}")]

    _needs_plain(column.place, _NO_FILES)
    link = os.path.join(stage.folder, "subprocess", "link")
    os.symlink(stage.treasure, link)

    with open(link, encoding="ascii") as file:
        return ["read plain"] if file.read() == stage.canary else []


_LINKS = {
    "plain": "{treasure}",
    "folder/treasure": "",
    "upwards": "../../../../../../..{treasure}",
    "own_root": "/proc/self/root{treasure}",
    "init_root": "/proc/1/root{treasure}",
    "second": "plain",
}


def _plant_links(place: SandboxPlace, stage: AttackFixtures) -> None:
    links = {name: target.format(treasure=stage.treasure) for name, target in _LINKS.items() if target}
    links |= {"folder": stage.folder}
    place.sandbox.run_code(
        f"import os, shutil\n"
        f"shutil.rmtree('links', ignore_errors=True); os.mkdir('links')\n"
        f"for name, target in {links!r}.items(): os.symlink(target, f'links/{{name}}')\n"
    )


def _read(place: SandboxPlace, path: str) -> str:
    try:
        return place.sandbox.files.read(path)
    except FileError:
        return ""


def links_are_not_written(stage: AttackFixtures, column: Column) -> list[str]:
    """Write through links, onto a file of the host and into its folder."""
    before = sorted(os.listdir(stage.folder))

    if isinstance(column.place, SandboxPlace):
        _plant_links(column.place, stage)

        for path in ("links/plain", "links/folder/treasure", "links/folder/new", "links/own_root"):
            try:
                column.place.sandbox.files.write(path, "overwritten")
            except FileError:
                continue
    else:
        _needs_plain(column.place, _NO_FILES)
        own = os.path.join(stage.folder, "subprocess", "own")

        for path in (own, f"{own}-link"):
            if path != own:
                os.symlink(own, path)

            with open(path, "w", encoding="ascii") as file:
                file.write(path)

        with open(own, encoding="ascii") as file:
            return ["wrote through a link"] if file.read() == f"{own}-link" else []

    with open(stage.treasure, encoding="ascii") as file:
        got = [] if file.read() == stage.canary else ["the host's file is another"]

    return got if sorted(os.listdir(stage.folder)) == before else [*got, "a file in the host's folder"]


def special_files_do_not_hang(stage: AttackFixtures, column: Column) -> list[str]:
    """Read a pipe without a writer."""
    if isinstance(column.place, SandboxPlace):
        column.place.sandbox.run_code("import os\nif not os.path.exists('pipe'): os.mkfifo('pipe')")
        started = time.monotonic()
        _read(column.place, "pipe")
        return ["hung"] if time.monotonic() - started > _HANG_SECONDS else []

    _needs_plain(column.place, _NO_FILES)
    path = os.path.join(stage.folder, "subprocess", "pipe")
    os.mkfifo(path)
    try:
        subprocess.run(["cat", path], timeout=_HANG_SECONDS, check=False, stdout=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return ["hung"]

    return []


def names_are_validated(stage: AttackFixtures, column: Column) -> list[str]:
    """Write to impossible names, and to one that leads upwards out of the folder."""
    if isinstance(column.place, SandboxPlace):
        return [
            f"{name[:20]!r}"
            for name in ("a\0b", "", "x" * 5000, "x" * 256, "/new")
            if _lands(column.place, name)
        ]

    _needs_plain(column.place, _NO_FILES)
    inside = os.path.join(stage.folder, "subprocess", "attack")
    path = os.path.join(inside, "../upwards")

    with open(path, "w", encoding="ascii"):
        return ["../upwards"] if os.path.exists(os.path.join(stage.folder, "subprocess", "upwards")) else []


def _lands(place: SandboxPlace, name: str) -> bool:
    try:
        place.sandbox.files.write(name, "x")
    except (FileError, InvalidArgumentError):
        return False

    return True


def _needs_plain(place: AttackTarget, why_not: str) -> None:
    if place.name != "subprocess":
        raise NotApplicableError(why_not)


def nothing_is_left_behind(stage: AttackFixtures, column: Column) -> list[str]:
    """Leave a process in a session of its own, and end its parent."""
    mark = f"mark-{secrets.token_hex(8)}"
    place = stage.make() if isinstance(column.place, SandboxPlace) else column.place
    place.probe("child", "stay_behind", mark)

    if isinstance(place, SandboxPlace):
        if not list(carriers(mark)):
            raise NotApplicableError("the host does not see the processes of its sandboxes")

        place.sandbox.kill()

    ends = time.monotonic() + (_GONE_SECONDS if place.name != "subprocess" else 0)

    while list(carriers(mark)) and time.monotonic() < ends:
        time.sleep(0.01)

    survivors = list(carriers(mark))

    for pid in survivors:
        os.kill(pid, 9)

    return [f"survivors: {len(survivors)}"] if survivors else []


def carriers(mark: str) -> Iterator[int]:
    """Find the processes of this machine whose command line has a mark."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                content = file.read()
        except OSError:
            continue

        if mark.encode() in content and int(name) != os.getpid():
            yield int(name)


def the_loopback_is_its_own(stage: AttackFixtures, column: Column) -> list[str]:
    """Connect and send to a port of the host's loopback, and count the connections there."""
    stage.listener.visits()
    targets = [("tcp", "127.0.0.1", stage.listener.port), ("udp", "127.0.0.1", stage.listener.port)]

    for kind in column.place.kinds:
        column.place.probe(kind, "go_out", targets, 1)

    visits = stage.listener.visits()
    return [f"visits to the host: {visits}"] if visits else []


def no_name_leaves(stage: AttackFixtures, column: Column) -> list[str]:
    """Send DNS queries to likely resolver addresses, and count those that arrive."""
    stage.listener.visits()
    servers = [("udp", address, stage.listener.port) for address in ("127.0.0.1", "127.0.0.53", "192.0.2.53")]

    for kind in column.place.kinds:
        column.place.probe(kind, "go_out", servers, 1)

    questions = stage.listener.visits()
    return [f"questions that arrived: {questions}"] if questions else []


def every_loop_is_ended(stage: AttackFixtures, column: Column) -> list[str]:
    """Run a loop that ignores the interrupt, with a limit of half a second."""
    loop = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"

    if isinstance(column.tight, SandboxPlace):
        execution = column.tight.sandbox.run_code(loop, timeout=0.5)
        return (
            []
            if execution.error is not None and execution.error.kind == "time_limit"
            else ["it has ended otherwise"]
        )

    _needs_plain(column.place, "it has no limit of time")
    started = subprocess.Popen([sys.executable, "-I", "-S", "-c", loop])
    try:
        started.wait(_HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return ["it goes on"]
    finally:
        started.kill()
        started.wait()

    return []


def limits_are_validated(stage: AttackFixtures, column: Column) -> list[str]:
    """Request invalid limits."""
    if not isinstance(column.place, SandboxPlace):
        _needs_plain(column.place, _NO_LIMITS)
        return ["it has no limits"]

    odd = (0, -1, math.nan, math.inf, 1e18, "10", True)
    return [f"memory_bytes={value!r}" for value in odd if _is_taken(value)]


def _is_taken(value: object) -> bool:
    try:
        Limits(memory_bytes=value)  # type: ignore[arg-type]
    except InvalidArgumentError:
        return False

    return True


def output_is_bounded(stage: AttackFixtures, column: Column) -> list[str]:
    """Write eight mebibytes, and count the bytes that are kept."""
    flood = f"import sys\nfor _ in range(8): sys.stdout.write('x' * {MIB})"

    if isinstance(column.place, SandboxPlace):
        execution = column.place.sandbox.run_code(flood)
        kept = len("".join(execution.logs.stdout))
        got = [] if kept <= 2 * MIB else [f"{kept} bytes"]
        return got if execution.truncated.stdout_bytes else [*got, "not said"]

    assert isinstance(column.place, ProgramPlace)
    words = [*column.place.wrapper, sys.executable, "-I", "-S", "-c", flood]
    kept = len(subprocess.run(words, stdout=subprocess.PIPE, timeout=30, check=False).stdout)
    return [f"{kept} bytes"] if kept >= 8 * MIB else []


def neighbours_see_nothing(stage: AttackFixtures, column: Column) -> list[str]:
    """Leave files in world-writable folders, and search for them from another sandbox, or program."""
    name = f"fumehood-{stage.canary}"
    column.place.probe("command", "leave", name)
    other = column.tight if isinstance(column.tight, SandboxPlace) else column.place
    return probes.succeeded(other.probe("command", "find", name))


def nothing_is_left_to_the_next(stage: AttackFixtures, column: Column) -> list[str]:
    """Leave files, end the sandbox, and search for them from the next one."""
    name = f"fumehood-{stage.canary}"
    place = stage.make() if isinstance(column.place, SandboxPlace) else column.place
    place.probe("command", "leave", name)

    if isinstance(place, SandboxPlace):
        place.sandbox.kill()
        place = stage.make()

    return probes.succeeded(place.probe("command", "find", name))


def each_has_an_identity(stage: AttackFixtures, column: Column) -> list[str]:
    """Compare the users of two sandboxes' processes, as the host sees them."""
    users: list[str] = []
    places = [stage.make(), stage.make()] if isinstance(column.place, SandboxPlace) else [column.place] * 2

    for place in places:
        mark = f"mark-{secrets.token_hex(8)}"
        end = place.start(["sh", "-c", "sleep 30; true", mark])
        try:
            users.append(_user_of(mark))
        finally:
            end()

    got = ["both are one user"] if users[0] == users[1] else []
    got += ["root"] if "0" in users else []
    return [*got, *(["the user who has started them"] if str(os.getuid()) in users else [])]


def _user_of(mark: str) -> str:
    ends = time.monotonic() + _GONE_SECONDS

    while time.monotonic() < ends:
        # The command line of a wrapper has the mark too; the innermost process is the newest.
        for pid in sorted(carriers(mark), reverse=True):
            try:
                with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
                    return next(line.split()[1] for line in file if line.startswith("Uid:"))
            except OSError:
                continue

        time.sleep(0.01)

    raise NotApplicableError("the host does not see the processes of its sandboxes")


def clones_diverge(stage: AttackFixtures, column: Column) -> list[str]:
    """Draw from every source of randomness in two sandboxes."""
    if isinstance(column.place, SandboxPlace):
        return _same(column.place, stage.make())

    if column.place.name == "subprocess":
        one, other = column.place.probe("", "draw_in_forks")
    else:
        one, other = column.place.probe("", "draw"), column.place.probe("", "draw")

    return _equal(one, other)


def clones_with_own_interpreters_diverge(stage: AttackFixtures, column: Column) -> list[str]:
    """Draw in two sandboxes of a template that starts an interpreter for each."""
    template = Template(name="own interpreters", preload=(), own_interpreter=True)
    return _same(stage.make(template=template), stage.make(template=template))


def _same(one: SandboxPlace, other: SandboxPlace) -> list[str]:
    return _equal(one.probe("context", "draw"), other.probe("context", "draw"))


def _equal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [f"the same {name}" for name, value in one.items() if other[name] == value]


# Rows whose check makes its own control, as nothing without a sandbox compares to it.
PROVES_ITSELF = frozenset({"K16"})
HOST_CHECKS: dict[str, tuple[HostCheck, ...]] = {
    "K14": (no_descriptor_is_inherited,),
    "K16": (no_missing_layer_is_silent,),
    "F04": (links_are_not_read,),
    "F05": (links_are_not_written,),
    "F07": (special_files_do_not_hang,),
    "F08": (names_are_validated,),
    "P03": (nothing_is_left_behind,),
    "N09": (the_loopback_is_its_own,),
    "N10": (no_name_leaves,),
    "R04": (every_loop_is_ended,),
    "R05": (limits_are_validated,),
    "R06": (output_is_bounded,),
    "T01": (neighbours_see_nothing,),
    "T02": (each_has_an_identity,),
    "T03": (nothing_is_left_to_the_next,),
    "T04": (clones_diverge,),
}
# Rows that are tested once more with an option of ours, and that option: its outcome is listed beside the row's own,
# which it never changes.
OPTIONS: dict[str, tuple[str, HostCheck]] = {
    "T04": ("own_interpreter", clones_with_own_interpreters_diverge),
}


def describe(error: FumehoodError | Exception) -> str:
    """Return in one line why a test could not be run."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
