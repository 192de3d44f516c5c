"""The dialect of E2B: answers the requests of its unmodified SDKs over the port of sandboxes.

It must be removable: only its name in the app's list of dialects refers to it.
"""
