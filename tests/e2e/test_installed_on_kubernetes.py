"""The pipeline with exactly what the chart applies as `production`: its accounts and roles at the API server, three
NATS servers with its configuration, streams with three copies; and one of the servers is killed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.installation import Installation
from harness.worlds.manifests import PUT_TOGETHER, Object, add_custom_kinds, charted, of_kind, preset

pytestmark = [
    pytest.mark.requires("kubebuilder_assets", "kubectl", "helm", "nats-server"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has every address of 127.0.0.0/8"),
    pytest.mark.timeout(300),
]

READY_SECONDS = 90.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/berth/leases"

CHANGED = {
    "scheduler": {
        "configuration": yaml.safe_load((PUT_TOGETHER / "changed/scheduler.yaml").read_text(encoding="utf-8")),
    },
    "settings": {"BERTH_NATS_DECISIONS_MEBIBYTES": 256},
}
"""Another profile, and a setting that the streams are declared with."""


def production(**values: object) -> tuple[Object, ...]:
    everything = charted(
        {**preset("production"), **values, "namespace": {"create": True}, "console": {"enabled": False}}
    )
    return tuple(each for each in everything if each["kind"] != "Secret")


def secrets(names: Sequence[str]) -> tuple[Object, ...]:
    """Those that helm makes on the first installation."""
    return tuple(of_kind(charted({"nats": {"secrets": {"names": list(names)}}}), "Secret"))


async def everything_works(installed: Installation) -> None:
    async def ready() -> bool:
        working = {name: len(installed.ready_files(name)) for name in ("watcher", "binder", "scorer")}
        return working == {"watcher": 1, "binder": 1, "scorer": 2}

    await eventually(ready, "a watcher, a binder and both scorers to work", READY_SECONDS)


async def test_pods_are_bound_while_a_nats_server_is_killed(
    own_control_plane: ControlPlane, cluster_outside: ClusterUser, tmp_path: Path
):
    add_custom_kinds(own_control_plane)
    with Installation(production(), own_control_plane, tmp_path, secrets=secrets) as installed:
        await installed.start(cluster_outside.api)
        await everything_works(installed)
        await cluster_outside.add_nodes(5, cpu="32")
        await cluster_outside.all_bound(await cluster_outside.add_pods(20, "before", cpu="100m"), READY_SECONDS)

        streams = await asyncio.to_thread(installed.servers[0].streams)
        assert {"PENDING", "RANKED", "DECISIONS", "KV_cluster"} <= streams.keys()
        assert {len(stream["replicas"]) for stream in streams.values()} == {2}, "the leader and two more"
        leader = next(server for server in installed.servers if server.name == streams["PENDING"]["leader"])
        adding = asyncio.create_task(cluster_outside.add_pods(60, "meanwhile", cpu="100m"))
        leader.kill()
        await cluster_outside.all_bound(await adding, READY_SECONDS)

        leader.start()
        await eventually(lambda: asyncio.to_thread(leader.is_healthy), "the server to be back", READY_SECONDS)
        await cluster_outside.all_bound(await cluster_outside.add_pods(20, "after", cpu="100m"), READY_SECONDS)
        told = await asyncio.to_thread(installed.berth, "why", f"{cluster_outside.namespace}/after-0")
        assert (await cluster_outside.placed())["after-0"] in told
        for lease in ("berth-watcher", "berth-binder"):
            assert (await cluster_outside.api.get(f"{LEASES}/{lease}")).body["spec"]["holderIdentity"]
        await a_change_is_rolled_out_while_pods_come(installed, cluster_outside)
    assert "may not" not in installed.logs()
    assert "forbidden" not in installed.logs()
    assert "ermissions" not in installed.logs(), "NATS refuses with: Permissions Violation"


async def a_change_is_rolled_out_while_pods_come(installed: Installation, seen: ClusterUser) -> None:
    """Another profile, and streams of another size: both versions of each service are side by side for a while."""
    names: list[str] = []

    async def add_pods() -> None:
        while True:
            names.extend(await seen.add_pods(5, f"rolled-{len(names)}", cpu="10m"))
            names.extend(await seen.add_pods(1, f"packed-{len(names)}", cpu="10m", scheduler="packed"))
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(add_pods())
        await installed.roll_out(production(**CHANGED), seen.api)
        adding.cancel()
    assert len(names) > 12
    added = await seen.pods()
    await seen.all_bound([name for name in added if name.startswith(("rolled", "packed"))], READY_SECONDS)
