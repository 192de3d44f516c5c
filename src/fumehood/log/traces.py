"""The trace that a request belongs to: passed on from process to process, and the spans that a process sends.

Used by a server, the adapters of a cluster and host daemons, whose spans of one request are one trace (W3C Trace
Context). OpenTelemetry is loaded only where its standard variables name a collector. Bodies, tokens and code are in no
span.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fumehood.log import events

TRACE_HEADER = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Traces:
    """The traces of a process.

    Attributes:
        provider: Makes and sends the spans; None if nothing is traced.
    """

    def __init__(self) -> None:
        self.provider: Any = None

    def begin(self, environ: Mapping[str, str], service: str) -> bool:
        """Begins to send spans if a collector is named, and returns whether it is.

        Args:
            environ: The environment.
            service: The name of this process in spans, unless a variable has another.
        """
        named = any(environ.get(name) for name in _ENDPOINTS)

        if not named or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return False

        try:
            # Imported late: heavy, and not installed with the server.
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as missing:
            events.TRACES_OFF.log(reason=str(missing), extra="otel")
            return False

        # The sampler, the limits and the exporter read the other standard variables themselves.
        named_otherwise = bool(environ.get("OTEL_SERVICE_NAME"))
        resource = Resource.create() if named_otherwise else Resource.create({"service.name": service})
        self.provider = TracerProvider(resource=resource)
        self.provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return True

    def end(self) -> None:
        """Sends the remaining spans; blocks for as long as that takes."""
        if self.provider is not None:
            self.provider.shutdown()
            self.provider = None

    def parent(self) -> str:
        """Returns the header that makes a request a part of the current span; empty outside of one."""
        if self.provider is None:
            return ""

        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(TRACE_HEADER, "")

    @contextmanager
    def span(self, name: str, parent: str) -> Iterator[str]:
        """Gives the block a span below `parent`, and yields the header of what the block asks for.

        Without traces, and for a request that belongs to none, the header is `parent` itself. The span is not made the
        current one, so that a generator may be left in another task than it was begun in.
        """
        if self.provider is None or not parent:
            yield parent
            return

        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        propagator = TraceContextTextMapPropagator()
        above = propagator.extract({TRACE_HEADER: parent})
        span = self.provider.get_tracer("fumehood").start_span(name, context=above)
        carrier: dict[str, str] = {}
        propagator.inject(carrier, context=set_span_in_context(span))

        try:
            yield carrier.get(TRACE_HEADER, parent)
        finally:
            span.end()


# Of this process.
TRACES = Traces()
