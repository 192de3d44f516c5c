"""Checkpoints, snapshots, transactions, the judge, and forks.

Runs in the host process, on the engine's loop. What a checkpoint claims must never be trusted.
"""
