"""The port over HTTP: sandboxes of another process, behind a server or a host daemon.

Runs in the caller's process and needs the extra `client`. It must not start an engine, and it takes each response as
untrusted data.
"""
