"""The Model Context Protocol at `/mcp` of the server: the tools of `fumehood.mcp`, for each caller its own sandboxes.

Runs in the server process.
"""
