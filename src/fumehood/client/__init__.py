"""The port over HTTP: sandboxes that live in another process, behind a server or a host daemon.

Runs in the process that asks. Needs the extra `client`.
"""
