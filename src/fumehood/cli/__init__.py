"""The command line: one file for each command, over the public names.

Runs in the user's terminal. It holds no logic of its own: what a command does, a program can do with the public API.
"""
