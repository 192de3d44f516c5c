"""The runs of the soak: ordinary ones, each with the one right answer, and hostile ones, each with a typed end.

Every run says what came of it: None when all is right, or what was wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from fumehood import AsyncSandbox, FumehoodError, Limits, arun_code

MIB = 1 << 20
SMALL = Limits(
    memory_bytes=192 * MIB,
    disk_bytes=16 * MIB,
    processes=32,
    wall_seconds=0.5,
    grace_seconds=0.3,
    stdout_bytes=1 << 16,
    result_bytes=MIB,
)

Ordinary = Callable[[AsyncSandbox, random.Random], Awaitable[str | None]]


def differs(found: object, expected: object) -> str | None:
    """Says that an answer is wrong."""
    return None if found == expected else f"{found!r:.300} instead of {expected!r:.300}"


# -- ordinary


async def stateless(_: AsyncSandbox, dice: random.Random) -> str | None:
    """A sandbox for one call."""
    a, b = dice.randrange(10**6), dice.randrange(10**6)
    return differs((await arun_code(f"{a} * {b}")).text, str(a * b))


async def variables(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """What one cell leaves, the next one finds."""
    value = dice.randrange(10**9)
    await sandbox.run_code(f"value = {value}")
    return differs((await sandbox.run_code("value + 1")).text, str(value + 1))


async def files(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """Bytes go in and come out."""
    content = dice.randbytes(dice.randrange(1, 200_000))
    await sandbox.files.write("data.bin", content)
    return differs(await sandbox.files.read("data.bin", format="bytes"), content)


async def command(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """A program of the system."""
    word = f"word-{dice.randrange(10**9)}"
    return differs((await sandbox.commands.run(["echo", word])).stdout, f"{word}\n")


async def bash(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """The other language."""
    a, b = dice.randrange(1000), dice.randrange(1000)
    execution = await sandbox.run_code(f"echo $(({a} + {b}))", language="bash")
    return differs("".join(execution.logs.stdout), f"{a + b}\n")


async def output(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """All lines, in their order, through Python and through a child process."""
    count = dice.randrange(1, 2000)
    execution = await sandbox.run_code(
        f"import subprocess\nfor n in range({count}): print(n)\n_ = subprocess.run(['echo', 'end'])"
    )
    expected = "".join(f"{n}\n" for n in range(count)) + "end\n"
    return differs("".join(execution.logs.stdout), expected)


async def failing_code(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """An exception is a result, and the state stays."""
    name = dice.choice(["ValueError", "KeyError", "ZeroDivisionError", "RuntimeError"])
    execution = await sandbox.run_code(f"raise {name}('why')")
    return differs(execution.error and execution.error.name, name)


async def time_over(sandbox: AsyncSandbox, _: random.Random) -> str | None:
    """It is interrupted, and the state stays."""
    await sandbox.run_code("kept = 1")
    execution = await sandbox.run_code("import time\ntime.sleep(60)", timeout=0.05)
    kind = execution.error and execution.error.kind
    return differs((kind, (await sandbox.run_code("kept")).text), ("time_limit", "1"))


async def contexts(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """A context of one's own has its own variables."""
    value = dice.randrange(10**9)
    context = await sandbox.create_code_context()
    await sandbox.run_code(f"mine = {value}", context=context)
    answer = (await sandbox.run_code("mine", context=context)).text
    await sandbox.remove_code_context(context)
    hidden = (await sandbox.run_code("'mine' in globals()")).text
    return differs((answer, hidden), (str(value), "False"))


async def going_back(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """State and files of the same time."""
    old = dice.randrange(10**9)
    await sandbox.run_code(f"x = {old}; _ = open('x', 'w').write('{old}')")
    point = await sandbox.checkpoint()
    await sandbox.run_code("x = 0; _ = open('x', 'w').write('0')")
    await sandbox.rollback(point)
    execution = await sandbox.run_code("(x, open('x').read())")
    await sandbox.drop_checkpoint(point)
    return differs(execution.text, str((old, str(old))))


async def transaction(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """What fails has not been."""
    value = dice.randrange(10**9)
    await sandbox.run_code(f"t = {value}")
    execution = await sandbox.run_code("t = 0; 1 / 0", transactional=True)
    outcome = execution.transaction and execution.transaction.outcome
    return differs((outcome, (await sandbox.run_code("t")).text), ("rolled_back", str(value)))


async def fork(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """A copy goes on from the same state, and neither sees what the other does."""
    value = dice.randrange(10**9)
    await sandbox.run_code(f"f = {value}")
    child = await sandbox.fork()
    try:
        theirs = (await child.run_code("f += 1; f")).text
    finally:
        await child.kill()

    return differs((theirs, (await sandbox.run_code("f")).text), (str(value + 1), str(value)))


async def pause(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """Afterwards it goes on."""
    value = dice.randrange(10**9)
    await sandbox.run_code(f"p = {value}")
    await sandbox.pause()
    await sandbox.resume()
    return differs((await sandbox.run_code("p")).text, str(value))


# Cheap ones come more often.
ORDINARY: list[Ordinary] = [
    *[stateless] * 6,
    *[variables] * 6,
    *[files] * 3,
    *[command] * 3,
    *[output] * 2,
    failing_code,
    bash,
    time_over,
    contexts,
    going_back,
    transaction,
    fork,
    pause,
]


async def given_up(sandbox: AsyncSandbox, dice: random.Random) -> str | None:
    """X14: somebody stops waiting at a random moment. The call ends once, and the sandbox is whole for the next."""
    # What is given up within a pause leaves it paused, as its caller has asked for.
    work = dice.choice([run for run in ORDINARY if run is not pause])
    call = asyncio.ensure_future(work(sandbox, dice))
    done, _ = await asyncio.wait({call}, timeout=dice.uniform(0, 0.03))

    if done:
        return call.result()

    call.cancel()
    await asyncio.wait({call})

    # It may have come to its end at the very moment.
    if not call.cancelled() and (problem := call.result()) is not None:
        return problem

    return await variables(sandbox, dice)


# -- hostile: code, and whether its execution must tell an error

HOSTILE = {
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", True),
    "memory bomb": ("x = []\nwhile True: x.append(bytearray(1 << 24))", True),
    "os._exit": ("import os\nos._exit(7)", True),
    "segmentation fault": ("import ctypes\nctypes.string_at(0)", True),
    "kill -9 of everything": (
        "import os\nfor pid in sorted(map(int, filter(str.isdigit, os.listdir('/proc'))), reverse=True):\n"
        "    try: os.kill(pid, 9)\n    except OSError: pass",
        True,
    ),
    "garbage on descriptors": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, os.urandom(4096))\n    except OSError: pass",
        False,
    ),
    "endless output": ("while True: print('x' * 10_000)", True),
    "endless output of a child": ("import subprocess\nsubprocess.run(['yes'])", True),
    "sys.exit": ("import sys\nsys.exit(3)", False),
    "recursion": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", True),
    "deaf to signals": (
        "import signal\nfor n in range(1, 32):\n"
        "    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        True,
    ),
    "a huge result": ("'x' * (100 << 20)", False),
    "threads without end": (
        "import threading\nwait = threading.Event()\nwhile True: threading.Thread(target=wait.wait).start()",
        True,
    ),
    "a full disk": (
        "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))",
        True,
    ),
    "descriptors without end": ("import os\nwhile True: os.dup(0)", True),
    "detached processes": (
        "import subprocess\nfor _ in range(20): subprocess.Popen(['setsid', 'sleep', '600'])",
        False,
    ),
    "stopped": ("import os\nos.kill(os.getpid(), 19)", True),
}


async def hostile(name: str) -> str | None:
    """Runs hostile code in a sandbox of its own: an execution that says what it was, or an error of the tree."""
    code, fails = HOSTILE[name]

    async with AsyncSandbox(limits=SMALL) as sandbox:
        try:
            execution = await sandbox.run_code(code)
        except FumehoodError:
            return None

        if fails and execution.error is None:
            return "no error was told"

        try:
            after = await sandbox.run_code("6 * 7")
        except FumehoodError:
            return None

        # What its processes hold may keep the next cell from working, and never lets it give another answer.
        return None if after.error is not None else differs(after.text, "42")


async def killed_checkpoint() -> str | None:
    """Code kills the checkpoint that it is to go back to."""
    async with AsyncSandbox(limits=SMALL) as sandbox:
        try:
            await sandbox.run_code("x = 1")
            point = await sandbox.checkpoint()
            await sandbox.commands.run(["sh", "-c", "kill -9 -1"])
        except FumehoodError:
            return None

        try:
            await sandbox.rollback(point)
        except FumehoodError:
            return None

        return differs((await sandbox.run_code("x")).text, "1")
