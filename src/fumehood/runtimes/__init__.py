"""How isolation is made: `base` is the port of a runtime, each folder fills it in one way.

Runs in the host process, on the engine's loop. Runtimes are the only part of the host that knows `fumehood_jail`.
"""
