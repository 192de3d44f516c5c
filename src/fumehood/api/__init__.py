"""What the user holds: `Sandbox`, `AsyncSandbox`, their files, commands and verbs, over the port of sandboxes.

Runs in the user's process. It knows no engine: a backend does what it is asked, here or behind an address. The names
are in `fumehood` itself.
"""
