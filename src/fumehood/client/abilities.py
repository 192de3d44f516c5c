"""The abilities of a host daemon: what it can do beyond the routes of version 0.1.0, by name.

A daemon lists its abilities in its figures, which a server of a cluster reads before it sends anything else; one that
lists none has none. So a server does without what a daemon of another version does not know, or asks another machine.
An ability is added here together with the verb, and is never given another meaning. Used in both processes; it only
names.
"""

from __future__ import annotations

# Runs that travel together: `POST /v1/host/runs`.
GROUPED_RUNS = "grouped_runs"
# Sandboxes with `on_host_loss`, which end where they are before they are made again elsewhere: a lease.
HOST_LOSS = "host_loss"

ABILITIES = (GROUPED_RUNS, HOST_LOSS)
