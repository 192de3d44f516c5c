"""The dialect of Replit's code-exec: one route, code in, text out; and a client for programs written for it.

`adapter.py` and `running.py` run in the server process, `client.py` in the caller's process. No other dialect
may import it.
"""
