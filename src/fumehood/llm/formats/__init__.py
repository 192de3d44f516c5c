"""Translation between the providers' formats of tools, calls and answers and our own values.

Pure functions: they must not import an SDK.
"""
