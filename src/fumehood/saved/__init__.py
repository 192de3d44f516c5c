"""Saved states: one file with what of a sandbox lasts, written from a sandbox and made a sandbox of again.

Host side, over the port. What a guest gave is carried as bytes: nothing is unpickled, and no name of a guest's, or of
an archive's, is ever a path of this machine.
"""
