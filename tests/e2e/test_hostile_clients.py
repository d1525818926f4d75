"""The pipeline under its accounts and least rights on a real API server, and a hostile client of each of its users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from berth.api.messages import Candidate, Decision, Outcome, Preemption, Ranked, Victim, decode, encode
from berth.api.pod import Pod
from berth.bus.accounts import nats_conf
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials
from harness.servers.bus_users import USERS, inbox_of, password_of, services
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.accounts import grant, kubeconfig_of
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.hostile_clients import (
    INSIDE,
    OUTSIDE,
    STREAMS,
    Client,
    ask_at_random,
    ask_to_manage,
    ask_with_foreign_replies,
    client_of,
    content,
    have_it_sent,
    roll_up,
)

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

ADMIN = NatsCredentials(user="admin", password="admin-of-a-test")  # noqa: S106 - of a throw-away server
HUGE = 10**17
"""The number of a forged attempt."""
STORED_IN = {"ranked": "RANKED", "decision": "DECISIONS"}
"""The stream of a stage."""
CONFIGURATION = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    passwords = "".join(f'{user}_PASSWORD: "{password_of(user)}"\n' for user in USERS)
    admin = "{ user: admin, password: admin-of-a-test }"
    with nats_server(passwords + nats_conf().replace("users: [", f"users: [ {admin}", 1)) as server:
        yield server


@pytest.fixture
async def admin(server: NatsServer) -> AsyncIterator[NatsSession]:
    session = await NatsBus(BusSettings(servers=(server.address,), credentials=ADMIN)).connect(name="admin")
    await session.apply()
    yield session
    await session.close()


async def settled(admin: NatsSession, user: str) -> dict[str, list[tuple[str, int, bytes]]]:
    """What is in the streams, but for what the user may write and what a pipeline without work writes by itself."""
    return {
        stream: [one for one in stored if not one[0].startswith("$KV.cluster.watermark.")]
        for stream, stored in (await content(admin, user)).items()
    }


async def test_nothing_outside_its_part_changes_while_the_pipeline_runs(
    server: NatsServer,
    admin: NatsSession,
    own_control_plane: ControlPlane,
    cluster_outside: ClusterUser,
    tmp_path: Path,
):
    await grant(cluster_outside.api)
    kubeconfig = await kubeconfig_of(own_control_plane, cluster_outside.api, "berth")
    config = tmp_path / "berth.yaml"
    config.write_text(CONFIGURATION)
    with services(server, kubeconfig, config, tmp_path):
        await cluster_outside.add_nodes(2, cpu="8")
        placed = await cluster_outside.all_bound(await cluster_outside.add_pods(5, "before"))
        for user in OUTSIDE:
            client = await client_of(server, user, password_of(user), inbox_of(user))
            before = await settled(admin, user)
            await ask_with_foreign_replies(client, user)
            await ask_at_random(client, user)
            await ask_to_manage(client)
            await roll_up(client, user)
            assert await settled(admin, user) == before
            await client.close()
        now = await cluster_outside.all_bound(await cluster_outside.add_pods(5, "after"))
        assert placed.items() <= now.items()


def forged_about(made: dict[str, Any], term: int, victims: list[dict[str, Any]]) -> dict[str, bytes]:
    """Messages about a pod by stage, as if a scorer and the binder of berth had written them; newer than the pod is."""
    pod = msgspec.convert(made, Pod, strict=False)
    spec = msgspec.structs.replace(pod.spec, scheduler_name="berth")
    metadata = msgspec.structs.replace(pod.metadata, resource_version=str(10**12))
    pod = msgspec.structs.replace(pod, spec=spec, metadata=metadata)
    report = {"attempt": f"{pod.uid}.{term}.{HUGE}", "profile": "berth"}
    place = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "uid": pod.uid}
    nodes = sorted({victim["spec"]["nodeName"] for victim in victims})
    named = [
        Victim(uid=each["metadata"]["uid"], namespace=each["metadata"]["namespace"], name=each["metadata"]["name"])
        for each in victims
        if each["spec"]["nodeName"] == nodes[0]
    ]
    candidates = [Candidate(node=node, total=100) for node in nodes]
    return {
        "ranked, on nodes": encode(Ranked(**report, pod=pod, candidates=candidates, feasible=2)),
        "ranked, by preemption": encode(Ranked(**report, pod=pod, preemption=Preemption(node=nodes[0], victims=named))),
        "decision, bound": encode(Decision(**report, **place, epoch=10**6, outcome=Outcome.BOUND, node=nodes[0])),
    }


async def is_forged(admin: NatsSession, client: Client, user: str, stage: str, subject: str, data: bytes) -> bool:
    """Have the server store it; on a busy machine the watcher may remove the key each time before it is read."""
    before = (await admin.state(STORED_IN[stage])).last_sequence
    await have_it_sent(client, user, data, subject)
    return (await admin.state(STORED_IN[stage])).last_sequence > before


async def refused_by_the_binder(admin: NatsSession, namespace: str) -> bool:
    """Whether it has taken a forged message as one, and decided on it itself."""
    stored = await admin.last("DECISIONS", f"berth.decision.berth.{namespace}.no-room-0")
    decision = decode(stored.data, Decision) if stored is not None else None
    is_on_it = decision is not None and decision.attempt.endswith(f".{HUGE}")
    return is_on_it and decision.outcome in {Outcome.CONFLICT, Outcome.UNSCHEDULABLE}


@pytest.mark.parametrize("user", INSIDE)
async def test_users_of_berths_account_delay_pods_and_move_none(
    server: NatsServer,
    admin: NatsSession,
    own_control_plane: ControlPlane,
    cluster_outside: ClusterUser,
    tmp_path: Path,
    user: str,
):
    """By replies they reach every stream: they forge every message, then delete all streams."""
    await grant(cluster_outside.api)
    kubeconfig = await kubeconfig_of(own_control_plane, cluster_outside.api, "berth")
    config = tmp_path / "berth.yaml"
    config.write_text(CONFIGURATION)
    with services(server, kubeconfig, config, tmp_path):
        await cluster_outside.add_nodes(2, cpu="3")
        placed = await cluster_outside.all_bound(await cluster_outside.add_pods(6, "full", cpu="1"))
        await cluster_outside.add_pods(1, "no-room", cpu="1")
        await cluster_outside.add_pods(1, "another-schedulers", cpu="1m", scheduler="another")
        await eventually(lambda: cluster_outside.condition("no-room-0"), "the pod's own attempt to be decided")
        pods = await cluster_outside.pods()
        running = [pods[name] for name in placed]
        entry = await admin.get("control", "term.watcher")
        assert entry is not None
        client = await client_of(server, user, password_of(user), inbox_of(user))
        for name in ("no-room-0", "another-schedulers-0"):
            for what, data in forged_about(pods[name], int(entry.data), running).items():
                stage = what.partition(",")[0]
                subject = f"berth.{stage}.berth.{cluster_outside.namespace}.{name}"
                await eventually(partial(is_forged, admin, client, user, stage, subject, data), f"{what} to be stored")
                if stage == "ranked" and name == "no-room-0":
                    await eventually(
                        lambda: refused_by_the_binder(admin, cluster_outside.namespace), "a Decision on it"
                    )
        for stream in STREAMS:
            await have_it_sent(client, user, b"", f"$JS.API.STREAM.DELETE.{stream}")
        await client.close()
        after = await cluster_outside.pods()
        assert {name: after[name]["metadata"]["uid"] for name in placed} == {
            each["metadata"]["name"]: each["metadata"]["uid"] for each in running
        }
        assert await cluster_outside.placed() == placed
        assert not any("deletionTimestamp" in each["metadata"] for each in after.values())
        await cluster_outside.delete_pod("full-0")
        await cluster_outside.all_bound(["no-room-0"], 90)
        assert "another-schedulers-0" not in await cluster_outside.placed()
