"""Exports parts of a context: its variables as bytes, and fingerprints that show changes.

Runs in a context, between two cells, and must never trust the objects that it reads.
"""
