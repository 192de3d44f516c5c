"""What is written down of a context: its variables as bytes, and whether an object has changed.

Runs in a context, between two cells.
"""
