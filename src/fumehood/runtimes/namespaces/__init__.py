"""Sandboxes of Linux namespaces, seccomp, Landlock and control groups; as root or as an ordinary user.

Runs in the host process, on the engine's loop. It must never do a privileged step itself: processes of `fumehood_jail`
do them.
"""
