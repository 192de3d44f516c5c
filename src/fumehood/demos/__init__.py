"""Demonstrations: short programs that show one ability of a sandbox.

Run in the user's terminal. They must use the public names only.
"""
