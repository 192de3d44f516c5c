"""The metrics of the server, for Prometheus.

Labels have few values (routes, not paths; codes, not messages), so that no caller can make the server remember more.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from fumehood.values.machines import MachineInfo
from fumehood.values.security import SecurityEvent

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# A cluster has few machines, and callers cannot make any.
_MACHINE_GAUGES = {
    "up": "Whether the machine answers.",
    "sandboxes": "Sandboxes that live on the machine.",
    "max_sandboxes": "Sandboxes that may live there.",
    "memory_available_bytes": "Memory that is available there.",
    "cpu_cores": "Processors of the machine.",
    "load": "Tasks that ran or waited to run there, on average over the last minute.",
    "pool_ready": "Sandboxes that are ready there.",
}


class ServerMetrics:
    """The Prometheus metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # Descriptors, memory and CPU time of this process.
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "fumehood_http_requests_total",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "fumehood_http_request_seconds",
            "Time from a request to the end of its answer.",
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.executions = Counter(
            "fumehood_executions_total", "Executions that ended.", ("outcome",), registry=self.registry
        )
        self.cpu_seconds = Counter(
            "fumehood_execution_cpu_seconds_total", "CPU time of executions.", registry=self.registry
        )
        self.sandboxes_started = Counter(
            "fumehood_sandboxes_started_total", "Sandboxes handed out.", registry=self.registry
        )
        self.sandboxes = Gauge("fumehood_sandboxes", "Sandboxes that live.", registry=self.registry)
        self.pool_ready = Gauge(
            "fumehood_pool_ready", "Sandboxes that are ready to be handed out.", registry=self.registry
        )
        self.security_events = Counter(
            "fumehood_security_events_total",
            "Security events of sandboxes.",
            ("kind", "action"),
            registry=self.registry,
        )
        self.rate_limited = Counter(
            "fumehood_rate_limited_total",
            "Requests refused because of a rate.",
            ("limit",),
            registry=self.registry,
        )
        self.tasks = Gauge("fumehood_tasks", "Tasks of the server's loop.", registry=self.registry)
        self.queue_waiting = Gauge(
            "fumehood_queue_waiting", "Stateless runs that wait.", registry=self.registry
        )
        self.queue_running = Gauge("fumehood_queue_running", "Stateless runs.", registry=self.registry)

        self._machines = {
            name: Gauge(f"fumehood_machine_{name}", text, ("machine",), registry=self.registry)
            for name, text in _MACHINE_GAUGES.items()
        }

    def note_machines(self, machines: Iterable[MachineInfo]) -> None:
        """Sets the gauges of the machines to their last reports; removes the metrics of machines that are gone."""
        for gauge in self._machines.values():
            gauge.clear()

        for machine in machines:
            self._machines["up"].labels(machine.host_id).set(machine.capacity is not None)

            if machine.capacity is not None:
                for name in (
                    "sandboxes",
                    "max_sandboxes",
                    "memory_available_bytes",
                    "cpu_cores",
                    "load",
                    "pool_ready",
                ):
                    self._machines[name].labels(machine.host_id).set(getattr(machine.capacity, name))

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        route = route or "other"
        self._requests.labels(
            method if method.isalpha() and len(method) < 8 else "other", route, status
        ).inc()
        self._seconds.labels(route).observe(seconds)

    def note_security_event(self, event: SecurityEvent) -> None:
        """Counts a security event of a sandbox."""
        self.security_events.labels(event.kind, event.action).inc()

    def counted_security_events(self) -> list[tuple[str, str, int]]:
        """Returns kind, action and number of the security events since the start, the most frequent first."""
        counts = [
            (sample.labels["kind"], sample.labels["action"], int(sample.value))
            for family in self.security_events.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        ]
        return sorted(counts, key=lambda one: (-one[2], one[:2]))

    def note_rate_limited(self, limit: str) -> None:
        """Counts a request that was refused because of a rate."""
        self.rate_limited.labels(limit).inc()

    def text(self) -> bytes:
        """Returns everything in Prometheus' text format."""
        return generate_latest(self.registry)
