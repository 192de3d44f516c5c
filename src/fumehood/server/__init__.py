"""The server: one ASGI app over one backend, with the native API and the dialects of `fumehood.dialects`.

Runs in the server process (`fumehood serve`). Its routes must reach sandboxes through the port only, never
through the engine, so that a host daemon can take the engine's place.
"""
