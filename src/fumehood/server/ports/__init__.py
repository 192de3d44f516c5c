"""Ports of sandboxes on the server's address: what a request names, what may pass, and what carries it.

`routes/ports.py` and the dialects use it. The responses of a guest are hostile.
"""
