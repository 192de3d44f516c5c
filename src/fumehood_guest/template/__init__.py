"""The processes of a template, outside all sandboxes: the jail's init, which makes sandboxes, and the zygote.

They hold no secret, have one thread each and must never run user code.
"""
