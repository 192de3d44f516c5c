"""Adapters to agent frameworks: one module for each framework, over the public names of fumehood.

Runs in the user's process. Importing this package imports nothing; importing one of its modules needs the framework
it is named after (`pip install 'fumehood[NAME]'`), and no other. An adapter must not use another adapter or the engine.
"""
