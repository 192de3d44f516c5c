"""The host daemon, `fumehood host`: the engine in a process of its own, behind one unix socket.

A server that has its sandboxes there can end, crash and be replaced; the sandboxes live on. The daemon trusts whoever
may open its socket, which is its own user and root: whose a sandbox is, and how long it may live, is the server's to
say.
"""
