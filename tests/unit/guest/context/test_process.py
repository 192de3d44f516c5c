"""A context as a process: its forks, its randomness, its damage, its end."""

from __future__ import annotations

import pytest


def test_randomness_differs_between_contexts(data_zygote):
    """Two contexts of one zygote draw different numbers from every generator."""
    code = (
        "import random, uuid, tempfile, secrets, numpy as np, multiprocessing\n"
        "[random.random(), float(np.random.rand()), str(uuid.uuid1()), str(uuid.uuid4()), "
        "tempfile.mktemp(), secrets.token_hex(),"
        " bytes(multiprocessing.current_process().authkey)]"
    )
    contexts = [data_zygote.start() for _ in range(2)]
    first, second = (eval(context.run(code).text) for context in contexts)
    assert all(a != b for a, b in zip(first, second))  # noqa: B905
    assert [context.close() for context in contexts] == [0, 0]


def test_a_forked_child_is_an_ordinary_program(context):
    """os.fork(): the child prints to fd 1, ends where its cell ends, and the parent goes on."""
    context.run("import os, sys")
    outcome = context.run(
        "print('before', end='')\npid = os.fork()\n"
        "if pid == 0:\n    print('child', os.path.exists('/proc/self/fd/3'))\nelse:\n"
        "    os.waitpid(pid, 0)\n    print('parent')"
    )
    assert outcome.stdout == "beforeparent\n"
    assert context.fd_out == "child False\n"
    assert context.run("1").text == "1"


def test_exit_statuses_of_forked_children(context):
    """A child's sys.exit and its uncaught errors give the statuses of a program."""
    code = (
        "import os, sys\npid = os.fork()\nif pid == 0:\n    {}\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    )
    assert context.run(code.format("sys.exit(7)")).text == "7"
    assert context.run(code.format("1/0")).text == "1"
    assert "ZeroDivisionError" in context.fd_err
    assert context.run(code.format("exit()")).text == "0"


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(context, method):
    """A pool works with every start method; with fork, functions of cells can be used too."""
    work = "work" if method == "fork" else "abs"
    outcome = context.run(
        f"import multiprocessing\ndef work(n):\n    print('w', flush=True)\n    return n * n\n"
        f"with multiprocessing.get_context({method!r}).Pool(2) as pool: found = "
        f"pool.map({work}, [-1, 2])\nfound"
    )
    assert outcome.error is None, outcome.traceback
    assert outcome.text == ("[1, 4]" if method == "fork" else "[1, 2]")
    assert context.fd_out.count("w\n") == (2 if method == "fork" else 0)


def test_shared_memory_queues_and_executors(context):
    """The rest of multiprocessing works too."""
    context.run(
        "import multiprocessing, concurrent.futures\n"
        "mp = multiprocessing.get_context('fork')\nqueue = mp.Queue()\n"
        "p = mp.Process(target=queue.put, args=(5,)); p.start()"
    )
    assert context.run("value = queue.get(timeout=20); p.join(); [value, p.exitcode]").text == "[5, 0]"
    assert (
        context.run(
            "with concurrent.futures.ProcessPoolExecutor(2, mp_context=mp) as e: found = "
            "list(e.map(abs, [-1, -2]))\nfound"
        ).text
        == "[1, 2]"
    )


@pytest.mark.parametrize(
    "damage",
    [
        "import sys; sys.stdout = sys.stderr = sys.displayhook = sys.excepthook = None",
        "import sys; sys.modules.pop('json'); sys.modules.pop('os'); sys.modules.pop('__main__')",
        "import sys; sys.path.clear(); sys.meta_path.clear()",
        "import os; os.environ.clear()",
        (
            "import os; os.mkdir('/tmp/fumehood_gone'); os.chdir('/tmp/fumehood_gone'); "
            "os.rmdir('/tmp/fumehood_gone')"
        ),
        "import builtins; builtins.print = builtins.open = builtins.input = builtins.__import__ = None",
        "import builtins; builtins.len = builtins.isinstance = builtins.getattr = None",
        "import builtins; del builtins.dict, builtins.list, builtins.hasattr, builtins.Exception",
        "import sys; sys.setrecursionlimit(60)",
        "import time; time.monotonic = lambda: 0; time.time = None",
        "import os; os.write = os.read = os._exit = None",
        "import json; json.dumps = json.loads = None; json.JSONEncoder.encode = None",
        "import signal; signal.pthread_sigmask = signal.signal = None",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))",
        "import threading; threading.get_ident = threading.RLock = threading.main_thread = None",
        "import gc; gc.disable(); gc.freeze()",
        "import socket; socket.setdefaulttimeout(0.001); socket.socket.sendall = None",
        "get_ipython().history_manager = None",
        "get_ipython().displayhook = get_ipython().display_pub = None",
        "get_ipython().events = get_ipython().compile = None",
        "get_ipython().reset()",
        "%reset -f",
        "import linecache; linecache.getline = None; linecache.cache.clear()",
        "import asyncio; asyncio.set_event_loop(None); asyncio.new_event_loop = None",
        "import warnings; warnings.simplefilter('error')",
        "globals().clear()",
        "import os; os.close(1); os.close(2); os.close(0)",
        "import sys; sys.settrace(lambda *a: 1/0)",
        "import sys; sys.setprofile(lambda *a: None)",
        "import sys\ndef trace(*a): raise RuntimeError\nsys.setprofile(trace)",
        "import threading; threading.current_thread = None",
        "import os; os.closerange(4, 100)",
    ],
)
def test_damage_does_not_reach_the_next_cell(context, damage):
    """What one cell breaks leaves a context that runs the next cell and reports its errors."""
    context.run(damage)
    assert context.run("1 + 1").text == "2"
    assert context.run("print('alive')").stdout == "alive\n"
    assert context.run("1 / 0").error[0] == "ZeroDivisionError"
    assert context.run("x = 5").error is None
    assert context.run("x").text == "5"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import os; os._exit(5)", 5),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import ctypes; ctypes.string_at(0)", -11),
    ],
)
def test_the_end_of_the_process_is_the_end(bare_zygote, code, status):
    """A context that ends itself ends with the status that it chose."""
    context = bare_zygote.start()
    context.send(code)
    assert context.close() == status


def test_a_context_without_a_channel_ends(bare_zygote):
    """A cell that closes the channel ends its context."""
    context = bare_zygote.start()
    context.send("import os; os.close(3)\nprint('x')")
    assert context.close() == 0
