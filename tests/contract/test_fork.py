"""Forks: sandboxes that go on from one state, each on its own, and the one of them that is kept."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fumehood import (
    AsyncSandbox,
    CheckpointNotFoundError,
    ForkDepthError,
    InvalidArgumentError,
    Limits,
    Sandbox,
    SandboxClosedError,
    SandboxPausedError,
    aexplore,
    explore,
)


@pytest.fixture
def fork(face):
    """Forks a sandbox; what it made is killed at the end of the test."""
    made = []

    def fork_it(sandbox, count=1, **options):
        children = sandbox.forks(count, **options)
        made.extend(children)
        return children

    yield fork_it

    for child in made:
        child.kill()


def run(sandbox, code, **options):
    execution = sandbox.run_code(code, **options)
    assert execution.error is None, execution.error
    return execution


def test_a_fork_goes_on_where_its_parent_was(face, fork):
    """Every live object of the context, the directory, the environment, the files and the record."""
    sandbox = face.open(envs={"GIVEN": "outside"}, limits=Limits(wall_seconds=77))
    run(
        sandbox,
        """
import collections, os, sqlite3, sys
os.environ['SET'] = 'inside'; os.makedirs('deep/er'); os.chdir('deep')
open('lines.txt', 'w').writelines(f'{n}\\n' for n in range(10))
lines = open('lines.txt'); lines.readline()
out = open('out.txt', 'w'); out.write('unwritten ')
def count():
    for number in range(100):
        yield number
numbers = count(); next(numbers)
class Point(collections.namedtuple('Point', 'x y')):
    pass
point = Point(1, [2]); again = point.y
db = sqlite3.connect('/home/user/x.db'); _ = db.execute('create table t (n)'); db.execute('insert into t values (1)')
db.commit(); sys.modules['of_mine'] = type(sys)('of_mine'); sys.modules['of_mine'].value = 5
os.symlink('deep', '/home/user/link'); os.mkfifo('/tmp/pipe'); os.chmod('out.txt', 0o600)
open('/dev/shm/shared', 'w').write('shm')
""",
    )
    (child,) = fork(sandbox)
    step = """
import of_mine
out.write('more'); out.flush(); again.append(3)
writer = sqlite3.connect('/home/user/x.db'); writer.execute('insert into t values (2)'); writer.commit()
print((next(numbers), lines.readline(), os.getcwd(), os.environ['SET'], os.environ['GIVEN'], point, of_mine.value,
 open('/home/user/deep/out.txt').read(), db.execute('select n from t').fetchall(), os.readlink('/home/user/link'),
 oct(os.stat('out.txt').st_mode & 0o777), open('/dev/shm/shared').read(), os.path.exists('/tmp/pipe')))
"""
    first = run(child, step)
    # The parent goes on from the same point: nothing that the fork did is seen.
    assert run(sandbox, step).logs.stdout == first.logs.stdout
    assert "".join(first.logs.stdout) == (
        "(1, '1\\n', '/home/user/deep', 'inside', 'outside', Point(x=1, y=[2, 3]), 5, 'unwritten more', "
        "[(1,), (2,)], 'deep', '0o600', 'shm', True)\n"
    )
    assert first.execution_count == 2
    assert [cell.code for cell in child.get_record().cells] == [
        cell.code for cell in sandbox.get_record().cells
    ]
    assert run(child, "echo $GIVEN", language="bash").logs.stdout == ["outside\n"]
    info, parent = child.get_info(), sandbox.get_info()
    assert (info.parent_id, info.generation, parent.parent_id, parent.generation) == (parent.id, 1, None, 0)
    assert (info.limits, info.template, info.owner) == (parent.limits, parent.template, parent.owner)
    assert [layer.state for layer in info.isolation.layers] == [
        layer.state for layer in parent.isolation.layers
    ]


def test_forks_and_their_parent_go_apart(sandbox, fork):
    """Three at once: what one does to variables and files, no other sees; killing the parent leaves them."""
    run(sandbox, "shared = ['before']; open('f.txt', 'w').write('before'); open('gone.txt', 'w').write('x')")
    children = fork(sandbox, 3)
    everyone = [sandbox, *children]
    assert len({one.id for one in everyone}) == 4

    for number, one in enumerate(everyone):
        run(
            one,
            f"shared.append({number}); open('f.txt', 'a').write('{number}'); open('new{number}.txt', 'w').write('')",
        )

    run(children[0], "import os; os.remove('gone.txt')")
    look = (
        "import os; shared, open('f.txt').read(), sorted(name for name in os.listdir('.') if name[0] != '.')"
    )

    for number, one in enumerate(everyone):
        files = sorted(["f.txt", f"new{number}.txt", *([] if number == 1 else ["gone.txt"])])
        assert run(one, look).text == str((["before", number], f"before{number}", files))
        assert one.files.read("f.txt") == f"before{number}"
        assert one.commands.run("cat f.txt").stdout == f"before{number}"

    sandbox.kill()
    assert run(children[0], "shared").text == "['before', 1]"
    children[0].kill()

    for number, one in enumerate(children[1:], start=2):
        assert run(one, look).text.startswith(f"(['before', {number}], 'before{number}'")

    with pytest.raises(SandboxClosedError):
        run(sandbox, "1")


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_randomness_goes_apart_unless_it_is_kept(sandbox, fork):
    """Of `random` and of numpy; numbers of the kernel are never the same."""
    run(sandbox, "import random, numpy as np, os\nrandom.seed(7); np.random.seed(7); random.random()")
    draw = "random.random(), float(np.random.rand())"
    apart = fork(sandbox, 2)
    same = fork(sandbox, 2, reseed=False)
    mine = run(sandbox, draw).text
    drawn = {run(one, draw).text for one in apart}
    assert len(drawn | {mine}) == 3
    assert {run(one, draw).text for one in same} == {mine}
    assert len({run(one, "os.urandom(16)").text for one in (sandbox, *apart, *same)}) == 5


def test_a_fork_from_a_checkpoint(sandbox, fork):
    """State and files are those of the checkpoint, which stays; the parent stays where it is."""
    run(sandbox, "x = [1]; open('a.txt', 'w').write('one')")
    checkpoint = sandbox.checkpoint("start")
    run(sandbox, "x.append(2); open('a.txt', 'w').write('two'); open('b.txt', 'w').write('new')")
    look = "import os; x, open('a.txt').read(), os.path.exists('b.txt')"

    for named in (checkpoint, checkpoint.id, "start"):
        (child,) = fork(sandbox, checkpoint=named)
        assert run(child, look).text == "([1], 'one', False)"
        assert child.list_checkpoints() == []

    assert run(sandbox, look).text == "([1, 2], 'two', True)"
    sandbox.rollback("start")
    assert run(sandbox, look).text == "([1], 'one', False)"


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_a_fork_outlives_a_parent_that_had_gone_back(sandbox, fork):
    """Although the life that it was forked from is one of several that the parent had."""
    run(sandbox, "x = 1")
    sandbox.checkpoint("start")
    sandbox.rollback("start")
    sandbox.drop_checkpoint("start")
    (child,) = fork(sandbox)
    sandbox.kill()

    for _ in range(10):
        assert run(child, "x").text == "1"


@pytest.mark.parametrize("face", ["sync", "sync-http"], indirect=True)
def test_a_fork_is_a_sandbox_like_any_other(sandbox, fork):
    """It can be forked, kept, gone back, interrupted, restarted, paused and asked for other contexts."""
    run(sandbox, "path = ['root']; open('path', 'w').write('root')")
    (child,) = fork(sandbox)
    run(child, "path.append('child'); open('path', 'a').write(' child')")
    (grandchild,) = fork(child)
    info = grandchild.get_info()
    assert (info.parent_id, info.generation) == (child.id, 2)
    child.kill()
    sandbox.kill()
    run(grandchild, "path.append('grandchild')")
    assert run(grandchild, "path, open('path').read()").text == (
        "(['root', 'child', 'grandchild'], 'root child')"
    )

    checkpoint = grandchild.checkpoint()
    run(grandchild, "path.clear(); open('path', 'w').write('')")
    grandchild.rollback(checkpoint)
    assert run(grandchild, "len(path), open('path').read()").text == "(3, 'root child')"
    execution = grandchild.run_code("path.clear(); 1 / 0", transactional=True)
    assert execution.transaction.outcome == "rolled_back"
    late = grandchild.run_code("while True: pass", timeout=0.3)
    assert late.error.kind == "time_limit"
    assert run(grandchild, "len(path)").text == "3"
    context = grandchild.create_code_context()
    assert run(grandchild, "open('path').read()", context=context).text == "'root child'"
    assert grandchild.pause()
    assert grandchild.resume()
    assert grandchild.judge("print(input())", [("a", "a")])[0].verdict == "accepted"
    grandchild.restart_code_context("default")
    assert grandchild.run_code("path").error.name == "NameError"
    assert grandchild.get_metrics().memory_bytes > 0


@pytest.mark.parametrize("face", ["sync", "sync-http"], indirect=True)
def test_what_cannot_come_along_is_named(sandbox, fork):
    """Other contexts, commands, child processes: they stay with the parent, where they run on."""
    other = sandbox.create_code_context()
    run(sandbox, "y = 1", context=other)
    command = sandbox.commands.run("sleep 1000", background=True)
    run(sandbox, "import subprocess; process = subprocess.Popen(['sleep', '1000']); x = 1")
    run(sandbox, "import socket; server = socket.create_server('cgroup_fd', family=socket.AF_UNIX)")
    (child,) = fork(sandbox)
    assert sandbox.left_behind == ()

    for word in ("context", "command", "process", "cgroup_fd"):
        assert any(word in item for item in child.left_behind), child.left_behind

    assert run(child, "x").text == "1"
    assert [context.id for context in child.list_code_contexts()] == ["default"]
    assert child.commands.list() == []
    assert run(sandbox, "y", context=other).text == "1"
    assert run(sandbox, "process.poll() is None").text == "True"
    assert [process.pid for process in sandbox.commands.list()] == [command.pid]


def test_time_and_labels_come_along_or_are_given(face, fork):
    """As the parent has them, or as the fork is asked for."""
    sandbox = face.open(timeout=500, idle_timeout=400, metadata={"who": "me"}, on_timeout="pause")
    (like,) = fork(sandbox)
    (other,) = fork(sandbox, timeout=50, metadata={"way": "1"})
    (endless,) = fork(sandbox, timeout=None)
    info = like.get_info()
    assert (info.metadata, info.idle_timeout_seconds, info.on_timeout) == ({"who": "me"}, 400, "pause")
    assert 490 < (info.ends_at - info.started_at).total_seconds() <= 501
    info = other.get_info()
    assert info.metadata == {"way": "1"}
    assert 40 < (info.ends_at - info.started_at).total_seconds() <= 51
    assert endless.get_info().ends_at is None


def test_a_fork_takes_its_parents_place(sandbox, fork):
    """Under the parent's id, in the parent's object; the fork's own id has ended, and says why."""
    run(sandbox, "x = 'before'; open('f.txt', 'w').write('before')")
    (other, child) = fork(sandbox, 2)
    run(child, "x = 'child'; open('f.txt', 'w').write('child')")
    run(sandbox, "x = 'parent'; open('only.txt', 'w').write('parent')")
    old_id, child_id = sandbox.id, child.id
    sandbox.adopt(child)
    assert sandbox.id == old_id
    assert run(sandbox, "import os; x, open('f.txt').read(), os.path.exists('only.txt')").text == (
        "('child', 'child', False)"
    )
    assert sandbox.files.read("f.txt") == "child"
    assert sandbox.commands.run("cat f.txt").stdout == "child"
    assert sandbox.get_info().id == old_id
    assert sandbox.get_info().generation == 1

    with pytest.raises(SandboxClosedError) as caught:
        run(child, "x")

    assert (caught.value.reason, caught.value.sandbox_id) == ("adopted", child_id)
    assert not child.is_running()
    assert run(other, "x").text == "'before'"
    (again,) = fork(sandbox)
    assert run(again, "x").text == "'child'"
    assert sandbox.kill()
    assert run(other, "x").text == "'before'"


def test_who_has_taken_a_place_is_called_by_its_name(sandbox, fork):
    """In what it has reached, before and since: the name that it had is nobody's any more."""
    reach = "import urllib.request\nurllib.request.urlopen('http://example.com/')"
    (child,) = fork(sandbox)
    assert child.run_code(reach).error is not None
    assert [record.sandbox_id for record in child.egress_log()] == [child.id]
    sandbox.adopt(child)
    assert sandbox.run_code(reach).error is not None
    assert [record.sandbox_id for record in sandbox.egress_log()] == [sandbox.id] * 2


@pytest.mark.parametrize("face", ["async", "sync-http"], indirect=True)
def test_what_is_no_fork_of_it_takes_no_place(face, sandbox, fork):
    """A stranger, a sibling, itself: refused by name, and everything is as it was."""
    run(sandbox, "x = 1")
    stranger = face.open()
    first, second = fork(sandbox, 2)

    for place, guest in ((sandbox, stranger), (first, second), (sandbox, sandbox), (first, sandbox)):
        with pytest.raises(InvalidArgumentError, match="fork"):
            place.adopt(guest)

    for one in (sandbox, first, second):
        assert run(one, "x").text == "1"

    assert run(stranger, "1").text == "1"


def test_what_cannot_be_forked_says_why(face, sandbox, fork):
    """No such checkpoint, no such number, a sandbox that is paused, has ended, or never was."""
    run(sandbox, "x = 1")
    before = {info.id for info in face.list()}

    with pytest.raises(CheckpointNotFoundError) as missing:
        fork(sandbox, checkpoint="nowhere")

    assert missing.value.checkpoint_id == "nowhere"

    for options in ({"count": 0}, {"count": 65}, {"count": 1.5}, {"timeout": "long"}, {"timeout": -1}):
        with pytest.raises(InvalidArgumentError):
            fork(sandbox, **options)

    sandbox.pause()

    with pytest.raises(SandboxPausedError):
        fork(sandbox)

    sandbox.resume()
    assert {info.id for info in face.list()} == before
    (child,) = fork(sandbox)
    assert run(child, "x").text == "1"
    sandbox.kill()

    with pytest.raises(SandboxClosedError):
        fork(sandbox)


def test_forks_of_forks_end_somewhere(sync_face, monkeypatch):
    """Each lies inside the one before, so there is a last one, which works, and says that it is the last."""
    monkeypatch.setattr("fumehood.runtimes.namespaces.spawner.MAX_GENERATION", 2)
    chain = [sync_face.open()]

    try:
        for generation in (1, 2):
            run(chain[-1], f"generation = {generation}")
            chain.append(chain[-1].fork())

        with pytest.raises(ForkDepthError) as caught:
            chain[-1].fork()

        assert (caught.value.generation, caught.value.maximum) == (2, 2)
        assert run(chain[-1], "generation").text == "2"
        assert [one.get_info().generation for one in chain] == [0, 1, 2]
    finally:
        for one in chain:
            one.kill()


def test_a_fork_waits_until_its_context_is_idle(sync_face):
    """As an execution does: what was asked before is done before."""
    sandbox = sync_face.open()
    begun = threading.Event()
    code = "print('begun'); import os, time\nwhile not os.path.exists('go'): time.sleep(0.001)\nx = 'done'"
    running = threading.Thread(
        target=lambda: sandbox.run_code(code, on_stdout=lambda _: begun.set()), daemon=True
    )
    running.start()
    assert begun.wait(30)
    children: list[Sandbox] = []
    forking = threading.Thread(target=lambda: children.extend(sandbox.forks(2)), daemon=True)
    forking.start()
    sandbox.files.write("go", "")
    running.join(30)
    forking.join(30)
    assert [run(child, "x").text for child in children] == ["'done'", "'done'"]

    for child in children:
        child.kill()


def test_a_fork_without_a_waiting_caller_leaves_nothing(async_face):
    """A caller that gives up, at whatever moment, leaves no sandbox of which nobody knows."""
    sandbox = async_face.open().async_impl

    async def scene():
        await sandbox.run_code("x = 1")

        for turns in (0, 1, 3, 10, 30, 100):
            task = asyncio.create_task(sandbox.forks(2))

            for _ in range(turns):
                await asyncio.sleep(0)

            task.cancel()
            (outcome,) = await asyncio.gather(task, return_exceptions=True)

            if not isinstance(outcome, BaseException):
                for child in outcome:
                    await child.kill()

        while [info for info in await AsyncSandbox.list() if info.parent_id == sandbox.id]:
            await asyncio.sleep(0)

        # It goes on, and can be forked.
        child = await sandbox.fork()

        async with child:
            assert (await child.run_code("x")).text == "1"

    async_face.runner.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("face", ["sync", "sync-http"], indirect=True)
def test_ways_are_explored_and_one_is_kept(face, sandbox):
    """Side by side, in order; failing code is an execution; the sandbox goes on as the best."""
    run(sandbox, "rows = [3, 1, 2]; open('f.txt', 'w').write('before')")
    ways = [
        "rows.sort(); open('f.txt', 'w').write('sorted'); rows[0]",
        "rows.clear(); 1 / 0",
        "rows.reverse(); rows[0]",
    ]

    with explore(sandbox, ways, timeout=30) as branches:
        assert [branch.code for branch in branches] == ways
        assert [branch.execution.text for branch in branches] == ["1", None, "2"]
        assert branches[1].execution.error.name == "ZeroDivisionError"
        assert run(sandbox, "rows").text == "[3, 1, 2]"
        assert run(branches[2].sandbox, "rows").text == "[2, 1, 3]"
        best = min(branches[::2], key=lambda branch: branch.execution.text)
        branches.keep(best)

    assert run(sandbox, "rows, open('f.txt').read()").text == "([1, 2, 3], 'sorted')"
    assert not any(branch.sandbox.is_running() for branch in branches)
    assert [info.id for info in face.list() if info.parent_id == sandbox.id] == []


def test_exploring_leaves_the_sandbox_as_it_was(async_face):
    """Unless one is kept; a branch whose fork ends tells why, and the others go on."""
    sandbox = async_face.open().async_impl

    async def scene():
        await sandbox.run_code("x = 1")
        checkpoint = await sandbox.checkpoint()
        await sandbox.run_code("x = 2")

        async with await aexplore(sandbox, ["x += 10; x", "x"], checkpoint=checkpoint) as branches:
            assert [branch.execution.text for branch in branches] == ["11", "1"]

        assert not await branches[0].sandbox.is_running()
        assert (await sandbox.run_code("x")).text == "2"

        for codes in ([], "x", ["x"] * 65, [1], None):
            with pytest.raises(InvalidArgumentError):
                await aexplore(sandbox, codes)

        with pytest.raises(InvalidArgumentError):
            await aexplore(sandbox, ["x"], concurrency=0)

        exploring = asyncio.create_task(aexplore(sandbox, ["while True: pass"] * 2, timeout=1))

        while not (forks := [info for info in await AsyncSandbox.list() if info.parent_id == sandbox.id]):
            await asyncio.sleep(0)

        await (await AsyncSandbox.connect(forks[0].id)).kill()

        async with await exploring as branches:
            (ended,) = [branch for branch in branches if branch.failure]
            (other,) = [branch for branch in branches if branch.outcome]
            assert other.execution.error.kind == "time_limit"

            with pytest.raises(SandboxClosedError):
                _ = ended.execution

        async with await aexplore(sandbox, ["x += 1; x"] * 3, concurrency=1) as branches:
            await branches.keep(branches[2])

        assert (await sandbox.run_code("x")).text == "3"

    async_face.runner.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("face", ["async"], indirect=True)
def test_forks_do_not_share_what_has_a_name(sandbox, fork):
    """Ports, abstract sockets, shared memory and process ids: each has its own of every name."""
    serve = """
import os, socket
names = [('127.0.0.1', 5000), '\\0name']
servers = [socket.create_server(names[0]), socket.socket(socket.AF_UNIX)]
servers[1].bind(names[1]); servers[1].listen()
open('/dev/shm/name', 'x').write('x')
"""
    everyone = [sandbox, *fork(sandbox, 2)]

    for one in everyone:
        run(one, serve)

    pids = {one.id: run(one, "os.getpid()").text for one in everyone}
    assert len(pids) == 3
    everyone[1].kill()
    assert run(everyone[2], "socket.create_connection(names[0]).close()").error is None


@pytest.mark.parametrize("face", ["sync-http"], indirect=True)
def test_a_fork_is_known_by_its_id(face, sandbox, fork):
    """It is in the list, and whoever has the id can connect to it."""
    run(sandbox, "x = 1")
    (child,) = fork(sandbox)
    assert [info.id for info in face.list() if info.parent_id == sandbox.id] == [child.id]
    assert run(face.connect(child.id), "x").text == "1"
