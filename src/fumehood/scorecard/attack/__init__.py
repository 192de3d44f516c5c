"""The attacker's program: tries one kind of attack and prints the kernel's answers, as JSON.

The same files run inside a sandbox, in every kind of process, and outside, where the positive control must show that
the attack works. They need the standard library of Python 3.9 only, and are never imported by the host: it copies them,
with `numbers.json` (the system calls of the machine) beside them.
"""
