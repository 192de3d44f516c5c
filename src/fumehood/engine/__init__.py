"""The engine: sandboxes with their contexts, pools and limits, on one event loop in the host process.

All data from a guest is hostile; `channel` alone reads it. The engine must never make system calls that affect
sandboxes: runtimes do.
"""
