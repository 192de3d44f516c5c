"""Going back and going on twice: checkpoints, snapshots, transactions, the judge, and forks.

Runs in the host process, on the engine's loop.
"""
