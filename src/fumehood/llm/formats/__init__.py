"""Translation between the providers' formats of tools, calls and answers and our own values.

Runs in the user's process. Pure functions: they must not import an SDK.
"""
