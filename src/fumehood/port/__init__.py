"""The port: the verbs of a place where sandboxes live, which the engine and the HTTP client both implement.

Values in, values out, sandboxes named by id; `AsyncSandbox`, the server and the contract suite know only this.
"""
