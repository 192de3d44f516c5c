"""The contexts of a sandbox, as the host sees them: their processes, what they are asked, and what they say.

Runs in the host process, on the engine's loop. All that comes from a context comes from user code.
"""
