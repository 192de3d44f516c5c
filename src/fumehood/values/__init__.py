"""Frozen data that crosses the boundaries of processes: requests, answers, events, limits.

Used in every process of fumehood outside of the sandbox. A value checks itself when it is made; it must not hold a live
object, and this package imports only errors and text.
"""
