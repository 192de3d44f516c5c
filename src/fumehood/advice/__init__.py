"""Static analysis of code before it runs, and delimiters around output for a model: defence in depth, not the boundary.

Runs in the process of the caller, or in the user's terminal as `fumehood scan`. The code is neither imported nor run,
and no other package may rely on a verdict for isolation.
"""
