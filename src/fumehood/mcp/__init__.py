"""Sandboxes for models over the Model Context Protocol: `fumehood mcp`, and `/mcp` of `fumehood serve`.

Runs in the process of `fumehood mcp` or of the server. It uses the public names only, so a user's own program can do
what its tools do. It must not load the SDK, which the extra `mcp` brings, before a server is made.
"""
