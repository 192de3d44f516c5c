"""Sandboxes for the agent frameworks of others: one module a framework, each over the public names of fumehood alone.

Runs in the user's process. Importing this package imports nothing; importing one of its modules needs the framework
it is named after (`pip install 'fumehood[NAME]'`), and no other. The adapters know nothing of each other, and never
anything of the engine: what one of them can do, a program of yours can do too.
"""
