"""The contexts of a sandbox on the host's side: their processes, requests, output and usage.

Runs in the host process, on the engine's loop. All data from a context comes from user code, and must never be trusted.
"""
