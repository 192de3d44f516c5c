"""Shows: short programs that make one ability of a sandbox visible, for whoever wants to see before reading.

Run in the user's terminal, and use the public names alone.
"""
