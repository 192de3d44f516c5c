"""The port: the abstract interface of a backend of sandboxes, which the engine and the HTTP client implement.

Runs in the process of its caller. Its verbs take and return values and name a sandbox by its id. It must not import an
implementation; `AsyncSandbox`, the server and the contract tests know only this interface.
"""
