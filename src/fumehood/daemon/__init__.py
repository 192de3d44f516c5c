"""The host daemon, `fumehood host`: the engine in a process of its own, behind one unix socket.

The sandboxes survive when a server that uses them ends, crashes or is replaced. The daemon trusts every process that
may open its socket, which are those of its own user and root. It must not decide about the owner or the
lifetime of a sandbox: the server does.
"""
