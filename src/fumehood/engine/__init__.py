"""The engine: keeps sandboxes, their contexts, pools and limits, in the host process on one event loop.

All that comes from a guest is hostile and read by `channel`; nothing here touches the kernel, runtimes do.
"""
