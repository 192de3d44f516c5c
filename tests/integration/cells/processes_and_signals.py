"""ctypes with libc, signal.alarm, os.fork and exec, pidfds, timers, and deep recursion."""

import ctypes
import os
import select
import signal
import sys
import threading

libc = ctypes.CDLL("libc.so.6", use_errno=True)
assert libc.getpid() == os.getpid()
assert libc.atoi(b"42") == 42


class Expired(Exception):
    pass


def expire(*_):
    raise Expired


previous = signal.signal(signal.SIGALRM, expire)

for start in (lambda: signal.alarm(1), lambda: signal.setitimer(signal.ITIMER_REAL, 0.01)):
    start()

    try:
        threading.Event().wait(30)
    except Expired:
        pass
    else:
        raise AssertionError("the alarm did not come")

signal.signal(signal.SIGALRM, previous)

reading, writing = os.pipe()
pid = os.fork()

if pid == 0:
    os.write(writing, b"from the child")
    os._exit(5)

pidfd = os.pidfd_open(pid)
assert select.select([pidfd], [], [], 20)[0]
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
assert os.read(reading, 100) == b"from the child"
os.close(pidfd)

pid = os.fork()

if pid == 0:
    os.execvp("sh", ["sh", "-c", "kill -9 $$"])

assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1]) == 0


def depth(levels):
    return 0 if levels == 0 else 1 + depth(levels - 1)


limit = sys.getrecursionlimit()
sys.setrecursionlimit(20_000)
assert depth(15_000) == 15_000
sys.setrecursionlimit(limit)

try:
    depth(10**9)
except RecursionError:
    print("works")
