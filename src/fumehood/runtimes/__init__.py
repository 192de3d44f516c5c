"""Runtimes: `base` is the port of a runtime, `namespaces` and `landlock` implement it on what they share in `linux`.

Runs in the host process, on the engine's loop. Runtimes are the only part of the host that knows `fumehood_jail`; they
must never interpret what guest code sends, which is the engine's task.
"""
