"""How Ray is started and used: its variables, the labels and resources of a machine, the command lines.

Used by the command line and by servers; pure data, without Ray. The same variables hold for `ray start` on every
machine and for every server, or their processes would not agree about time-outs and tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

NAMESPACE = "fumehood"
# The label of a machine of Ray that names its host; a node's own id changes with each start of its raylet.
HOST_LABEL = "fumehood-host-id"
# What a machine with a host daemon has one of; also what an autoscaler is asked for.
HOST_RESOURCE = "sandbox_host"
DEFAULT_PORT = 6379
# A machine is dead after four probes without an answer, which takes 20 s. By default a partition takes a minute;
# faster, and Ray would give up machines that are busy. Servers ask by themselves, and know earlier.
_PROBE = {
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_raylet_liveness_self_check_interval_ms": "5000",
}
_OBJECT_STORE_BYTES = 200_000_000


def environment(token_file: str) -> dict[str, str]:
    """Returns the variables of all processes of Ray on a machine, and of servers there.

    Args:
        token_file: The file with the cluster's token.
    """
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": token_file,
        # The head may be away for an hour: nothing ends meanwhile.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
        # Ray would kill adapters when sandboxes use much memory; the host daemon looks after that.
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_niceness": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_usage_stats_enabled": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        **_PROBE,
    }


def head_environment(storage: str) -> dict[str, str]:
    """Returns the additional variables of the head, with which its state survives a restart.

    Args:
        storage: The folder of the head's state.
    """
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": storage}


def loopback_environment() -> dict[str, str]:
    """Returns the variables of all processes of Ray on a machine that no other machine reaches.

    Ray replaces a loopback address by the machine's own address, unless its clusters are turned off. The variable that
    turns them off is named after the systems on which they are off by default.
    """
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


def start_arguments(
    *,
    address: str,
    node_address: str,
    host_id: str,
    labels: Mapping[str, str],
    head_port: int | None = None,
    temp_folder: str = "",
) -> list[str]:
    """Returns the arguments of `ray start` for a machine; the process stays in the foreground.

    Args:
        address: The head's HOST:PORT, for a machine that joins.
        node_address: The address of this machine that the others reach; empty: Ray finds one.
        host_id: The name of its host; empty: no sandboxes on this machine.
        labels: The machine's labels.
        head_port: The port of the head that is started; None: the machine joins one.
        temp_folder: Where Ray keeps sockets and logs, which it opens to all users; empty: /tmp/ray.
    """
    all_labels = {**labels, **({HOST_LABEL: host_id} if host_id else {})}
    resources = {HOST_RESOURCE: 1} if host_id else {}
    place = (
        [f"--address={address}"]
        if head_port is None
        else ["--head", f"--port={head_port}", "--include-dashboard=false"]
    )
    return [
        "start",
        *place,
        *([f"--node-ip-address={node_address}"] if node_address else []),
        *([f"--temp-dir={temp_folder}"] if temp_folder else []),
        *(
            [f"--labels={','.join(f'{name}={value}' for name, value in all_labels.items())}"]
            if all_labels
            else []
        ),
        f"--resources={json.dumps(resources)}",
        # No task of others is run here.
        "--num-cpus=0",
        "--num-gpus=0",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--disable-usage-stats",
        "--block",
    ]
