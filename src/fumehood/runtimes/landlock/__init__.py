"""Sandboxes of Landlock and seccomp alone, for machines that allow no user namespace.

It is a weaker level, and must never be used unless a caller names it.
"""
