"""Saving and loading: what lasts of a sandbox is there again in another one, and what does not is said."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress

import pytest

from fumehood import (
    AsyncSandbox,
    ContextNotFoundError,
    InvalidArgumentError,
    Limits,
    LoadError,
    SavedStateDamagedError,
    SavedStateVersionError,
    SaveError,
    read_saved,
    read_saved_record,
)
from fumehood.engine import consistent_snapshot
from fumehood.engine.backend import LocalBackend
from fumehood.saved.manifest import VERSION

CELL = """
import os, threading, numpy as np
import json as j
a = [1, 2]; b = a; c = {"a": a}
array = np.arange(1000)
lock = threading.Lock()
waiting = (n for n in range(3))
_private = 7
factor = 10

class Point:
    def __init__(self, x): self.x = x
    def scaled(self): return self.x * factor
    def own_name(self): return __class__.__name__

point = Point(5)

def factorial(n): return 1 if n < 2 else n * factorial(n - 1)

def counter():
    n = 0
    def more():
        nonlocal n
        n += 1
        return n
    return more, lambda: n

more, count = counter(); more()
os.makedirs("work/deep")
open("work/deep/f.txt", "w").write("hello")
open("work/empty", "w").close()
os.chmod("work/deep/f.txt", 0o750); os.utime("work/deep/f.txt", (1_000_000, 1_000_000))
os.symlink("f.txt", "work/deep/link"); os.link("work/deep/f.txt", "work/hard")
os.mkfifo("fifo")
os.chdir("work"); os.environ["FROM_CELL"] = "yes"
print("printed")
"""
LOOK = """
factor = 100
seen = [a is b, c["a"] is a, int(array.sum()), point.scaled(), point.own_name(), type(point) is Point, factorial(5),
 more(), count(), _private, j.dumps(1), os.getcwd(), os.environ["FROM_CELL"], os.environ["GIVEN"],
 open("deep/link").read(), os.stat("hard").st_nlink, oct(os.stat("hard").st_mode), int(os.stat("hard").st_mtime),
 os.path.getsize("empty"), "lock" in globals(), os.path.exists("/home/user/fifo")]
"""
SEEN = [
    *(True, True, 499500, 500, "Point", True, 120, 2, 2, 7, "1", "/home/user/work", "yes", "1 2\n3"),
    *("hello", 2, "0o100750", 1_000_000, 0, False, False),
]


def run(sandbox, code, **options):
    execution = sandbox.run_code(code, **options)
    assert execution.error is None, execution.error
    return execution


@pytest.fixture
def load(face):
    def load(*args, **options):
        sandbox = face._class("load")(*args, **options)
        face._opened.append(sandbox)
        return sandbox

    return load


def report_of(sandbox):
    return (sandbox if hasattr(sandbox, "_async") else sandbox.async_impl).load_report


def test_what_lasts_is_there_again(face, load, tmp_path):
    """Variables with what they share, functions, classes, files, links, modes, environment, contexts and the record."""
    place = tmp_path / "state"
    sandbox = face.open(envs={"GIVEN": "1 2\n3"}, timeout=100)
    run(sandbox, CELL)
    second = sandbox.create_code_context(cwd="/mnt/data")
    run(sandbox, "alone = 3", context=second)
    shell = sandbox.create_code_context(language="bash")

    report = sandbox.save(place)
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o600
    assert report.size_bytes == place.stat().st_size
    assert {"a", "array", "Point", "point", "more", "j"} <= set(report.variables["default"])
    assert report.variables[second.id] == ("alone",)
    left_out = {(one.kind, one.name): one.reason for one in report.left_out}
    assert "generator" in left_out.pop(("variable", "waiting"))
    assert "lock" in left_out.pop(("variable", "lock"))
    assert "bash" in left_out.pop(("context", shell.id))
    assert "neither" in left_out.pop(("file", "/home/user/fifo"))
    assert left_out == {}
    assert (report.files, report.files_bytes) == (2, 5)
    assert [item.path for item in report.manifest.files if ".fumehood" in item.path] == []
    assert report.manifest.envs == {"GIVEN": "1 2\n3"}
    # It goes on, and nothing of ours is left in it.
    assert (
        run(sandbox, "os.listdir('/tmp'), a is b, 'fumehood_guest' in globals()").text == "([], True, False)"
    )

    loaded = load(place)
    assert loaded.id != sandbox.id
    assert json.loads(run(loaded, f"{LOOK}\nprint(j.dumps(seen))").logs.stdout[0]) == SEEN
    told = report_of(loaded)
    assert told.missing == ()
    assert run(loaded, "os.listdir('/tmp'), os.listdir('/var/tmp')").text == "([], [])"
    assert told.left_out == report.left_out
    assert (
        run(loaded, "__import__('os').getcwd(), alone", context=told.contexts[second.id]).text
        == "('/mnt/data', 3)"
    )
    assert read_saved(place).variables == report.variables
    assert read_saved_record(place).cells[0].execution.logs.stdout == ["printed\n"]
    assert read_saved_record(place, second.id).cells[0].code == "alone = 3"

    with pytest.raises(ContextNotFoundError):
        read_saved_record(place, "nobody")


WRAPPED = """
import functools
from contextlib import contextmanager
from dataclasses import dataclass

@dataclass(frozen=True)
class Place:
    x: int = 1
    def scaled(self): return Place(self.x * factor)

def doubled(function):
    @functools.wraps(function)
    def call(*args): return 2 * function(*args)
    return call

@contextmanager
def opened(): yield factor

@doubled
def one(): return 1

place, factor = Place(), 10
"""


def test_what_libraries_have_wrapped_is_whole_again(sync_face, tmp_path):
    """A library's function around one of a cell has what it holds, and the cell's function its namespace."""
    sandbox = sync_face.open()
    run(sandbox, WRAPPED)
    assert sandbox.save(tmp_path / "state").left_out == ()
    loaded = sync_face._class("load")(tmp_path / "state")

    with loaded:
        run(loaded, "factor = 100\nwith opened() as found: pass")
        text = "(place, place.scaled(), place == Place(), hash(place) == hash(Place()), one(), found)"
        expected = "(Place(x=1), Place(x=100), True, True, 2, 100)"
        assert run(loaded, f"print({text})").logs.stdout == [f"{expected}\n"]


def test_as_many_contexts_as_there_can_be(sync_face, tmp_path):
    """All are there again, and the context that bash code runs in without a name is the same one."""
    sandbox = sync_face.open()
    made = []

    with suppress(InvalidArgumentError):
        while True:
            made.append(sandbox.create_code_context(language="bash").id)

    sandbox.run_code("echo first", language="bash")
    sandbox.save(tmp_path / "state")
    loaded = sync_face._class("load")(tmp_path / "state")
    sync_face._opened.append(loaded)
    contexts = loaded.load_report.contexts
    assert contexts.keys() == {"default", "bash", *made}
    loaded.run_code("echo second", language="bash")
    assert [cell.code for cell in loaded.get_record(contexts["bash"]).cells] == ["echo first", "echo second"]


def test_the_environment_is_there_again(face, load, tmp_path):
    """What the sandbox was made with, whatever its name, and what the code of a context has made of that."""
    sandbox = face.open(envs={"TZ": "Asia/Tokyo", "GIVEN": "1", "GONE": "1", "OURS": "1"})
    run(
        sandbox,
        "import os\nos.environ.update(GIVEN='2', OURS='2', TZ='Asia/Seoul'); del os.environ['GONE']\n"
        "os.makedirs('.local/bin', exist_ok=True); open('.local/bin/env', 'w').write('#!/bin/sh\\necho FAKE=1')\n"
        "os.chmod('.local/bin/env', 0o755)",
    )
    report = sandbox.save(tmp_path / "state")
    assert report.manifest.envs == {"TZ": "Asia/Tokyo", "GIVEN": "1", "GONE": "1", "OURS": "1"}
    loaded = load(tmp_path / "state", envs={"OURS": "3"})
    names = "('TZ', 'GIVEN', 'GONE', 'OURS', 'FAKE')"
    told = run(loaded, f"import os; [os.environ.get(name) for name in {names}]")
    assert told.text == "['Asia/Seoul', '2', None, '3', None]"
    assert loaded.commands.run("echo $TZ $GIVEN $GONE $OURS").stdout == "Asia/Tokyo 1 1 3\n"


def test_the_record_goes_on(face, load, tmp_path):
    """That of a loaded sandbox begins with the cells that were saved, and so does its notebook; numbers go on."""
    sandbox = face.open()
    run(sandbox, "x = 20")
    run(sandbox, "print('shown'); x + 1")
    assert sandbox.run_code("x + nothing").error is not None
    second = sandbox.create_code_context()
    run(sandbox, "y = 3", context=second)
    shell = sandbox.create_code_context(language="bash")
    run(sandbox, "echo from bash", context=shell)
    sandbox.save(tmp_path / "state")

    loaded = load(tmp_path / "state")
    contexts = report_of(loaded).contexts
    assert run(loaded, "x + 2").execution_count == 4
    record = loaded.get_record()
    assert [cell.code for cell in record.cells] == [
        "x = 20",
        "print('shown'); x + 1",
        "x + nothing",
        "x + 2",
    ]
    assert [cell.execution.execution_count for cell in record.cells] == [1, 2, 3, 4]
    assert [cell.is_fresh for cell in record.cells] == [True, False, False, False]
    assert record.cells[1].execution.logs.stdout == ["shown\n"]
    assert (record.cells[1].execution.text, record.cells[2].execution.error.name) == ("21", "NameError")
    assert record.sandbox_id == loaded.id
    notebook = json.loads(loaded.to_notebook())["cells"]
    assert ["".join(cell["source"]) for cell in notebook][-2:] == ["x + nothing", "x + 2"]

    moved = loaded.get_record(contexts[second.id])
    assert (moved.context_id, moved.cells[0].code) == (contexts[second.id], "y = 3")
    assert moved.cells[0].execution.context_id == contexts[second.id]
    # What a context of bash held is not there any more.
    run(loaded, "echo anew", context=contexts[shell.id])
    assert [cell.is_fresh for cell in loaded.get_record(contexts[shell.id]).cells] == [True, True]

    # Loaded, saved and loaded once more, it is still one record.
    loaded.save(tmp_path / "again")
    assert [cell.code for cell in load(tmp_path / "again").get_record().cells] == [
        cell.code for cell in record.cells
    ]


def test_what_cannot_be_made_again_is_reported(face, load, tmp_path):
    """One variable that does not come back takes along what needs it, and nothing else; files removed stay removed."""
    sandbox = face.open()
    run(
        sandbox,
        "class Bad:\n"
        "    def __reduce__(self): return (int, ('no number',))\n"
        "shared = [0]\nfirst = 1\nbad = [shared, Bad()]\nuses = [shared]\nlast = 2\n"
        "class Worse:\n"
        "    def __reduce__(self): raise SystemExit\n"
        "worse = Worse()\n"
        "import os; os.rmdir('/home/user/.local/bin')",
    )
    report = sandbox.save(tmp_path / "state")
    assert [(one.name, one.reason) for one in report.left_out] == [("worse", "SystemExit")]
    loaded = load(tmp_path / "state", envs={"NEW": "1"})
    missing = {one.name: one.reason for one in report_of(loaded).missing}
    assert set(missing) == {"bad"}
    assert "invalid literal" in missing["bad"]
    told = run(
        loaded,
        "import os; shared == uses[0], shared is uses[0], last, os.path.exists('/home/user/.local/bin')",
    )
    assert told.text == "(True, True, 2, False)"
    assert run(loaded, "os.environ['NEW']").text == "'1'"


def test_damaged_and_future_states_are_refused(face, tmp_path):
    """The error names what is wrong, and no sandbox is left."""
    place = tmp_path / "state"
    sandbox = face.open()
    run(sandbox, "x = 'y' * 1000; open('f.txt', 'w').write('content ' * 100)")
    sandbox.save(place)
    before = {info.id for info in face.list()}
    load = face._class("load")

    def refused(kind, *words):
        with pytest.raises(kind) as caught:
            load(tmp_path / "changed")

        assert all(word in str(caught.value) for word in words), caught.value
        return caught.value

    with pytest.raises(LoadError):
        load(tmp_path / "nothing")

    (tmp_path / "changed").write_bytes(place.read_bytes()[:-30])
    refused(SavedStateDamagedError, "end is missing")

    change(place, tmp_path / "changed", in_parts(b"content", b"CONTENT"))
    error = refused(SavedStateDamagedError, "digest")
    assert error.part.startswith("files/")

    change(place, tmp_path / "changed", in_parts(b"yyyyy", b"zzzzz"))
    assert refused(SavedStateDamagedError, "digest").part.startswith("variables/")

    def of_tomorrow(name, data):
        return data.replace(b'"version": 1', b'"version": 7') if name == "manifest.json" else data

    change(place, tmp_path / "changed", of_tomorrow)
    refused(SavedStateVersionError, "version 7", f"version {VERSION}")

    def with_memory(name, data):
        if name != "manifest.json":
            return data

        return json.dumps(
            json.loads(data) | {"memory": {"name": "memory", "size_bytes": 1, "sha256": ""}}
        ).encode()

    change(place, tmp_path / "changed", with_memory)
    refused(LoadError, "whole memory")
    assert {info.id for info in face.list()} == before


def test_a_place_that_cannot_be_written_is_an_error(face, tmp_path):
    """Nothing is left behind, and the sandbox goes on."""
    sandbox = face.open()

    with pytest.raises(SaveError, match="No such file"):
        sandbox.save(tmp_path / "no" / "folder")

    run(sandbox, "import os; os.listdir = None")
    (tmp_path / "state").write_text("old")
    run(sandbox, "import sys; sys.modules['fumehood_guest.export.state_export'] = None")

    with pytest.raises(SaveError):
        sandbox.save(tmp_path / "state")

    assert (tmp_path / "state").read_text() == "old"
    assert os.listdir(tmp_path) == ["state"]


PAIR = """
import os
number = 0
while True:
    number += 1
    for name in ("first", "second"):
        open("part", "w").write(str(number))
        os.replace("part", name)
"""


def test_the_files_are_of_one_moment(face, tmp_path):
    """A command that writes one file and then the other is seen between the two, or with both the same."""
    sandbox = face.open()
    run(sandbox, "for n in range(50): open(f'between{n}', 'w').write('x' * 100_000)")
    sandbox.files.write("pair.py", PAIR)
    sandbox.commands.run("python3 pair.py", background=True)

    while not sandbox.files.exists("second"):
        pass

    for _ in range(3):
        report = sandbox.save(tmp_path / "state")
        assert report.left_out == ()
        first, second = (
            int(content_of(tmp_path / "state", f"/home/user/{name}")) for name in ("first", "second")
        )
        assert first - second in (0, 1)

    run(sandbox, "before = open('second').read()\nwhile open('second').read() == before: pass")


def test_variables_and_files_are_of_one_moment(face, tmp_path):
    """All contexts are at rest together; what each has in its variables is what it has written."""
    sandbox = face.open()
    contexts = [None, *(sandbox.create_code_context() for _ in range(2))]

    for number, context in enumerate(contexts):
        run(sandbox, f"import threading\nnumber = 0\nplace = '/home/user/{number}'", context=context)

    step = "for _ in range(20):\n    number += 1\n    open(place, 'w').write(str(number))"
    is_over = threading.Event()

    def go_on(context):
        while not is_over.is_set():
            run(sandbox, step, context=context)

    with ThreadPoolExecutor(3) as pool:
        going = [pool.submit(go_on, context) for context in contexts if face.is_sync]
        try:
            for _ in range(3):
                sandbox.save(tmp_path / "state")
        finally:
            is_over.set()

        for one in going:
            one.result()

    loaded = face._class("load")(tmp_path / "state")
    face._opened.append(loaded)
    names = report_of(loaded).contexts

    for context in contexts:
        name = "default" if context is None else names[context.id]
        assert run(loaded, "number == int(open(place).read() if number else 0)", context=name).text == "True"


def test_contexts_that_wait_for_each_other_are_not_held_up(sync_face, monkeypatch, tmp_path):
    """One at rest goes on when another one, which needs it, does not come to rest; then both are saved."""
    monkeypatch.setattr(consistent_snapshot, "_TOGETHER_SECONDS", 0.05)
    sandbox = sync_face.open()
    second = sandbox.create_code_context()

    def ask_the_other(n: int) -> int:
        saving.append(pool.submit(sandbox.save, tmp_path / "state"))

        while not os.listdir(tmp_path):
            pass

        return sum(int(run(sandbox, str(number)).text) for number in range(n))

    saving = []

    with ThreadPoolExecutor(1) as pool:
        assert run(sandbox, "x = ask_the_other(n=20)", context=second, tools={"ask_the_other": ask_the_other})
        assert "x" in saving[0].result().variables[second.id]


def test_strange_files_spoil_nothing(face, load, tmp_path):
    """Times that no clock shows, many names of one file, names that are no text, files that nobody may read."""
    sandbox = face.open()
    run(
        sandbox,
        "import os\nopen('old', 'w').write('1'); os.utime('old', (2**40, 2**40))\n"
        "open('before', 'w').close(); os.utime('before', (-2**40, -2**40))\n"
        "for n in range(3): os.link('old', f'name{n}')\n"
        "open(b'\\xff', 'w').close(); os.makedirs('closed/in'); open('closed/in/f', 'w').write('kept')\n"
        "os.chmod('closed/in/f', 0); os.chmod('closed', 0)\n"
        "for n in range(2100): os.symlink('nowhere', f'link{n}')",
    )
    report = sandbox.save(tmp_path / "state")
    assert [(one.kind, one.name) for one in report.left_out] == [
        ("file", "/home/user/\\xff")
    ] or report.left_out
    loaded = load(tmp_path / "state")
    told = run(
        loaded,
        "import os\nos.chmod('closed', 0o700); os.chmod('closed/in/f', 0o400)\n"
        "os.stat('old').st_nlink, open('closed/in/f').read(), sum(os.path.islink(f'link{n}') for n in range(2100))",
    )
    assert told.text == "(4, 'kept', 2100)"
    assert run(sandbox, "oct(os.stat('closed').st_mode)").text == "'0o40000'"


def test_files_that_cannot_be_kept_are_read_as_they_are(face, load, tmp_path):
    """Such as one that is being written, where there is no room for a copy: it is told, and all of them are there."""
    sandbox = face.open(limits=SMALL)
    run(sandbox, OPEN_AND_LARGE + "open('other', 'w').write('kept')")
    report = sandbox.save(tmp_path / "state")
    assert [(one.kind, one.name) for one in report.left_out] == [("moment", "files")]
    assert "No space left" in report.left_out[0].reason
    loaded = load(tmp_path / "state")
    assert run(loaded, "open('other').read(), len(open('large').read())").text == f"('kept', {5 << 20})"


SMALL = Limits(disk_bytes=8 << 20)
OPEN_AND_LARGE = """
import os
_ = os.write(os.open('/home/user/large', os.O_WRONLY | os.O_CREAT), b'x' * (5 << 20))
"""


LIES = """
import json, os, sys
import fumehood_guest.export.state_export as keeping

def list_files(folder):
    os.makedirs(folder, exist_ok=True)
    json.dump({lies!r}, open(folder + "/files.json", "w"))

keeping.list_files = list_files
os.mkfifo("/tmp/fifo"); os.symlink("/proc/self/environ", "/tmp/link")
"""


def file(path, **others):
    return {
        "path": path,
        "type": "file",
        "mode": 0o644,
        "modified_ns": 0,
        "size_bytes": 1,
        "target": "",
        **others,
    }


def test_a_guest_that_lies_spoils_its_own_state_alone(sync_face, tmp_path):
    """Paths that are elsewhere, of another kind, twice, or no text; and words that make no sense."""
    sandbox = sync_face.open(limits=SMALL)
    lies = {
        "files": [
            *map(
                file,
                ("/etc/passwd", "/home/user/../../etc/passwd", "/proc/self/environ", "relative", "/tmp/fifo"),
            ),
            *map(file, ("/tmp/\ud800", "/tmp/nothing", "/tmp", "/tmp/a\0b")),
            file("/tmp/hard", type="hardlink", target="/tmp/nothing"),
            file("/tmp/soft", type="symlink", target="/etc/shadow"),
            file("/home/user/x", mode=1 << 40, modified_ns=1 << 200),
        ],
        "left_out": [{"name": "x" * 100_000, "reason": "\x1b[2J" * 100_000}],
    }
    run(sandbox, "open('x', 'w').write('1')")
    # Where the files cannot be kept, code in the sandbox lists them.
    run(sandbox, OPEN_AND_LARGE)
    run(sandbox, LIES.replace("{lies!r}", repr(lies)))
    report = sandbox.save(tmp_path / "state")
    assert [item.path for item in report.manifest.files] == ["/tmp/soft", "/home/user/x"]
    assert len(report.left_out) == 12
    assert all(len(one.name) <= 4096 and len(one.reason) <= 500 for one in report.left_out)

    for lies in (
        {"files": [file("/home/user/x"), file("/home/user/x")]},
        {"files": [file("/tmp/hard", type="hardlink", target="/tmp/never")]},
        {"files": [file("/home/user/x", mode="rw")]},
        {"files": 5},
        [[[]]],
    ):
        run(sandbox, LIES.replace("{lies!r}", repr(lies)).partition("os.mkfifo")[0])

        with pytest.raises(SaveError):
            sandbox.save(tmp_path / "state")

    assert read_saved(tmp_path / "state").left_out == report.left_out
    assert run(sandbox, "os.listdir('/tmp')").text == "['link', 'fifo']"


def test_who_gives_up_leaves_nothing(tmp_path, monkeypatch):
    """Neither a file, nor a sandbox, nor a folder in the sandbox that was saved."""
    written, save = LocalBackend.write, LocalBackend.save
    writes = iter(range(20))

    async def give_up(work, begun):
        task = asyncio.create_task(work)
        await begun.wait()
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task

    async def scene():
        begun = asyncio.Event()

        async def hold():
            begun.set()
            await asyncio.get_running_loop().create_future()

        async def save_a_part(backend, sandbox_id):
            async with aclosing(save(backend, sandbox_id)) as pieces:
                async for piece in pieces:
                    yield piece
                    await hold()

        async def write_a_part(backend, *arguments):
            return await (written(backend, *arguments) if next(writes, None) is not None else hold())

        async with AsyncSandbox() as sandbox:
            await sandbox.run_code("for n in range(300): open(f'{n}.txt', 'w').write('x' * 10_000)")
            before = [info.id for info in await AsyncSandbox.list()]

            with monkeypatch.context() as patch:
                patch.setattr(LocalBackend, "save", save_a_part)
                await give_up(sandbox.save(tmp_path / "state"), begun)

            assert os.listdir(tmp_path) == []
            assert await sandbox.files.list("/tmp") == []
            await sandbox.save(tmp_path / "state")
            begun.clear()

            with monkeypatch.context() as patch:
                patch.setattr(LocalBackend, "write", write_a_part)
                await give_up(AsyncSandbox.load(tmp_path / "state"), begun)

            assert [info.id for info in await AsyncSandbox.list()] == before

    asyncio.run(scene())


def test_what_does_not_fit_is_an_error(sync_face, tmp_path):
    """The way out is in the hint, and no sandbox is left."""
    sandbox = sync_face.open()
    run(sandbox, "open('large', 'w').write('x' * (20 << 20))")
    sandbox.save(tmp_path / "state")
    before = sync_face.list()

    with pytest.raises(LoadError) as caught:
        sync_face._class("load")(tmp_path / "state", limits=Limits(disk_bytes=16 << 20))

    assert "disk_bytes" in caught.value.hint
    assert sync_face.list() == before


def content_of(place, path):
    """Reads a file in a saved state."""
    with zipfile.ZipFile(place) as archive:
        files = json.loads(archive.read("manifest.json"))["files"]
        return archive.read(next(file["content"]["name"] for file in files if file["path"] == path))


def in_parts(old, new):
    return lambda name, data: data.replace(old, new) if name != "manifest.json" else data


def change(source, target, edit):
    """Writes the archive again, each part as `edit` says."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(name, old.read(name)))
