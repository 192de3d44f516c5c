"""Checkpoints, snapshots, transactions, the judge, and forks.

Runs in the host process, on the engine's loop. Data from a checkpoint must never be trusted.
"""
