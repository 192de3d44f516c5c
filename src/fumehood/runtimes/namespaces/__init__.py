"""Sandboxes of Linux namespaces, seccomp, Landlock and control groups; as root or as an ordinary user.

Runs in the host process, on the engine's loop. What needs privileges is done by processes of `fumehood_jail`.
"""
