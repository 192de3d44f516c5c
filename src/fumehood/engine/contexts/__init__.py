"""The contexts of a sandbox on the host's side: their processes, requests, output and usage.

All data from a context comes from user code, and must never be trusted.
"""
