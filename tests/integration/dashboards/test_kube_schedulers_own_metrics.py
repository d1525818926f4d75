"""berth's metrics with kube-scheduler's names are compared with those of a real kube-scheduler on a real API server."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from berth.observability.metrics import METRICS
from harness.servers.child_processes import free_ports, spawn, stop
from harness.servers.control_plane import ControlPlane, assets_folder
from harness.worlds.cluster_user import ClusterUser, eventually

pytestmark = [pytest.mark.requires("kubebuilder_assets"), pytest.mark.timeout(120)]

SHARED = {name for name in METRICS if not name.startswith("berth_")}
PODS = 120
"""kube-scheduler measures the plugins for a random tenth of the pods. It measures none of them in 1 of 300,000 runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningKubeScheduler:
    """A running kube-scheduler, with the address of its metrics."""

    port: int
    certificate: Path

    def metrics(self) -> dict[str, Metric]:
        """All metrics, by name without the suffixes of samples."""
        try:
            trust = ssl.create_default_context(cafile=self.certificate)
            with urlopen(f"https://127.0.0.1:{self.port}/metrics", timeout=2, context=trust) as answer:
                text = answer.read().decode()
        except (URLError, OSError):
            return {}
        return {family.name: family for family in text_string_to_metric_families(text)}


@contextmanager
def kube_scheduler(plane: ControlPlane, program: Path, folder: Path) -> Iterator[RunningKubeScheduler]:
    """Run kube-scheduler with its default profile, a Lease, and metrics that need no authorization."""
    config = folder / "kube-scheduler.json"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"kubeconfig": str(plane.kubeconfig_path)},
            }
        )
    )
    port = free_ports(1)[0]
    command = [
        str(program),
        f"--config={config}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder}",
        "--authorization-always-allow-paths=/metrics",
    ]
    process = spawn(command, folder / "kube-scheduler.log")
    try:
        yield RunningKubeScheduler(port=port, certificate=folder / "kube-scheduler.crt")
    finally:
        stop([process])


@pytest.fixture
def program() -> Path:
    folder = assets_folder()
    assert folder is not None
    if not (folder / "kube-scheduler").is_file():
        pytest.skip(f"no kube-scheduler beside the control plane's programs in {folder}")
    return folder / "kube-scheduler"


async def busy(seen: ClusterUser) -> None:
    """Create nodes, pods that are bound, and a pod that is unschedulable."""
    await seen.add_nodes(3)
    await seen.add_pods(1, "large", cpu="64", scheduler="default-scheduler")
    await seen.all_bound(await seen.add_pods(PODS, cpu="1m", scheduler="default-scheduler"))


def base(name: str) -> str:
    """The name that the parser of the text format uses."""
    return name.removesuffix("_total")


async def test_shared_metrics_have_its_types_labels_and_buckets(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, program: Path, tmp_path: Path
):
    with kube_scheduler(own_control_plane, program, tmp_path) as real:
        await busy(cluster_outside)

        async def shown() -> dict[str, Metric] | None:
            found = await asyncio.to_thread(real.metrics)
            return found if {base(name) for name in SHARED} <= found.keys() else None

        families = await eventually(shown, "metrics of every kind")
    for name in sorted(SHARED):
        family, ours = families[base(name)], METRICS[name]
        bounds = sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})
        labels = {frozenset(sample.labels.keys() - {"le"}) for sample in family.samples}
        assert (name, family.type) == (name, ours.kind)
        assert (name, labels) == (name, {frozenset(ours.labels)})
        assert (name, bounds[:-1]) == (name, pytest.approx(list(ours.buckets)))
    # The same label values that test_running_pipeline expects of berth.
    assert pairs(families["scheduler_queue_incoming_pods"], "queue", "event") == {
        ("active", "UnschedulablePodAdd"),
        ("unschedulable", "ScheduleAttemptFailure"),
    }
    assert pairs(families["scheduler_framework_extension_point_duration_seconds"], "extension_point", "status") >= {
        ("PostFilter", "Unschedulable"),
        *((point, "Success") for point in ("PreFilter", "Filter", "PreScore", "Score", "Bind")),
    }


def pairs(family: Metric, *labels: str) -> set[tuple[str, ...]]:
    return {tuple(sample.labels[label] for label in labels) for sample in family.samples}
