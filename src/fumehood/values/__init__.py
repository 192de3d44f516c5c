"""Frozen data that crosses the borders of processes: requests, answers, events, limits.

Everything here checks itself when it is made, holds no live object, and imports nothing but errors and text.
"""
