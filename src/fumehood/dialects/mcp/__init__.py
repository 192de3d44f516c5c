"""The Model Context Protocol at `/mcp` of the server: the tools of `fumehood.mcp`, with separate sandboxes per caller.

Runs in the server process. It must not define tools of its own.
"""
