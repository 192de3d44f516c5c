"""Going back within one sandbox: checkpoints, snapshots, transactions, and the judge that forks them for its cases.

Data from a checkpoint must never be trusted.
"""
