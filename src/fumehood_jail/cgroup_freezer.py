"""Thaws cgroups of version 1 whose processes have been killed: a frozen process does not die until it is thawed.

Runs in the host process and, after its end, in the launcher. It must never make a process run that has not been killed:
the caller has already sent the signal. Version 2 needs none of this.
"""

from __future__ import annotations

import os

from fumehood_jail.cgroup_base import write_file


def thaw_folder(folder: str) -> None:
    """Thaws the cgroup at `folder`; does nothing if it is gone, or has no freezer of version 1."""
    try:
        write_file(f"{folder}/freezer.state", "THAWED")
    except FileNotFoundError:
        return


def thaw_family(parent: str, family: str) -> None:
    """Thaws every cgroup in `parent` whose name begins with `family`."""
    for name in os.listdir(parent):
        if name.startswith(family):
            thaw_folder(f"{parent}/{name}")
