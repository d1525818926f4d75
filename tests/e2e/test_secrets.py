"""Secrets in every place where one can be, and none of them in anything that the pipeline prints, stores or serves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import pytest

from berth.bus.settings import TopologySettings
from berth.bus.topology import declared_streams
from berth_sim.apiserver.kinds import PODS
from berth_sim.cluster import SimulatedCluster, kubeconfig
from berth_sim.faults import Fail
from berth_sim.nodes import node_manifests
from harness.worlds.cluster_user import eventually
from harness.worlds.pipeline import PROC, BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(240)]

CANARY = "canary"
"""Part of every secret of this test."""
CONFIGURATION = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins: {{multiPoint: {{enabled: [{{name: NetworkTraffic}}]}}}}
  pluginConfig: [{{name: NetworkTraffic, args: {{url: "{url}", deviceName: eth0, timeRange: 5}}}}]
"""


def pod(name: str, **spec: object) -> dict:
    container = {
        "name": "c",
        "image": "i",
        "env": [{"name": "PASSWORD", "value": "canary-of-the-environment"}],
        "command": ["canary-of-the-command"],
        "args": ["--password=canary-of-the-arguments"],
    }
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"spec": {"containers": [container]}})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": applied},
        "spec": {"schedulerName": "berth", "containers": [container], **spec},
    }


def undecodable() -> dict:
    """A pod of ours that the real API server would not accept."""
    made = pod("odd")
    made["metadata"]["uid"] = "uid-odd"
    made["spec"]["containers"][0]["ports"] = "none"
    return made


def files(folder: Path, url: str, traces: str) -> dict[str, str]:
    """Write credentials and configuration; returns what the environment names."""
    config = kubeconfig(url.replace("://", "://who:canary-of-the-url@"))
    config["users"][0]["user"] = {"token": "canary-of-the-token", "username": "u", "password": "canary-of-the-user"}
    (folder / "kubeconfig").write_text(json.dumps(config))
    (folder / "token").write_text("canary-of-prometheus")
    (folder / "headers").write_text("X-Key: canary-of-the-headers")
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": traces.replace("://", "://who:canary-of-the-traces@"),
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Key=canary-of-the-collector",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "BERTH_PROMETHEUS_TOKEN_FILE": str(folder / "token"),
        "BERTH_PROMETHEUS_HEADERS_FILE": str(folder / "headers"),
        "HTTP_PROXY": "",
    }


@asynccontextmanager
async def running(cluster: SimulatedCluster, folder: Path, traces: str) -> AsyncIterator[BerthUp]:
    environment = files(folder, cluster.url, traces)
    (folder / "berth.yaml").write_text(CONFIGURATION.format(url=cluster.prometheus_url))
    flags = ("--kubeconfig", folder / "kubeconfig", "--config", folder / "berth.yaml", "-v", 10)
    run = berth_up(*flags, folder=folder, environment=environment)
    berth = await asyncio.to_thread(run.__enter__)
    try:
        await asyncio.to_thread(berth.wait_until_ready)
        yield berth
    finally:
        await asyncio.to_thread(run.__exit__, None, None, None)


class TraceCollector:
    """Takes what services export by OTLP; the first request fails, and the exporter logs that."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        """The body of each, spans as protobuf: texts are in it as they are."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200 if len(requests) > 1 else 503)  # sent again
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        return Handler

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def received(self) -> str:
        return b"\n".join(self.requests[1:]).decode(errors="replace")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def metrics_of(berth: BerthUp) -> str:
    """What the health ports of all services serve."""
    found = []
    for pid in berth.living():
        for port in listening(pid):
            for path in ("metrics", "readyz?verbose"):
                with suppress(OSError, HTTPException):  # also the NATS server listens
                    found.append(read(f"http://127.0.0.1:{port}/{path}"))
    return "\n".join(found)


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - of this test's own servers
        return response.read().decode()


def listening(pid: int) -> list[int]:
    """The TCP ports on which the process listens."""
    with suppress(OSError):
        links = {str(link.readlink()) for link in (PROC / str(pid) / "fd").iterdir() if link.is_symlink()}
        rows = [line.split() for line in (PROC / str(pid) / "net" / "tcp").read_text().splitlines()[1:]]
        return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]
    return []


async def stored(berth: BerthUp) -> dict[str, str]:
    session = await berth.session()
    try:
        return {
            stream.name: "\n".join(
                [f"{one.subject} {one.headers} {one.data!r}" async for one in session.scan(stream.name, ">")]
            )
            for stream in declared_streams(TopologySettings())
        }
    finally:
        await session.close()


def command(berth: BerthUp, *words: str) -> str:
    call = [sys.executable, "-m", "berth_cli", *words, "--nats", berth.nats]
    done = subprocess.run(
        call, capture_output=True, text=True, check=False, env={"TMPDIR": str(berth.temporary), "PATH": "/usr/bin:/bin"}
    )
    return f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"


PLACES = ("address", "kubeconfig")
"""Files beside the passwords that say where NATS and the cluster are."""


@pytest.fixture
def traces() -> Iterator[TraceCollector]:
    with TraceCollector() as collector:
        yield collector


async def test_no_secret_is_printed_stored_served_or_traced(tmp_path: Path, traces: TraceCollector):
    objects = [undecodable()]
    async with SimulatedCluster(nodes=node_manifests(2), objects=objects) as cluster:
        async with running(cluster, tmp_path, traces.url) as berth:
            for made in (pod("web"), pod("large", nodeSelector={"no": "such"}), pod("claim", volumes=[_claim()])):
                cluster.resources.create(PODS, "default", made)

            async def decided() -> bool:
                kept = await stored(berth)
                decided = all(f".{name}" in kept["DECISIONS"] for name in ("web", "large")) and "odd" in kept["dead"]
                return decided and all(span in traces.received for span in ("enqueue", "rank", "default/large"))

            await eventually(decided, "Decisions, a dead letter and traces", 60)
            cluster.faults.inject(Fail(verb="update", resource="leases", status=401))
            found = await stored(berth)
            found["Events"] = await asyncio.to_thread(read, f"{cluster.url}/apis/events.k8s.io/v1/events")
            found["health ports"] = await asyncio.to_thread(metrics_of, berth)
            for words in (("why", "default/large"), ("trace", "default/odd", "-o", "json"), ("top", "--once")):
                found[" ".join(words)] = await asyncio.to_thread(command, berth, *words)
            found["command lines"] = "\n".join((PROC / str(pid) / "cmdline").read_text() for pid in berth.living())
            files = [each for each in berth.temporary.rglob("credentials/*") if each.name not in PLACES]
            passwords = [each.read_text() for each in files]
            await cluster.stop()

            async def complains() -> bool:
                return "connection refused" in berth.said.lower() or "no connection to" in berth.said

            await eventually(complains, "errors with the address of the API server", 60)
            found |= {each.name: each.read_text(errors="replace") for each in berth.temporary.rglob("*.log")}
        found |= {"stdout": berth.printed, "stderr": berth.said, "traces": traces.received}
    assert "berth_" in found["health ports"]
    assert "FailedScheduling" in found["Events"]
    assert len(passwords) > 4
    for secret in (CANARY, *passwords):
        assert [where for where, text in found.items() if secret in text] == []


def _claim() -> dict:
    return {"name": "v", "persistentVolumeClaim": {"claimName": "none"}}
