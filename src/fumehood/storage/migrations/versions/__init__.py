"""The revisions, each of which names the one before it."""
