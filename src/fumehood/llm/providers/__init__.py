"""Model providers behind one protocol: `Provider` is in `base`, each wire format in a file of its own.

A provider must not know the agent or the sandbox, and must keep keys out of errors.
"""
