"""Traces of requests with OpenTelemetry, configured by its own standard variables.

It is on when `OTEL_EXPORTER_OTLP_ENDPOINT` (or its variant for traces) names a collector, and the extra `otel` is
installed. `fumehood.log.traces` has the parts that do not need an app.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import FastAPI

from fumehood.log import events
from fumehood.log.traces import TRACES


def trace(
    app: FastAPI, environ: Mapping[str, str], service: str = "fumehood", untraced: str | None = None
) -> Callable[[], None]:
    """Begins to trace the requests of an app, if a collector is named.

    Args:
        app: The app.
        environ: The environment.
        service: The name of this process in spans, unless a variable sets another name.
        untraced: The paths whose requests are not traced, as regular expressions separated by commas; None: the value
            of the standard variable.

    Returns:
        A function that sends the remaining spans, to be called at the end; it blocks for as long as that takes.
    """
    if TRACES.begin(environ, service):
        try:
            # Imported late: heavy, and not installed with the server.
            from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
        except ImportError as missing:
            events.TRACES_OFF.log(reason=str(missing), extra="otel")
            return TRACES.end

        FastAPIInstrumentor.instrument_app(
            app, tracer_provider=TRACES.provider, exclude_spans=["receive", "send"], excluded_urls=untraced
        )

    return TRACES.end
