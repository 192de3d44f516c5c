"""Audit records and security events of sandboxes.

Runs in the host process, on the engine's loop. None of it is a security boundary.
"""
