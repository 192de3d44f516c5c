#!/bin/sh
# Starts a program so that it may hand out control groups of its own, and becomes it.
#
# In cgroup v2 a group that hands controllers down holds no processes. A service manager or a container engine starts
# the program in the very group that it has delegated; here it moves into a child of that group and switches the
# controllers on above itself. Nothing outside the delegated group is touched. Where that is not allowed, or there is
# no cgroup v2, the program starts all the same, and `isolation` of its sandboxes says that limits are degraded.
set -eu

group="/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)"

if [ -w "$group/cgroup.procs" ] && mkdir -p "$group/main" 2>/dev/null; then
    # All that is there: a container engine may have started an init before us.
    while read -r pid; do
        echo "$pid" >"$group/main/cgroup.procs" 2>/dev/null || true
    done <"$group/cgroup.procs"

    for controller in cpu memory pids; do
        echo "+$controller" >"$group/cgroup.subtree_control" 2>/dev/null ||
            echo "own-cgroup: the controller $controller cannot be handed down in $group" >&2
    done
else
    echo "own-cgroup: no delegated cgroup v2 here; limits of sandboxes will be degraded" >&2
fi

exec "$@"
