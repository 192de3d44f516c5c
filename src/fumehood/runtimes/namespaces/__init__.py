"""Sandboxes of Linux namespaces, seccomp, Landlock and control groups; as root or as an ordinary user.

It must never do a privileged step itself: processes of `fumehood_jail` do them.
"""
