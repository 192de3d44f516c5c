"""The engine: sandboxes with their contexts, pools and limits, on one event loop in the host process.

All data from a guest is hostile and read by `channel`. The engine must never make system calls about sandboxes itself:
runtimes do.
"""
