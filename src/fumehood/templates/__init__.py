"""Templates: the Python environment, modules and files that a sandbox starts with; how they are built and stored.

Runs in the host process and in `fumehood template`. It must never import anything of an environment that it builds.
"""
