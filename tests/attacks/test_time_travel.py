"""Attacks on going back: user code that would keep, forge, break or outlive its checkpoints.

A checkpoint is a process of the guest and holds nothing that its context did not hold. So the question is what it can
do to the host, to the files, and to the promise that going back never goes half-way.
"""

from __future__ import annotations

import pytest
from tests.waiting import until

from fumehood import CheckpointError, CheckpointLostError, Limits, Sandbox


@pytest.fixture
def sandbox():
    with Sandbox(limits=Limits(grace_seconds=0.5)) as sandbox:
        yield sandbox


def run(sandbox, code, **options):
    execution = sandbox.run_code(code, **options)
    assert execution.error is None, execution.error
    return execution


def test_a_fork_that_never_returns_ends_its_context_only(sandbox, monkeypatch):
    """Code that runs at each fork can hang it: the checkpoint fails by name, and the sandbox lives."""
    from fumehood.engine.time_travel import checkpoints

    monkeypatch.setattr(checkpoints, "_FORK_SECONDS", 0.5)
    run(sandbox, "import os, time; os.register_at_fork(before=lambda: time.sleep(1000))")

    with pytest.raises(CheckpointError) as caught:
        sandbox.checkpoint()

    assert "register_at_fork" in str(caught.value)
    assert run(sandbox, "1 + 1").text == "2"


def test_a_checkpoint_that_hangs_is_not_waited_for(sandbox, monkeypatch):
    """The same in the child, where it cannot be seen by the context."""
    from fumehood.engine.time_travel import checkpoints

    monkeypatch.setattr(checkpoints, "_FORK_SECONDS", 0.5)
    run(sandbox, "x = 1; import os, time; os.register_at_fork(after_in_child=lambda: time.sleep(1000))")

    with pytest.raises(CheckpointError):
        sandbox.checkpoint()

    assert run(sandbox, "x").text == "1"


def test_a_life_that_never_begins_leaves_the_old_one(sandbox):
    """A checkpoint whose forks die at once: going back fails, and nothing was undone."""
    run(
        sandbox,
        "x = 1; import os; deadly = False\nos.register_at_fork(after_in_child=lambda: deadly and os._exit(0))",
    )
    run(sandbox, "deadly = 1")
    run(sandbox, "deadly = False")
    checkpoint = sandbox.checkpoint()
    run(sandbox, "x = 2")
    # The checkpoint's own copy of the switch cannot be reached any more; its process can.
    run(
        sandbox,
        "import signal\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit() and int(name) not in (1, os.getpid()):\n"
        "        os.kill(int(name), signal.SIGSTOP)",
    )
    with pytest.raises((CheckpointLostError, CheckpointError)):
        _soon(sandbox, checkpoint)

    assert run(sandbox, "x").text == "2"


def test_broken_words_on_the_line_end_the_sandbox(sandbox):
    """A checkpoint that speaks out of order is a guest that breaks the wire."""
    from fumehood import ProtocolViolationError, SandboxClosedError

    run(
        sandbox,
        """
import os, socket
_send = socket.socket.sendall
class Loud(socket.socket):
    def sendall(self, data, *rest):
        return super().sendall(data + data)
socket.socket = Loud
""",
    )

    def use():
        sandbox.checkpoint()
        sandbox.run_code("1")

    with pytest.raises((ProtocolViolationError, SandboxClosedError, CheckpointError)):
        use()


def test_a_lease_of_the_guests_own_blocks_no_one_else(sandbox):
    """Init does not wait for a file that user code has leased: the checkpoint fails by name, at once."""
    run(sandbox, "import fcntl\nf = open('leased', 'w'); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)")

    with pytest.raises(CheckpointError) as caught:
        sandbox.checkpoint()

    assert "leased" in str(caught.value)
    # The signal that the kernel has for its holder ends whoever does not expect it; but not the context.
    run(sandbox, "f.close()")
    sandbox.checkpoint()


def test_a_lease_of_the_guests_own_does_not_hold_up_going_back(sandbox):
    """A command that has leased a file of the checkpoint is told, as by any writer; the file is put back beside it."""
    run(sandbox, "_ = open('f', 'w').write('old')")
    checkpoint = sandbox.checkpoint()
    handle = sandbox.commands.run(
        "echo new > f; python3 -c \"import fcntl, signal, sys; signal.signal(signal.SIGIO, lambda *_: print('told'));"
        " f = open('f'); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK); sys.stdin.read()\"",
        background=True,
        stdin=True,
    )
    # Init, which has number 1, holds others, and gives one up while the command writes.
    run(
        sandbox,
        "while not any(line.split()[1] == 'LEASE' and line.split()[4] != '1' for line in open('/proc/locks')): pass",
    )
    sandbox.rollback(checkpoint)
    assert run(sandbox, "open('f').read()").text == "'old'"
    handle.close_stdin()
    assert handle.wait().stdout == "told\n"


def test_a_writer_waits_for_the_copy_and_no_longer(sandbox):
    """Files that are kept can be written to as before, by many at once."""
    run(sandbox, "for n in range(200): _ = open(f'f{n}', 'w').write('old' * 1000)")
    checkpoint = sandbox.checkpoint()
    run(
        sandbox,
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def write(n): open(f'f{n}', 'w').write('new')\n"
        "with ThreadPoolExecutor(16) as pool: list(pool.map(write, range(200)))",
        timeout=30,
    )
    sandbox.rollback(checkpoint)
    assert run(sandbox, "all(open(f'f{n}').read() == 'old' * 1000 for n in range(200))").text == "True"


def test_forged_signals_make_init_look_and_nothing_more(sandbox):
    """Whoever sends init the kernel's signal gains nothing."""
    checkpoint = sandbox.checkpoint()
    handle = sandbox.commands.run("while true; do kill -IO 1 || exit; done", background=True)
    run(sandbox, "x = 1; _ = open('f', 'w').write('x')")
    sandbox.rollback(checkpoint)
    assert run(sandbox, "import os; os.path.exists('f')").text == "False"
    handle.kill()


def test_a_full_disk_never_goes_back_half_way():
    """What cannot be kept is known: going back is refused, by name, and nothing is touched."""
    with Sandbox(limits=Limits(disk_bytes=32 << 20)) as sandbox:
        run(sandbox, "_ = open('big', 'wb').write(b'a' * (20 << 20)); x = 1")
        checkpoint = sandbox.checkpoint()
        # The copy for the snapshot does not fit beside it.
        run(sandbox, "_ = open('filler', 'wb').write(b'f' * (11 << 20)); x = 2")
        run(sandbox, "_ = open('big', 'r+b').write(b'changed')")

        with pytest.raises(CheckpointError) as caught:
            sandbox.rollback(checkpoint)

        assert "big" in str(caught.value)
        assert run(sandbox, "x, open('big', 'rb').read(7), __import__('os').path.exists('filler')").text == (
            "(2, b'changed', True)"
        )


def test_thousands_of_files_are_kept(sandbox):
    """More than may be leased; and they go back."""
    run(
        sandbox, "import os; os.mkdir('many')\nfor n in range(6000): _ = open(f'many/{n}', 'w').write(str(n))"
    )
    checkpoint = sandbox.checkpoint()
    assert checkpoint.files == 6000
    run(
        sandbox,
        "for n in range(0, 6000, 2): _ = open(f'many/{n}', 'w').write('x')\n"
        "for n in range(1, 6000, 20): os.remove(f'many/{n}')",
    )
    sandbox.rollback(checkpoint)
    assert run(sandbox, "all(open(f'many/{n}').read() == str(n) for n in range(6000))").text == "True"


# As the kernel announces a lease that is broken, but for the code, which a process cannot set to a positive number.
FORGED = """
import contextlib, ctypes, os, signal, struct
libc = ctypes.CDLL(None, use_errno=True)
NUMBER = {"x86_64": 129, "aarch64": 138}[os.uname().machine]
def forge(fd, code):
    info = struct.pack("=iiiiqi96x", signal.SIGRTMIN, 0, code, 0, 1, fd)
    return libc.syscall(NUMBER, 1, int(signal.SIGRTMIN), info)
queued = [forge(fd, -1) for fd in range(1000)]
refused = [forge(fd, code) for fd in (3, 20) for code in (1, 3)]
for _ in range(1000):
    # Where Landlock knows signals (Linux 6.12), this is refused; elsewhere it arrives.
    with contextlib.suppress(PermissionError):
        os.kill(1, signal.SIGRTMIN)
        os.kill(1, signal.SIGIO)
"""


def test_forged_lease_breaks_give_nothing_away(sandbox):
    """Signals as the kernel sends them for a file that is opened: what was not opened stays kept, as does what is."""
    run(sandbox, "_ = [open(name, 'w').write('old') for name in 'ab']")
    checkpoint = sandbox.checkpoint()

    run(sandbox, FORGED)
    assert run(sandbox, "set(queued) in ({0}, {-1}), set(refused)").text == "(True, {-1})"
    run(sandbox, "_ = open('a', 'w').write('new')")

    sandbox.rollback(checkpoint)
    assert run(sandbox, "[open(name).read() for name in 'ab']").text == "['old', 'old']"


def test_no_signal_is_blocked_for_the_guest_after_a_checkpoint(sandbox):
    """Init blocks one for itself; what it starts does not inherit that."""
    blocked = "grep SigBlk /proc/self/status"
    sandbox.checkpoint()

    assert sandbox.commands.run(blocked).stdout.split() == ["SigBlk:", "0" * 16]
    assert run(sandbox, f"import subprocess; subprocess.getoutput('{blocked}').split()[1]").text == repr(
        "0" * 16
    )
    # The control: the same words show one that is blocked.
    assert sandbox.commands.run(f"env --block-signal=RTMIN {blocked}").stdout.split()[1] != "0" * 16


def test_checkpoints_count_as_the_sandboxs_own():
    """Processes and memory of checkpoints are bounded as all others."""
    with Sandbox(limits=Limits(processes=8)) as sandbox:

        def fill():
            for _ in range(16):
                sandbox.checkpoint()

        with pytest.raises(CheckpointError):
            fill()

        assert run(sandbox, "1 + 1").text == "2"


def test_nothing_is_left_of_them(sandbox):
    """Dropped ones are gone, and so is all with the sandbox."""
    before = sandbox.get_metrics().processes

    for _ in range(5):
        sandbox.rollback(sandbox.checkpoint("c"))
        sandbox.drop_checkpoint("c")

    run(sandbox, "1")
    until(lambda: sandbox.get_metrics().processes <= before)


def _soon(sandbox, checkpoint):
    """Goes back, or gives up after a while: what is stopped answers nothing."""
    import asyncio

    from fumehood.portal import call

    async def roll_back():
        async with asyncio.timeout(30):
            await sandbox._async.rollback(checkpoint)

    call(roll_back)
