"""Sandboxes of Landlock and seccomp alone, for machines that allow no user namespace.

Runs in the host process, on the engine's loop. A weaker level, which callers must ask for by name.
"""
