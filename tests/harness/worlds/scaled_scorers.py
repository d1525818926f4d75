"""A pipeline whose scorers an autoscaler starts and stops, by what the running processes show of themselves.

    async with scaled_pipeline(plane, folder) as pipeline:
        pipeline.resize(3)
        await pipeline.of_hpa(autoscaler), await pipeline.of_keda(autoscaler)
        await follow(pipeline, autoscaler, measure, before_fewer, seen)

Watcher, binder and scorers are processes as on a cluster, with a nats-server and a Prometheus. Two things are smaller:

- time: a second of the test is ``FASTER`` of the autoscaler's;
- a core: a scorer gets ``1 / SLOWER`` of one, as by a CPU limit, so that eight of them find room on a small machine. A
  plugin does it: it computes a while for each pod, and then pauses until the process has kept to its limit.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

from berth.bus.interface import Session
from berth_cli.bus import connect_bus
from harness.servers.child_processes import free_ports, stop
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer, nats_server
from harness.servers.prometheus_server import PrometheusServer, prometheus_server
from harness.worlds.autoscalers import SYNC_SECONDS, Autoscaler, keda_triggers
from harness.worlds.cluster_user import eventually
from harness.worlds.installation import PROGRAMS, Replica, ServicePod
from harness.worlds.plugin_site import installed_plugin

FASTER: Final = 10.0
SLOWER: Final = 10.0
POD_CPU_SECONDS: Final = 0.004
"""What the plugin computes for a pod. The rest of a scorer's work for it comes on top."""
READY_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 15.0
"""``terminationGracePeriodSeconds`` of the Deployment."""

ACCOUNT: Final = """
accounts { BERTH { jetstream: enabled, users: [{user: berth, password: berth}] } }
no_auth_user: berth
"""
PLUGIN: Final = f'''
"""Costs CPU for each pod, and keeps the process to a part of a core, as a CPU limit does."""

import time

from berth.api.config.types import Point
from berth.framework.interface import PreScorePlugin
from berth.framework.status import SUCCESS
from berth.plugins.factory import PluginFactory

LONGEST_PAUSE = 0.25


class CpuLimit(PreScorePlugin):
    name = "CpuLimit"

    def __init__(self):
        self._spent, self._at = time.process_time(), time.monotonic()

    def pre_score(self, state, pod, nodes):
        end = time.process_time() + {POD_CPU_SECONDS}
        while time.process_time() < end:
            pass
        spent = time.process_time() - self._spent
        pause = spent * {SLOWER} - (time.monotonic() - self._at)
        time.sleep(min(max(pause, 0), LONGEST_PAUSE))
        self._spent, self._at = time.process_time(), time.monotonic()
        return SUCCESS


FACTORY = PluginFactory(name="CpuLimit", points=(Point.PRE_SCORE,), build=lambda _args: CpuLimit())
'''
CONFIGURATION: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: berth, plugins: {preScore: {enabled: [{name: CpuLimit}]}}}]
"""
_CPU: Final = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)
_RANGE: Final = re.compile(r"\[1m\]")


@dataclass(kw_only=True)
class Scorer:
    """A replica, and what the metrics server has seen of it: when it looked, and its CPU seconds by then."""

    replica: Replica
    is_ready: bool = False
    looked: tuple[float, float] | None = None

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.replica.health_port}"

    def look(self) -> float | None:
        """The cores that it has used since it was last looked at; None at the first time and before it is ready."""
        self.is_ready = self.is_ready or self.replica.is_ready()
        if not self.is_ready:
            return None
        found = _CPU.search(_get(f"http://{self.instance}/metrics"))
        assert found is not None, "a scorer without process_cpu_seconds_total"
        before, self.looked = self.looked, (time.monotonic(), float(found[1]))
        return None if before is None else (self.looked[1] - before[1]) / (self.looked[0] - before[0])


@dataclass(kw_only=True)
class ScaledPipeline:
    """The pods of a pipeline, of which the scorers come and go."""

    bus: NatsServer
    prometheus: PrometheusServer
    pods: Mapping[str, ServicePod]
    scorers: list[Scorer] = field(default_factory=list)
    ending: list[Replica] = field(default_factory=list)
    others: dict[str, Replica] = field(default_factory=dict)
    _started: int = 0

    def resize(self, count: int) -> None:
        """Start scorers, or end the youngest ones by SIGTERM, without waiting for either."""
        while len(self.scorers) < count:
            self.scorers.append(Scorer(replica=self.pods["scorer"].start(self._started)))
            self._started += 1
        while len(self.scorers) > count:
            self.ending.append(self.scorers.pop().replica)
            self.ending[-1].process.terminate()

    async def started(self, least: int) -> None:
        """Start one of each other service and so many scorers; returns when all are ready."""
        self.others = {name: self.pods[name].start(0) for name in ("watcher", "binder")}
        self.resize(least)
        for replica in (*self.others.values(), *(scorer.replica for scorer in self.scorers)):
            await eventually(partial(asyncio.to_thread, replica.is_ready), "a service to be ready", READY_SECONDS)

    def must_run(self) -> None:
        """Fail when a process has ended that nobody has ended."""
        for replica in (*self.others.values(), *(scorer.replica for scorer in self.scorers)):
            assert replica.process.poll() is None, f"a service ended with {replica.process.returncode}"

    async def exit_codes(self) -> list[int]:
        """Of the scorers that were ended; fails when one still runs after its grace period."""
        return [await asyncio.to_thread(replica.process.wait, GRACE_SECONDS) for replica in self.ending]

    def stop(self) -> None:
        replicas = [*self.others.values(), *(scorer.replica for scorer in self.scorers), *self.ending]
        stop([replica.process for replica in replicas])

    async def session(self) -> Session:
        return await connect_bus(self.bus.address)

    async def of_hpa(self) -> Mapping[str, float]:
        """The CPU of ready scorers as the metrics API tells it; the others count nothing, as in the HPA's formula."""
        seen = await asyncio.gather(*(asyncio.to_thread(scorer.look) for scorer in self.scorers))
        return {"cpu": SLOWER * sum(cores for cores in seen if cores is not None)}

    async def of_keda(self) -> Mapping[str, float]:
        """The triggers of the manifest, answered by the NATS server and the Prometheus of this pipeline."""
        for scorer in self.scorers:
            scorer.is_ready = scorer.is_ready or await asyncio.to_thread(scorer.replica.is_ready)
        ready = [("scorer", scorer.instance) for scorer in self.scorers if scorer.is_ready]
        services = [(name, f"127.0.0.1:{replica.health_port}") for name, replica in self.others.items()]
        self.prometheus.scrape_containers([*services, *ready])
        return {name: await asyncio.to_thread(self._asked, name, told) for name, told in keda_triggers().items()}

    def _asked(self, name: str, told: Mapping[str, str]) -> float:
        if name == "lag":
            return self._lag(told)
        answer = self._queried(_RANGE.sub(f"[{60 / FASTER:.0f}s]", told["query"]))
        return answer * (SLOWER if "process_cpu_seconds_total" in name else 1)

    def _queried(self, query: str) -> float:
        """As KEDA's scaler `prometheus` asks: no row is 0, more than one is an error."""
        rows = json.loads(_get(f"{self.prometheus.url}/api/v1/query?query={quote(query)}"))["data"]["result"]
        assert len(rows) <= 1, rows
        return float(rows[0]["value"][1]) if rows else 0.0

    def _lag(self, told: Mapping[str, str]) -> float:
        """As KEDA's scaler `nats-jetstream` asks: what waits for the consumer and what it has not acknowledged."""
        endpoint = f"http://127.0.0.1:{self.bus.settings.monitoring_port}"
        answer = json.loads(_get(f"{endpoint}/jsz?acc={told['account']}&consumers=true&config=true"))
        (account,) = (each for each in answer["account_details"] if each["name"] == told["account"])
        (stream,) = (each for each in account["stream_detail"] if each["name"] == told["stream"])
        (consumer,) = (each for each in stream["consumer_detail"] if each["name"] == told["consumer"])
        return float(consumer["num_pending"] + consumer["num_ack_pending"])


@dataclass(frozen=True, kw_only=True)
class Sync:
    """One decision of an autoscaler. ``at``: seconds of its own time."""

    at: float
    replicas: int
    totals: Mapping[str, float]


async def follow(
    pipeline: ScaledPipeline,
    autoscaler: Autoscaler,
    measure: Callable[[], Awaitable[Mapping[str, float]]],
    before_fewer: Callable[[], Awaitable[None]],
    seen: list[Sync],
) -> None:
    """Let the autoscaler decide at each of its times, for ever, and do what it says; ``seen`` gets its decisions."""
    began = time.monotonic()
    while True:
        pipeline.must_run()
        totals = await measure()
        now = (time.monotonic() - began) * FASTER
        replicas = autoscaler.decide(now, len(pipeline.scorers), totals)
        if replicas < len(pipeline.scorers):
            await before_fewer()
        pipeline.resize(replicas)
        seen.append(Sync(at=now, replicas=replicas, totals=totals))
        await asyncio.sleep(max(0.0, (now + SYNC_SECONDS) / FASTER - (time.monotonic() - began)))


@asynccontextmanager
async def scaled_pipeline(plane: ControlPlane, folder: Path, least: int) -> AsyncIterator[ScaledPipeline]:
    """The pipeline with its first scorers, ready; all processes have ended when the block has."""
    config = folder / "config.yaml"
    config.write_text(CONFIGURATION)
    with (
        nats_server(ACCOUNT, monitoring_port=free_ports(1)[0]) as bus,
        prometheus_server(folder / "prometheus") as prometheus,
    ):
        environment = {
            "PATH": f"{PROGRAMS}:{os.defpath}",
            "PYTHONPATH": str(installed_plugin(folder / "site", "CpuLimit", PLUGIN)),
            "BERTH_NATS_URL": bus.address,
            "BERTH_CONFIG": str(config),
        }
        command = [sys.executable, "-m", "berth_cli", "bus", "apply", "--nats", bus.address]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=READY_SECONDS)
        api = {"BERTH_KUBECONFIG": str(plane.kubeconfig_path)}
        pods = {
            name: ServicePod(
                service=name,
                command=[f"berth-{name}"],
                environment={**environment, **({} if name == "scorer" else api)},
                files=folder / name,
            )
            for name in ("watcher", "binder", "scorer")
        }
        pipeline = ScaledPipeline(bus=bus, prometheus=prometheus, pods=pods)
        try:
            await pipeline.started(least)
            yield pipeline
        finally:
            await asyncio.to_thread(pipeline.stop)


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - an address of this test
        text: str = answer.read().decode()
        return text
