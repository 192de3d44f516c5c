"""Traces of requests with OpenTelemetry, configured by its own standard variables.

It is on when `OTEL_EXPORTER_OTLP_ENDPOINT` (or its variant for traces) names a collector, and the extra `otel` is
installed. Bodies, tokens and code are in no span.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI

from fumehood.log import events

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def trace(app: FastAPI, environ: Mapping[str, str]) -> Callable[[], None]:
    """Begins to trace the requests of an app, if a collector is named.

    Returns:
        A function that sends the remaining spans, to be called at the end; it blocks for as long as that takes.
    """
    named = any(environ.get(name) for name in _ENDPOINTS)

    if not named or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return _nothing

    try:
        # Imported late: heavy, and not installed with the server.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as missing:
        events.TRACES_OFF.log(reason=str(missing), extra="otel")
        return _nothing

    # The sampler, the limits and the exporter read the other standard variables themselves.
    resource = Resource.create() if environ.get("OTEL_SERVICE_NAME") else Resource.create(_NAME)
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    FastAPIInstrumentor.instrument_app(app, tracer_provider=provider, exclude_spans=["receive", "send"])
    return provider.shutdown


_NAME = {"service.name": "fumehood"}


def _nothing() -> None:
    """Does nothing, in place of sending spans."""
