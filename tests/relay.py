"""The program of `tests.forked.relayed`: stands for a command that a process forks which has imported it already.

It hands over its standard streams, its arguments, environment and folder, takes signals to the command, and ends with
its exit code. It imports next to nothing, which is all that it is for.
"""

import json
import os
import signal
import socket
import sys

forks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
forks.connect(sys.argv[1])
request = {"words": sys.argv[2:], "environ": dict(os.environ), "folder": os.getcwd()}
socket.send_fds(forks, [json.dumps(request).encode()], [2, 0, 1])
command = int(forks.recv(64))

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(command, number))

# The command has them; a reader must see that it closes them.
for stream in (0, 1):
    os.close(stream)

# A signal that the command has died of is the negative number, which no exit code can be.
code = int(forks.recv(64) or -signal.SIGKILL)
os._exit(code if code >= 0 else 128 - code)
