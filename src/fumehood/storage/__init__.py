"""What a server remembers: keys, usage, replies and uploaded files.

Needs the extra `server`. Host side only; nothing here knows of requests, sandboxes that live, or the server.
"""
