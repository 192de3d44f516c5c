"""What those see who run a server: counters for Prometheus, traces for an OpenTelemetry collector, and the log."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from fumehood.cluster.adapter import HostAdapter
from fumehood.cluster.exchange import pack_headers, unpack
from fumehood.log.traces import TRACES

CALLER_ID = "b7ad6b7169203331"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[tuple[str, SimpleQueue[ExportTraceServiceRequest]]]:
    """Takes what an exporter sends by OTLP over HTTP."""
    received: SimpleQueue[ExportTraceServiceRequest] = SimpleQueue()

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            data = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            received.put(ExportTraceServiceRequest.FromString(data))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", received
        listening.shutdown()
        thread.join()


def test_traces_go_where_the_standard_variables_say(
    collector: tuple[str, SimpleQueue[ExportTraceServiceRequest]],
    start_server: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A caller's trace goes on in the server, and what is sent holds neither code nor token."""
    url, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-sandboxes")
    server = start_server(pool_size=0, dialects="")
    headers = {**server.headers, "traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01"}
    body = {"code": "print('very secret code')"}
    assert httpx2.post(f"{server.url}/v1/execute", json=body, headers=headers, timeout=60).status_code == 200
    assert server.stop() == 0
    sent = [received.get(timeout=20)]

    while not received.empty():
        sent.append(received.get())

    resources = [part for request in sent for part in request.resource_spans]
    spans = [span for part in resources for scope in part.scope_spans for span in scope.spans]
    names = {
        attribute.value.string_value
        for part in resources
        for attribute in part.resource.attributes
        if attribute.key == "service.name"
    }
    assert names == {"my-sandboxes"}
    (ours,) = [span for span in spans if span.trace_id.hex() == TRACE_ID]
    assert ours.name == "POST /v1/execute"
    everything = str(sent)
    assert "very secret code" not in everything
    assert server.token not in everything


def test_a_request_is_one_trace_through_adapter_and_host(
    collector: tuple[str, SimpleQueue[ExportTraceServiceRequest]],
    start_server: Callable[..., Any],
    start_host: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each span lies below that of the process that asked; what a server asks for itself is no trace."""
    url, received = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    host = start_host()
    server = start_server(host_socket=host.socket, pool_size=0, dialects="")
    caller = {"traceparent": f"00-{TRACE_ID}-{CALLER_ID}-01"}
    asked = {"code": "1"}
    answer = httpx2.post(
        f"{server.url}/v1/execute", json=asked, headers={**server.headers, **caller}, timeout=60
    )
    assert answer.status_code == 200
    group = {"name": "0" * 24, "runs": [{"request": asked, "request_id": "", "trace": caller["traceparent"]}]}
    asyncio.run(ask_adapter(str(host.socket), [("/v1/execute", asked, caller), ("/v1/host/runs", group, {})]))
    assert server.stop() == host.stop() == 0
    TRACES.end()
    parents: Counter[tuple[str, str]] = Counter()
    spans: dict[bytes, tuple[str, Any]] = {}

    while not received.empty():
        for part in received.get().resource_spans:
            (service,) = [
                one.value.string_value for one in part.resource.attributes if one.key == "service.name"
            ]
            spans |= {span.span_id: (service, span) for scope in part.scope_spans for span in scope.spans}

    for service, span in spans.values():
        if span.trace_id.hex() == TRACE_ID:
            above = "caller" if span.parent_span_id.hex() == CALLER_ID else spans[span.parent_span_id][0]
            parents[service, above] += 1

    assert parents == {
        ("fumehood", "caller"): 1,
        ("fumehood-host", "fumehood"): 1,
        ("fumehood-adapter", "caller"): 1,
        ("fumehood-host", "fumehood-adapter"): 1,
        # The run that travelled with others.
        ("fumehood-host", "caller"): 1,
    }
    assert not [span for _, span in spans.values() if "figures" in span.name]


async def ask_adapter(socket_path: str, asked: list[tuple[str, dict[str, Any], dict[str, str]]]) -> None:
    """Sends requests through an adapter, which is a process of its own otherwise."""
    adapter = HostAdapter(socket_path)

    for path, body, headers in asked:
        sent = {"content-type": "application/json", **headers}
        packed = pack_headers((name.encode(), value.encode()) for name, value in sent.items())
        answer = unpack(await adapter.call("POST", path, packed, json.dumps(body).encode(), ""))
        assert answer.status == 200, answer.body

    # It ends with its process otherwise.
    assert adapter._pool is not None
    await adapter._pool.aclose()


def test_counters_are_for_prometheus(start_server: Callable[..., Any]) -> None:
    """Its own parser reads them, and labels are routes and outcomes, never what a caller makes up."""
    server = start_server(pool_size=0, dialects="")

    with httpx2.Client(base_url=server.url, headers=server.headers, timeout=60) as client:
        # More than the kernel's smallest unit of CPU time.
        client.post("/v1/execute", json={"code": "sum(range(3_000_000))"})
        client.post("/v1/execute", json={"code": "1/0"})
        client.post("/v1/sandboxes", json={})

        for number in range(20):
            client.get(f"/made-up-{number}")
            client.get(f"/v1/sandboxes/madeup{number}")

        text = client.get("/metrics").text

    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["fumehood_executions_total", (("outcome", "ok"),)] == 1
    assert samples["fumehood_executions_total", (("outcome", "exception"),)] == 1
    assert samples["fumehood_sandboxes", ()] == 1
    assert samples["fumehood_execution_cpu_seconds_total", ()] > 0
    assert "made" not in text
    routes = {dict(labels).get("route") for name, labels in samples if name == "fumehood_http_requests_total"}
    assert "/v1/sandboxes/{sandbox_id}" in routes


def test_the_log_names_requests_and_hides_tokens(start_server: Callable[..., Any]) -> None:
    server = start_server(pool_size=0, log_level="debug")
    httpx2.get(f"{server.url}/v1/info", headers=server.headers, timeout=60)
    httpx2.get(f"{server.url}/api/kernelspecs?token={server.token}", timeout=60)
    server.stop()
    log = "".join(server.said)
    assert "/v1/info" in log
    assert server.token not in log
