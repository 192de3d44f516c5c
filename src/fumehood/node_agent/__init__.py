"""The node agent of a machine in a cluster: starts and restarts the host daemon, Ray and, on the head, a server.

A process of its own, made by `fumehood cluster up` and `join`. It must not talk to Ray or to a sandbox. When it ends,
all that it has started ends; under systemd, units take its place.
"""
