"""The figures of fumehood, measured beside their references in the same run. Charter of each file: its
docstring."""
