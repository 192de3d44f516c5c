"""Sandboxes of Landlock and seccomp alone, for machines that allow no user namespace.

Runs in the host process, on the engine's loop. It is a weaker level, and must never be used unless a caller names it.
"""
