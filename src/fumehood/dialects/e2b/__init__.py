"""The dialect of E2B: what its unmodified SDKs send, answered over the port of sandboxes.

A dialect can be taken out by removing its folder: nothing but the app's list of names knows it.
"""
