"""What is written down of a sandbox, and what is looked at while it runs: audit records and security events.

Runs in the host process, on the engine's loop. None of it is a wall.
"""
