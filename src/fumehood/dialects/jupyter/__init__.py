"""The dialect of Jupyter: kernels over REST and WebSocket, each of them a sandbox with its default context.

Runs in the server process, and `process.py` on the user's machine. `adapter.py` has the routes; the rest is
translation and the state of a kernel between requests: its clients, its queue, its history. No other dialect may
import it.
"""
