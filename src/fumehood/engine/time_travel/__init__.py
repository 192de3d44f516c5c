"""Going back within one sandbox: checkpoints, snapshots, transactions, and the judge that forks them for its cases.

Runs in the host process, on the engine's loop. Data from a checkpoint must never be trusted.
"""
