"""The dialect of E2B: answers the requests of its unmodified SDKs over the port of sandboxes.

Runs in the server process. It must be removable: only its name in the app's list of dialects refers to it.
"""
