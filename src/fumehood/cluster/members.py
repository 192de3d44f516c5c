"""The machines of the Ray cluster, and an adapter on each: the only module that asks Ray about the cluster.

Runs in the server process, in a thread of its own: while Ray's head is away, each question to it blocks until it is
back. It tells the loop what it sees and must not wait for the loop. Calls to adapters continue meanwhile, as their
handles are kept.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fumehood.cluster.adapter import HostAdapter
from fumehood.cluster.ray_settings import HOST_LABEL, HOST_RESOURCE, NAMESPACE
from fumehood.log import events

_LOOK_SECONDS = 1.0
# Far above what a machine admits: beyond it a call would wait at the actor, and not be refused.
_CONCURRENT_CALLS = 10_000
_OWN_LABELS = ("ray.io/",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A machine that Ray says is alive.

    Attributes:
        host_id: The name of its host.
        node_id: Ray's name of it, which is another after each start of its raylet.
        labels: Its labels, without those of Ray.
        adapter: The handle of its adapter.
    """

    host_id: str
    node_id: str
    adapter: Any
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What one look at the cluster has found.

    Attributes:
        began_at: When the look began, on the steady clock: its findings are from that moment or later.
        alive: The machines that Ray says are alive, by host.
        ended: How many times each machine has left or died, by host; a higher count than before means that the machine
            was back meanwhile.
    """

    began_at: float
    alive: Mapping[str, Member]
    ended: Mapping[str, int]


class Members:
    """Looks at the machines of the cluster once a second.

    Args:
        address: The address of Ray's head.
        tell: Called in this thread with what was seen, after each look.
    """

    def __init__(self, address: str, tell: Callable[[ClusterView], object]) -> None:
        self._address = address
        self._tell = tell
        self._known: dict[str, Member] = {}
        self._lost_adapters: set[str] = set()
        self._wanted_hosts = 0
        self._asked_hosts = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_again, name="cluster members", daemon=True)

    def start(self) -> None:
        """Connects to Ray and begins to look; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Stops looking; a thread that waits for Ray's head ends with the process."""
        self._ended.set()

    def renew_adapter(self, host_id: str) -> None:
        """Requests a new adapter for a machine, in case Ray has given up the old one."""
        self._lost_adapters.add(host_id)

    def want_hosts(self, count: int) -> None:
        """Requests a total number of machines from Ray's autoscaler, if there is one."""
        self._wanted_hosts = count

    def _look_again(self) -> None:
        is_connected = False

        while not self._ended.is_set():
            began = time.monotonic()

            try:
                if not is_connected:
                    self._connect()
                    is_connected = True

                self._tell(self._look())
                self._ask_for_hosts()
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds, and all mean: look again.
                events.CLUSTER_UNREACHABLE.log(
                    address=self._address, reason=f"{type(error).__name__}: {error}"
                )

            self._ended.wait(max(0.0, began + _LOOK_SECONDS - time.monotonic()))

        if is_connected:
            import ray

            ray.shutdown()

    def _connect(self) -> None:
        # Late, and here: it takes a second, and only a server of a cluster needs it.
        import ray

        ray.init(
            address=self._address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            ignore_reinit_error=True,
        )

    def _look(self) -> ClusterView:
        import ray

        began_at = time.monotonic()
        found: dict[str, Member] = {}
        ended: Counter[str] = Counter()

        for node in ray.nodes():
            labels = dict(node.get("Labels") or {})
            host_id = labels.pop(HOST_LABEL, "")

            if not node["Alive"] or not host_id:
                ended[host_id] += 1
                continue

            known = self._known.get(host_id)

            if known is None or known.node_id != node["NodeID"] or host_id in self._lost_adapters:
                self._lost_adapters.discard(host_id)
                shown = {name: value for name, value in labels.items() if not name.startswith(_OWN_LABELS)}
                known = Member(
                    host_id=host_id, node_id=node["NodeID"], labels=shown, adapter=_adapter_on(host_id)
                )

            found[host_id] = known

        self._known = found
        return ClusterView(began_at=began_at, alive=found, ended=ended)

    def _ask_for_hosts(self) -> None:
        if self._wanted_hosts == self._asked_hosts:
            return

        from ray.autoscaler.sdk import request_resources

        self._asked_hosts = self._wanted_hosts
        request_resources(bundles=[{HOST_RESOURCE: 1}] * self._asked_hosts)


def _adapter_on(host_id: str) -> Any:
    """Returns the handle of a machine's adapter, made if missing; all servers share it."""
    import ray

    actor = ray.remote(HostAdapter).options(
        name=f"host-{host_id}",
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        # Never on another machine: it would reach other sandboxes.
        label_selector={HOST_LABEL: host_id},
        resources={HOST_RESOURCE: 1},
        num_cpus=0,
        max_restarts=-1,
        # A call that may have been carried out is not repeated by itself.
        max_task_retries=0,
        max_concurrency=_CONCURRENT_CALLS,
        enable_task_events=False,
    )
    return actor.remote()
