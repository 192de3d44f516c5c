"""Checkpoints: state and files together, kept and gone back to, with whatever was alive at that moment."""

from __future__ import annotations

import asyncio

import pytest
from tests.waiting import until

from fumehood import CheckpointError, CheckpointLostError, CheckpointNotFoundError, ContextNotFoundError
from fumehood.portal import call


def _async(sandbox):
    """The asynchronous sandbox behind each face."""
    return sandbox._async if hasattr(sandbox, "_async") else sandbox.async_impl


def run(sandbox, code, **options):
    execution = sandbox.run_code(code, **options)
    assert execution.error is None, execution.error
    return execution


def test_variables_and_files_go_back_together(sandbox):
    """What was changed, added and deleted is as it was; the checkpoint stays and serves again."""
    run(sandbox, "x = [1]; open('a.txt', 'w').write('one'); open('gone.txt', 'w').write('here')")
    checkpoint = sandbox.checkpoint("before")

    for _ in range(2):
        run(
            sandbox,
            "import os\nx.append(2); y = 5; open('a.txt', 'a').write('two'); os.remove('gone.txt')\n"
            "os.makedirs('new/deep'); open('new/deep/f', 'w').write('f')",
        )
        assert sandbox.rollback(checkpoint).id == checkpoint.id
        told = run(
            sandbox,
            "import os; (x, 'y' in globals(), open('a.txt').read(), open('gone.txt').read(), os.path.exists('new'))",
        )
        assert told.text == "([1], False, 'one', 'here', False)"


def test_a_checkpoint_is_found_by_id_and_by_name(sandbox):
    """Either names it; what has neither is an error that says so."""
    run(sandbox, "x = 1")
    checkpoint = sandbox.checkpoint("start")
    assert [found.id for found in sandbox.list_checkpoints()] == [checkpoint.id]
    assert checkpoint.name == "start"
    assert checkpoint.context_id == "default"

    for name in ("start", checkpoint.id, checkpoint):
        run(sandbox, "x = 2")
        sandbox.rollback(name)
        assert run(sandbox, "x").text == "1"

    sandbox.drop_checkpoint("start")
    assert sandbox.list_checkpoints() == []

    with pytest.raises(CheckpointNotFoundError) as caught:
        sandbox.rollback("start")

    assert caught.value.checkpoint_id == "start"
    assert "there is no checkpoint 'start'" in caught.value.message


def test_checkpoints_form_a_tree(sandbox):
    """After going back, other points, earlier and later, can still be gone to."""
    run(sandbox, "path = ['root']")
    root = sandbox.checkpoint()
    run(sandbox, "path.append('left')")
    left = sandbox.checkpoint()
    sandbox.rollback(root)
    run(sandbox, "path.append('right')")
    right = sandbox.checkpoint()

    for checkpoint, expected in ((left, "left"), (right, "right"), (root, None), (left, "left")):
        sandbox.rollback(checkpoint)
        assert run(sandbox, "path").text == str(["root", expected] if expected else ["root"])


def test_what_is_alive_goes_on_where_it_was(sandbox):
    """Generators, random states, iterators over files, unwritten buffers, numpy views, bound methods."""
    run(
        sandbox,
        """
import random, numpy as np
random.seed(7); np.random.seed(7)
def count():
    for number in range(100):
        yield number
numbers = count(); next(numbers)
open('lines.txt', 'w').writelines(f'{n}\\n' for n in range(10))
lines = open('lines.txt'); lines.readline()
out = open('out.txt', 'w'); out.write('unwritten ')
base = np.zeros(4); view = base[1:3]
push = [].append
""",
    )
    checkpoint = sandbox.checkpoint()
    step = """
view[:] += 1; out.write('more'); push(1)
(next(numbers), random.random(), np.random.rand(), lines.readline(), base.tolist(), len(push.__self__))
"""
    first = run(sandbox, step).text

    for _ in range(2):
        sandbox.rollback(checkpoint)
        assert run(sandbox, step).text == first

    assert run(sandbox, "out.close(); open('out.txt').read()").text == "'unwritten more'"


def test_a_database_goes_back_with_its_file(sandbox):
    """An open connection of sqlite reads what the file held then."""
    run(
        sandbox,
        "import sqlite3\ndb = sqlite3.connect('x.db')\ndb.execute('create table t (n)')\n"
        "db.execute('insert into t values (1)'); db.commit()",
    )
    checkpoint = sandbox.checkpoint()
    run(sandbox, "db.execute('insert into t values (2)'); db.commit()")
    sandbox.rollback(checkpoint)
    assert run(sandbox, "db.execute('select n from t').fetchall()").text == "[(1,)]"
    run(sandbox, "db.execute('insert into t values (3)'); db.commit(); db.close()")
    assert (
        run(sandbox, "sqlite3.connect('x.db').execute('select n from t').fetchall()").text == "[(1,), (3,)]"
    )


def test_tasks_go_on_after_going_back(sandbox):
    """A task of asyncio that sleeps wakes up in each life."""
    run(
        sandbox,
        """
import asyncio
heard = []
async def later():
    await asyncio.sleep(0.05)
    heard.append('woke')
task = asyncio.create_task(later())
""",
    )
    checkpoint = sandbox.checkpoint()

    for _ in range(2):
        assert run(sandbox, "await task; heard").text == "['woke']"
        sandbox.rollback(checkpoint)

    assert run(sandbox, "await task; heard").text == "['woke']"


def test_mapped_and_shared_memory_goes_back(sandbox):
    """What numpy maps from a file, and memory shared with other processes, is as it was, and is a file's again."""
    run(
        sandbox,
        """
import numpy as np, multiprocessing, mmap
mapped = np.memmap('m.bin', dtype='u1', mode='w+', shape=(10_000,)); mapped[:] = 1
shared = multiprocessing.Value('i', 1)
anonymous = mmap.mmap(-1, 4096); anonymous[:3] = b'one'
""",
    )
    checkpoint = sandbox.checkpoint()
    run(sandbox, "mapped[:] = 2; shared.value = 2; anonymous[:3] = b'two'")

    for _ in range(2):
        sandbox.rollback(checkpoint)
        told = run(sandbox, "int(mapped.sum()), shared.value, anonymous[:3], open('m.bin', 'rb').read(1)")
        assert told.text == "(10000, 1, b'one', b'\\x01')"
        run(sandbox, "mapped[:] = 3; shared.value = 3; anonymous[:3] = b'333'; mapped.flush()")
        assert run(sandbox, "open('m.bin', 'rb').read(1)").text == "b'\\x03'"


def test_temporary_files_go_back(sandbox):
    """A file that has no name any more is copied, and each life has its own."""
    run(sandbox, "import tempfile\nf = tempfile.TemporaryFile(); f.write(b'abc'); f.flush()")
    checkpoint = sandbox.checkpoint()
    assert checkpoint.left_behind == ()

    for _ in range(2):
        run(sandbox, "f.write(b'def'); f.flush()")
        assert run(sandbox, "_ = f.seek(0); f.read()").text == "b'abcdef'"
        sandbox.rollback(checkpoint)


def test_kinds_of_files_go_back(sandbox):
    """Modes, times, links of both kinds, holes, empty directories, and files replaced by directories."""
    run(
        sandbox,
        """
import os
os.makedirs('d/empty'); open('d/f', 'w').write('x'); os.chmod('d/f', 0o640); os.utime('d/f', (1, 2))
os.symlink('f', 'd/soft'); os.link('d/f', 'd/hard'); os.mkfifo('d/pipe')
with open('d/holes', 'wb') as f: f.truncate(1 << 30); f.seek(1 << 29); f.write(b'mid')
open('d/locked', 'w').write('secret'); os.chmod('d/locked', 0)
os.utime('d', (5, 5))
""",
    )
    checkpoint = sandbox.checkpoint()
    run(
        sandbox,
        """
import shutil
os.chmod('d/locked', 0o600); open('d/locked', 'w').write('changed')
open('d/f', 'a').write('y'); os.chmod('d/f', 0o600)
os.remove('d/soft'); os.mkdir('d/soft'); os.rmdir('d/empty'); open('d/empty', 'w').write('a file')
os.remove('d/pipe'); os.truncate('d/holes', 10)
""",
    )
    sandbox.rollback(checkpoint)
    told = run(
        sandbox,
        """
f, holes = os.stat('d/f'), os.stat('d/holes')
with open('d/holes', 'rb') as file: file.seek(1 << 29); mid = file.read(3)
os.chmod('d/locked', 0o600)
(oct(f.st_mode), f.st_mtime, open('d/f').read(), os.readlink('d/soft'), os.path.samefile('d/f', 'd/hard'),
 os.path.isdir('d/empty'), holes.st_size == 1 << 30, holes.st_blocks < 100, mid, open('d/locked').read())
""",
    )
    assert told.text == ("('0o100640', 2.0, 'x', 'f', True, True, True, True, b'mid', 'secret')")


def test_the_file_of_a_socket_is_named_and_harms_nothing(sandbox):
    """It is of no use without whoever listened: where it is gone, it stays so."""
    run(
        sandbox, "import os, socket; server = socket.create_server('cgroup_fd', family=socket.AF_UNIX); x = 1"
    )
    checkpoint = sandbox.checkpoint()
    assert any("cgroup_fd" in item for item in checkpoint.left_behind)
    run(sandbox, "x = 2")
    sandbox.rollback(checkpoint)
    assert run(sandbox, "x, os.path.exists('cgroup_fd')").text == "(1, True)"
    run(sandbox, "os.remove('cgroup_fd')")
    sandbox.rollback(checkpoint)
    assert run(sandbox, "x, os.path.exists('cgroup_fd')").text == "(1, False)"


def test_a_file_that_was_made_anew_goes_back_again(sandbox):
    """What was deleted and put back is another file of the same name; it is watched for changes as well."""
    run(sandbox, "import os; _ = open('f', 'w').write('one'); _ = open('other', 'w').write('1')")
    checkpoint = sandbox.checkpoint()
    run(sandbox, "os.remove('f')")
    sandbox.rollback(checkpoint)
    later = sandbox.checkpoint()

    for change in (
        "_ = open('f', 'w').write('two')",
        "os.rename('other', 'f')",
        "_ = open('f', 'a').write('!')",
    ):
        run(sandbox, change)
        sandbox.rollback(checkpoint)
        assert run(sandbox, "open('f').read(), open('other').read()").text == "('one', '1')"

    sandbox.drop_checkpoint(checkpoint)
    # Whoever writes waits for nobody: the kernel would let it wait for 45 s.
    run(sandbox, "_ = open('f', 'w').write('three')", timeout=30)
    sandbox.rollback(later)
    assert run(sandbox, "open('f').read()").text == "'one'"


def test_links_times_and_modes_of_unchanged_files_go_back(sandbox):
    """Names that lead to one file do so again, whichever of them was lost; also where a directory was closed to all."""
    run(
        sandbox,
        """
import os
_ = open('a', 'w').write('x'); os.utime('a', (5, 5)); os.link('a', 'b'); os.link('a', 'c')
os.mkdir('shut'); _ = open('shut/f', 'w').write('x'); os.chmod('shut', 0o400); os.chmod('.', 0o755)
""",
    )
    checkpoint = sandbox.checkpoint()

    for change in (
        "os.utime('a', (9, 9)); os.remove('b'); os.chmod('.', 0o500)",
        "os.remove('b'); _ = open('b', 'w').write('other'); _ = open('a', 'a').write('y')",
        "os.remove('a'); os.remove('b'); os.remove('c')",
        "os.chmod('shut', 0o700); _ = open('shut/f', 'w').write('y'); os.chmod('shut', 0)",
    ):
        run(sandbox, change)
        sandbox.rollback(checkpoint)
        told = run(
            sandbox,
            "mode = oct(os.stat('shut').st_mode); os.chmod('shut', 0o700)\n"
            "(open('a').read(), os.path.samefile('a', 'b'), os.path.samefile('a', 'c'), os.stat('a').st_mtime, mode,\n"
            " open('shut/f').read(), oct(os.stat('.').st_mode), [name for name in os.listdir() if 'fumehood' in name])",
        )
        assert told.text == "('x', True, True, 5.0, '0o40400', 'x', '0o40755', [])"


def test_who_watches_a_folder_sees_files_and_not_how_they_are_put_back(sandbox):
    """The room in which contents wait is nobody's business."""
    run(sandbox, "_ = open('f', 'w').write('one')")
    checkpoint = sandbox.checkpoint()
    seen = []

    with sandbox.files.watch("/home/user") as watch:
        run(sandbox, "_ = open('f', 'w').write('two')")
        sandbox.rollback(checkpoint)
        run(sandbox, "_ = open('end', 'w').write('')")

        for change in watch:
            seen.append(change.name)

            if change.name == "end":
                break

    assert set(seen) <= {"f", ".local", "end"}


def test_a_handle_that_was_open_for_writing_writes_to_the_file_again(sandbox):
    """The trap: it must not go on to write to the file that it had open before."""
    run(sandbox, "log = open('log.txt', 'w', buffering=1); log.write('first\\n')")
    checkpoint = sandbox.checkpoint()
    run(sandbox, "log.write('lost\\n'); log.close()")
    sandbox.rollback(checkpoint)
    run(sandbox, "log.write('second\\n')")
    assert sandbox.files.read("log.txt") == "first\nsecond\n"


@pytest.mark.parametrize("name", ["log (deleted)", "line\nbreak", "log"])
def test_handles_go_on_whatever_the_name(sync_face, name):
    """A name that looks like a deleted file's is a name; of a deleted file there is what each life has written."""
    sandbox = sync_face.open()
    run(sandbox, f"import mmap, os\nlog = open({name!r}, 'w'); _ = log.write('first '); log.flush()")
    run(sandbox, f"shared = mmap.mmap(os.open({name!r}, os.O_RDWR), 0)")
    run(sandbox, "gone = open('gone', 'w'); _ = gone.write('first '); gone.flush(); os.remove('gone')")
    checkpoint = sandbox.checkpoint()
    assert checkpoint.left_behind == ()
    fork = sandbox.fork(checkpoint=checkpoint.id)
    look = f"""
_ = log.write('second'), log.flush(), gone.write('second'), gone.flush(), shared.write(b'F')
open({name!r}).read(), open(f'/proc/self/fd/{{gone.fileno()}}').read()
"""

    for one in (sandbox, fork):
        assert run(one, look).text == "('First second', 'first second')"

    fork.kill()
    sandbox.rollback(checkpoint)
    assert run(sandbox, look).text == "('First second', 'first second')"


def test_what_cannot_be_kept_is_named(sandbox):
    """Threads, child processes, pipes and sockets; strict refuses, and nothing is harmed."""
    run(
        sandbox,
        """
import threading, subprocess, socket
stop = threading.Event()
thread = threading.Thread(target=stop.wait, name='ticker'); thread.start()
child = subprocess.Popen(['sleep', '1000'], stdin=subprocess.PIPE)
near, far = socket.socketpair()
""",
    )
    named = "; ".join(sandbox.checkpoint("loose").left_behind)

    for word in ("thread 'ticker'", "child process", "a pipe", "a socket"):
        assert word in named

    with pytest.raises(CheckpointError) as caught:
        sandbox.checkpoint(strict=True)

    assert "ticker" in str(caught.value)
    assert len(sandbox.list_checkpoints()) == 1
    # What goes on has all of it still, and its pipes end when it says so.
    told = run(
        sandbox,
        "near.send(b'x'); got = far.recv(1); child.kill(); child.wait(); stop.set(); thread.join(); got",
    )
    assert told.text == "b'x'"
    sandbox.rollback("loose")
    assert run(sandbox, "near.recv(1)").text == "b''"


def test_only_what_is_the_users_is_named(sandbox):
    """Not what the context or the checkpoint itself has open; and what leads nowhere is named once, and stays so."""
    run(sandbox, "add(n=1); _ = input()", tools={"add": lambda n: n + 1}, stdin="line\n")
    assert sandbox.checkpoint(strict=True).left_behind == ()
    run(
        sandbox,
        "import os, tempfile; ends = os.pipe(); f = tempfile.TemporaryFile(); _ = f.write(b'x'); f.flush()",
    )
    left_behind = sandbox.checkpoint().left_behind
    assert [line.split(": ")[1] for line in left_behind] == ["a pipe", "a pipe"]

    for _ in range(3):
        sandbox.rollback(sandbox.checkpoint())

    assert len(sandbox.checkpoint().left_behind) == 2
    run(sandbox, "os.close(ends[0]); os.close(ends[1])")
    assert sandbox.checkpoint(strict=True).left_behind == ()
    assert run(sandbox, "add(n=2)", tools={"add": lambda n: n + 1}).text == "3"


def test_tasks_of_an_earlier_life_write_under_its_names(sandbox):
    """What they print comes with the next execution, however many there have been in between."""
    run(
        sandbox,
        """
import asyncio
async def tick():
    while True:
        print('tick'); await asyncio.sleep(0.001)
task = asyncio.create_task(tick())
""",
    )
    checkpoint = sandbox.checkpoint()

    for count in range(4):
        for _ in range(count):
            run(sandbox, "1")

        sandbox.rollback(checkpoint)
        assert "tick" in "".join(run(sandbox, "await asyncio.sleep(0.01)").logs.stdout)


def test_many_go_back_at_once(sandbox):
    """One after the other, while others drop the checkpoint, restart the context, and run code in it."""
    run(sandbox, "x = 1; _ = open('f', 'w').write('1')")
    sandbox.checkpoint("one")
    run(sandbox, "x = 2; _ = open('f', 'w').write('2')")
    sandbox.checkpoint("two")

    async def at_once(async_impl):
        return await asyncio.gather(
            *(async_impl.rollback("one" if number % 2 else "two") for number in range(4)),
            async_impl.restart_code_context("default"),
            async_impl.run_code("x = 3"),
            async_impl.rollback("one"),
            async_impl.drop_checkpoint("one"),
            async_impl.rollback("two"),
            return_exceptions=True,
        )

    done = call(lambda: at_once(_async(sandbox)))
    wrong = [
        one for one in done if isinstance(one, Exception) and not isinstance(one, CheckpointNotFoundError)
    ]
    assert wrong == []
    assert [one.name for one in sandbox.list_checkpoints()] == ["two"]
    sandbox.rollback("two")
    assert run(sandbox, "x, open('f').read()").text == "(2, '2')"
    # Init, the checkpoint, and the context; each has one thread. What was dropped ends by itself.
    until(lambda: sandbox.get_metrics().processes <= 3)


def test_a_removed_context_is_not_gone_back_to(sandbox):
    """Its checkpoints lead nowhere any more, and nothing is left of it."""
    other = sandbox.create_code_context()
    checkpoint = sandbox.checkpoint(context=other)
    sandbox.remove_code_context(other)

    with pytest.raises(ContextNotFoundError):
        sandbox.rollback(checkpoint)


def test_a_record_shows_what_was_undone(sandbox):
    """Cells after the point, and transactions, are marked."""
    run(sandbox, "a = 1")
    checkpoint = sandbox.checkpoint()
    run(sandbox, "b = 2")
    sandbox.rollback(checkpoint)
    run(sandbox, "c = 3")
    sandbox.run_code("d = 4; 1 / 0", transactional=True)
    run(sandbox, "e = 5")
    cells = [(cell.code, cell.is_undone, cell.is_fresh) for cell in sandbox.get_record().cells]
    assert cells == [
        ("a = 1", False, True),
        ("b = 2", True, False),
        ("c = 3", False, False),
        ("d = 4; 1 / 0", True, False),
        ("e = 5", False, False),
    ]


def test_a_context_that_is_gone_can_be_gone_back_to(sandbox):
    """After a crash, and after a restart, the state of the checkpoint is there again."""
    run(sandbox, "x = 'alive'")
    checkpoint = sandbox.checkpoint()
    assert sandbox.run_code("import os; os.kill(os.getpid(), 9)").state_lost
    sandbox.rollback(checkpoint)
    assert run(sandbox, "x").text == "'alive'"
    sandbox.restart_code_context("default")
    assert run(sandbox, "'x' in globals()").text == "False"
    sandbox.rollback(checkpoint)
    assert run(sandbox, "x").text == "'alive'"


def test_a_life_after_going_back_is_an_ordinary_one(sandbox):
    """It can be interrupted, limited, killed and restarted, its children die with it, and output comes in order."""
    checkpoint = sandbox.checkpoint()
    sandbox.rollback(checkpoint)
    stopped = sandbox.run_code("import time\nwhile True: time.sleep(0.01)", timeout=0.2)
    assert stopped.error.kind == "time_limit"
    assert not stopped.state_lost
    told = sandbox.run_code("import os\nprint('a', flush=True); os.system('echo b'); print('c'); 1 / 0")
    assert "".join(told.logs.stdout) == "a\nb\nc\n"
    assert told.error.name == "ZeroDivisionError"
    died = sandbox.run_code("import os; os._exit(3)")
    assert died.state_lost
    assert run(sandbox, "1 + 1").text == "2"


def test_a_killed_checkpoint_is_a_typed_error(sandbox):
    """User code can end it; then nothing is undone, and it is no longer listed."""
    run(sandbox, "x = 1")
    sandbox.checkpoint("doomed")
    run(
        sandbox,
        """
import os, signal
x = 2
me = os.getpid()
for name in os.listdir('/proc'):
    if name.isdigit() and int(name) not in (1, me):
        try: os.kill(int(name), signal.SIGKILL)
        except PermissionError: pass
""",
    )

    with pytest.raises(CheckpointLostError):
        sandbox.rollback("doomed")

    assert run(sandbox, "x").text == "2"
    assert sandbox.list_checkpoints() == []


def test_contexts_have_checkpoints_of_their_own(sandbox):
    """Going back with one leaves the variables of another alone."""
    other = sandbox.create_code_context()
    run(sandbox, "x = 1")
    run(sandbox, "x = 'other'", context=other)
    checkpoint = sandbox.checkpoint(context=other)
    run(sandbox, "x = 2")
    run(sandbox, "x = 'changed'", context=other)
    sandbox.rollback(checkpoint)
    assert run(sandbox, "x").text == "2"
    assert run(sandbox, "x", context=other).text == "'other'"
    with pytest.raises(ContextNotFoundError):
        sandbox.checkpoint(context="nobody")


def test_the_oldest_goes_first(sandbox):
    """There are sixteen at most."""
    names = [f"c{number}" for number in range(18)]

    for name in names:
        sandbox.checkpoint(name)

    assert [found.name for found in sandbox.list_checkpoints()] == names[2:]
    until(lambda: sandbox.get_metrics().processes < 30)


def test_a_command_that_writes_while_a_checkpoint_is_made_is_stopped_meanwhile(sandbox):
    """What other processes write is whole: a file is kept as it is at one moment."""
    handle = sandbox.commands.run("while true; do echo line >> /mnt/data/log; done", background=True)
    run(sandbox, "import os\nwhile not os.path.exists('/mnt/data/log'): pass")
    checkpoint = sandbox.checkpoint()
    run(sandbox, "size = os.path.getsize('/mnt/data/log')")
    handle.kill()
    sandbox.rollback(checkpoint)
    assert run(sandbox, "open('/mnt/data/log').read().replace('line\\n', '')").text == "''"
    assert sandbox.files.get_info("/mnt/data/log").size_bytes >= 5


_POOLS = """
import asyncio, numpy
from concurrent.futures import ThreadPoolExecutor
from sklearn.cluster import KMeans
pool = ThreadPoolExecutor(2)

async def use():
    points = numpy.repeat([[0.0], [1.0]], 2_000, axis=0)
    groups = set(KMeans(2, n_init=1, random_state=0).fit_predict(points))
    return pool.submit(pow, 2, 5).result(), await asyncio.to_thread(pow, 2, 6), len(groups)
"""


def test_thread_pools_work_again(sandbox):
    """Executors, `asyncio.to_thread` and OpenMP, once used, are used again after a rollback, in a fork and before."""
    assert sandbox.run_code(_POOLS).error is None
    used = "(32, 64, 2)"
    assert sandbox.run_code("await use()").text == used
    kept = sandbox.checkpoint()
    assert sandbox.run_code("await use()").text == used
    sandbox.rollback(kept)
    assert sandbox.run_code("await use()", timeout=60).text == used
    child = sandbox.fork()

    with child:
        assert child.run_code("await use()", timeout=60).text == used

    assert sandbox.run_code("await use()", timeout=60).text == used
