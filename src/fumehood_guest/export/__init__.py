"""What is exported of a context: its variables as bytes, and whether an object has changed.

Runs in a context, between two cells, and must never trust the objects that it reads.
"""
