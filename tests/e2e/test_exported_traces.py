"""One trace a pod, from the watcher over a scorer to the binder's requests, as a collector for OTLP receives it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from berth.messages.subjects import TRACEPARENT, trace_id_of, trace_of_pod
from berth_sim.apiserver.kinds import PODS
from berth_sim.cluster import SimulatedCluster, kubeconfig
from berth_sim.nodes import node_manifests
from harness.worlds.cluster_user import eventually
from harness.worlds.pipeline import berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(120)]

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"namespace": "default", "name": "web"},
    "spec": {"schedulerName": "berth", "containers": [{"name": "c", "image": "i"}]},
}


class Received(NamedTuple):
    """A span as the collector has it."""

    service: str
    name: str
    span_id: str
    parent: str
    notes: dict[str, str]


class Collector:
    """An HTTP server for OTLP."""

    def __init__(self) -> None:
        self.traces: dict[str, list[Received]] = defaultdict(list)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receive(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        return Handler

    def _receive(self, body: bytes) -> None:
        for process in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(
                each.value.string_value for each in process.resource.attributes if each.key == "service.name"
            )
            for span in (span for scope in process.scope_spans for span in scope.spans):
                notes = {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}
                parent = span.parent_span_id.hex()
                self.traces[span.trace_id.hex()].append(Received(service, span.name, span.span_id.hex(), parent, notes))


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


async def bound(folder: Path, collector: Collector, last: str) -> str:
    """The uid of a pod that a pipeline has bound, and has ended, so every span is exported, one named ``last`` too."""
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    async with SimulatedCluster(nodes=node_manifests(2)) as cluster:
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig(cluster.url)))
        run = berth_up("--kubeconfig", folder / "kubeconfig", folder=folder, environment=environment)
        berth = await asyncio.to_thread(run.__enter__)
        try:
            await asyncio.to_thread(berth.wait_until_ready)
            made = cluster.resources.create(PODS, "default", POD)

            async def is_bound() -> bool:
                return bool(cluster.resources.find(PODS, made.key).value["spec"].get("nodeName"))

            async def is_exported() -> bool:
                return any(span.name == last for spans in collector.traces.values() for span in spans)

            await eventually(is_bound, "a bound pod", 60)
            await eventually(is_exported, f"the span {last!r}", 60)
        finally:
            await asyncio.to_thread(run.__exit__, None, None, None)
        uid: str = made.value["metadata"]["uid"]
        return uid


async def test_a_pod_is_one_trace_from_the_watcher_to_its_binding(tmp_path: Path, collector: Collector):
    uid = await bound(tmp_path, collector, last="schedule")
    by_name = {span.name: span for span in collector.traces.pop(trace_id_of({TRACEPARENT: trace_of_pod(uid)}))}
    assert not collector.traces
    enqueue, rank, binding = (by_name[name] for name in ("enqueue", "rank", "PostBinding"))
    whole, check = by_name["schedule"], by_name["check"]
    assert (whole.span_id, whole.parent) == (trace_of_pod(uid)[36:52], "")
    assert (enqueue.parent, check.parent) == (whole.span_id, rank.span_id)
    points = {span.name: span for span in by_name.values() if span.service == "berth-scorer" and span is not rank}
    assert {"PreFilter", "Filter", "Score"} <= points.keys()
    assert {span.parent for span in points.values()} == {rank.span_id}
    assert points["Filter"].notes["status"] == "Success"
    assert (rank.parent, binding.parent) == (enqueue.span_id, rank.span_id)
    assert [span.service for span in (enqueue, rank, binding)] == ["berth-watcher", "berth-scorer", "berth-binder"]
    assert enqueue.notes["attempt"] == rank.notes["attempt"]
    assert binding.notes["pod"] == "default/web"
    assert binding.notes["http.response.status_code"] == "201"
    assert binding.notes["node"].startswith("node-")
