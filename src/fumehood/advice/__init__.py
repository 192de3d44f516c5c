"""Advice about code before it runs, and outputs made safe to read: defence in depth, never the boundary."""
