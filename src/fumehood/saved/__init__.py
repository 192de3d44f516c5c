"""Saved states: a file with the lasting parts of a sandbox, and a sandbox made from such a file.

Runs in the host process or the user's, over the port. Data of a guest is carried as bytes: nothing may be unpickled,
and no name from a guest or an archive may become a path of the host.
"""
