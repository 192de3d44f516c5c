"""The Model Context Protocol at `/mcp` of the server: the tools of `fumehood.mcp`, with separate sandboxes per caller.

It must not define tools of its own.
"""
