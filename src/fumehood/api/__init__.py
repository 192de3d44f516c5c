"""The public classes: `Sandbox`, `AsyncSandbox`, their files, commands and verbs, over the port of sandboxes.

Runs in the user's process. It must not know an engine: a backend carries out each request, in the same process or
behind an address. The names are exported by `fumehood` itself.
"""
