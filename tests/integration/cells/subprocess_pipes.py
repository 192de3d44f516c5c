"""subprocess: pipes, shells, pipelines, environments, signals and process groups."""

import os
import signal
import subprocess
import sys

run = subprocess.run
assert run(["cat"], input=b"x" * 1_000_000, capture_output=True, check=True).stdout == b"x" * 1_000_000
assert run("seq 1000 | sort -rn | head -1", shell=True, capture_output=True, text=True).stdout == "1000\n"
assert run([sys.executable, "-c", "import sys; sys.exit(7)"]).returncode == 7
assert run(["env"], env={"ONLY": "this"}, capture_output=True).stdout == b"ONLY=this\n"
assert run(["pwd"], cwd="/tmp", capture_output=True, text=True).stdout == "/tmp\n"

timed_out = False

try:
    run(["sleep", "60"], timeout=0.05)
except subprocess.TimeoutExpired:
    timed_out = True

assert timed_out

child = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.killpg(child.pid, signal.SIGTERM)
assert child.wait(20) == -signal.SIGTERM

first = subprocess.Popen(["echo", "piped"], stdout=subprocess.PIPE)
second = subprocess.Popen(["tr", "a-z", "A-Z"], stdin=first.stdout, stdout=subprocess.PIPE)
first.stdout.close()
assert second.communicate(timeout=20)[0] == b"PIPED\n"
assert first.wait(20) == 0

with os.popen("uname -n") as answer:
    assert answer.read() == "fumehood\n"

assert os.system("true") == 0
print("works")
