"""The dialect of Replit's code-exec: one route, code in, text out; and a client for programs written for it.

`adapter.py` runs in the server process, `client.py` in the caller's process. No other dialect
may import it.
"""
