"""What is recorded of a sandbox and observed while it runs: audit records and security events.

Runs in the host process, on the engine's loop. None of it is a security boundary.
"""
