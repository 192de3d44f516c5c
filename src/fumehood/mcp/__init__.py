"""Sandboxes for models over the Model Context Protocol: `fumehood mcp`, and `/mcp` of `fumehood serve`.

Stands on the public names alone: whatever a tool does here, a user's own program can do. Nothing is loaded before a
server is made; the extra `mcp` brings the SDK.
"""
