"""The one way out of a sandbox: what may be reached, checked and dialled by the same hands, and written down.

Runs in the host process, on the engine's loop. It takes bytes of a guest, which is hostile, and never does more with
them than its policy says; what it does not understand, it refuses.
"""
