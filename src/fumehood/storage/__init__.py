"""The database of a server: keys, usage, replies and uploaded files.

Runs in the server process; needs the extra `server`. It must not know of requests, live
sandboxes or the server.
"""
