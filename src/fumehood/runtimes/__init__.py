"""Runtimes: how isolation is made. `base` is the port, the others are ways to fill it."""
