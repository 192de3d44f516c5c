"""The dialects: APIs of other products whose clients the server accepts, one folder each.

Runs in the server process. A folder is routes (`adapter.py`) and translation. It uses the port of sandboxes and the
server's services; it must not import another dialect, and can be removed, since only its name in the settings refers
to it.
"""
