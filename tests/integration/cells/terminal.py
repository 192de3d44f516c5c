"""Terminals of its own: pty.fork, window sizes, job control of an interactive bash."""

import fcntl
import os
import pty
import select
import struct
import termios

pid, terminal = pty.fork()

if pid == 0:
    os.execvp("bash", ["bash", "--norc", "-i"])

fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
os.write(terminal, b"stty -echo; stty size; sleep 60 & jobs; kill %1; wait; tty; echo the-''end\n")
shown = b""

while b"the-end\r\n" not in shown:
    assert select.select([terminal], [], [], 20)[0], shown
    shown += os.read(terminal, 4096)

assert b"40 120" in shown, shown
assert b"Running" in shown, shown
assert b"/dev/pts/0" in shown, shown
assert b"no job control" not in shown, shown
os.write(terminal, b"exit 4\n")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
os.close(terminal)
print("works")
