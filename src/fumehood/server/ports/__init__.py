"""Ports of sandboxes on the server's address: the target of a request, the headers that pass, and the proxy.

`routes/ports.py` and the dialects use it. The responses of a guest are hostile.
"""
