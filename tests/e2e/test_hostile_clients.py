"""The pipeline under its accounts and least rights on a real API server, and a hostile client of each of its users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from berth.api.pod import Pod
from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings, NatsCredentials
from berth.messages.attempts import (
    Candidate,
    DeadLetter,
    Decision,
    Outcome,
    Pending,
    Preemption,
    Ranked,
    Reason,
    Victim,
)
from berth.messages.encoding import decode, encode
from berth_cli.pipeline.natsconf import nats_conf
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
"""The number of the first forged attempt; those of the others are multiples."""
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


@pytest.fixture
async def running_services(
    server: NatsServer,
    admin: NatsSession,
    own_control_plane: ControlPlane,
    cluster_outside: ClusterUser,
    tmp_path: Path,
) -> AsyncIterator[None]:
    """One of each service, as its user of the bus and with berth's rights in the cluster."""
    await grant(cluster_outside.api)
    kubeconfig = await kubeconfig_of(own_control_plane, cluster_outside.api, "berth")
    config = tmp_path / "berth.yaml"
    config.write_text(CONFIGURATION)
    with services(server, kubeconfig, config, tmp_path):
        yield


@pytest.fixture
async def stored(admin: NatsSession) -> list[tuple[str, bytes]]:
    """Subject and data of what the stages' streams store during the test, also of what they do not keep."""
    stored: list[tuple[str, bytes]] = []
    await admin.subscribe_stored("berth.>", lambda message: stored.append((message.subject, message.data)))
    return stored


async def settled(admin: NatsSession, user: str) -> dict[str, list[tuple[str, int, bytes]]]:
    """What is in the streams, but for what the user may write and what a pipeline without work writes by itself."""
    return {
        stream: [one for one in stored if not one[0].startswith("$KV.cluster.watermark.")]
        for stream, stored in (await content(admin, user)).items()
    }


async def is_empty(admin: NatsSession, stream: str) -> bool:
    return (await admin.state(stream)).messages == 0


async def is_done_with(admin: NatsSession, uids: Collection[str]) -> bool:
    """Whether no service still writes about these bound pods: the API server shows a pod bound before its Decision."""
    mirror = {one.subject async for one in admin.scan("KV_cluster", "$KV.cluster.pod.>")}
    is_mirrored = mirror.issuperset(f"$KV.cluster.pod.{uid}" for uid in uids)
    services = [one async for one in admin.scan("KV_cluster", "$KV.cluster.service.>")]
    is_mirrored &= bool(services)  # a new API server creates its own only after some seconds
    return is_mirrored and await is_empty(admin, "PENDING") and await is_empty(admin, "RANKED")


@pytest.mark.usefixtures("running_services")
async def test_nothing_outside_its_part_changes_while_the_pipeline_runs(
    server: NatsServer, admin: NatsSession, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(2, cpu="8")
    placed = await cluster_outside.all_bound(await cluster_outside.add_pods(5, "before"))
    uids = [made["metadata"]["uid"] for made in (await cluster_outside.pods()).values()]
    await eventually(partial(is_done_with, admin, uids), "the Decisions on the pods, and the pods in the mirror")
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


Forged = Pending | Ranked | Decision
M = TypeVar("M", Decision, DeadLetter)


def forged_about(made: dict[str, Any], term: int, victims: list[dict[str, Any]]) -> list[tuple[str, Forged]]:
    """Subjects and messages about a pod, as if berth's services had written them; newer than the pod is.

    They ask for a ranking, propose nodes, propose to evict pods by a view that lacks nothing, and say that the pod is
    bound. Each is of an attempt of its own: a second message of a decided attempt is only acknowledged.
    """
    pod = msgspec.convert(made, Pod, strict=False)
    spec = msgspec.structs.replace(pod.spec, scheduler_name="berth")
    metadata = msgspec.structs.replace(pod.metadata, resource_version=str(10**12))
    pod = msgspec.structs.replace(pod, spec=spec, metadata=metadata)
    attempts = [f"{pod.uid}.{term}.{number * HUGE}" for number in (1, 2, 3, 4)]
    place = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "uid": pod.uid}
    nodes = sorted({victim["spec"]["nodeName"] for victim in victims})
    named = [
        Victim(uid=each["metadata"]["uid"], namespace=each["metadata"]["namespace"], name=each["metadata"]["name"])
        for each in victims
        if each["spec"]["nodeName"] == nodes[0]
    ]
    ranked = {"profile": "berth", "pod": pod, "view_age_seconds": 0.0, "evaluated": len(nodes)}
    candidates = [Candidate(node=node, total=100) for node in nodes]
    messages = {
        "pending": [Pending(attempt=attempts[0], profile="berth", pod=pod)],
        "ranked": [
            Ranked(attempt=attempts[1], **ranked, candidates=candidates, feasible=len(nodes)),
            Ranked(attempt=attempts[2], **ranked, preemption=Preemption(node=nodes[0], victims=named)),
        ],
        "decision": [
            Decision(attempt=attempts[3], profile="berth", **place, epoch=10**6, outcome=Outcome.BOUND, node=nodes[0])
        ],
    }
    return [
        (f"berth.{stage}.berth.{pod.metadata.namespace}.{pod.metadata.name}", message)
        for stage, of_stage in messages.items()
        for message in of_stage
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forger:
    """A service's client that has the server send messages of other services."""

    client: Client
    user: str
    stored: list[tuple[str, bytes]]

    async def forge(self, subject: str, message: Forged, kind: type[M]) -> M:
        """Have the server send the message; returns the Decision or the dead letter on its attempt."""
        what = f"a {kind.__name__} on {message.attempt}"
        return await eventually(partial(self._try_to_forge, subject, message, kind), what)

    async def _try_to_forge(self, subject: str, message: Forged, kind: type[M]) -> M | None:
        """Once is not enough: when the watcher removes the key before it is read, an empty message is sent.

        That takes the place of the one before it in the stream.
        """
        await have_it_sent(self.client, self.user, encode(message), subject)
        stage, attempt = ("berth.decision." if kind is Decision else "berth.dead."), message.attempt.encode()
        found = (data for name, data in self.stored if name.startswith(stage) and attempt in data)
        return next((decode(data, kind) for data in found), None)


@pytest.mark.usefixtures("running_services")
@pytest.mark.parametrize("user", INSIDE)
async def test_users_of_berths_account_delay_pods_and_move_none(
    server: NatsServer,
    admin: NatsSession,
    stored: list[tuple[str, bytes]],
    cluster_outside: ClusterUser,
    user: str,
):
    """By replies they reach every stream: they forge every message, then delete all streams."""
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
    forger = Forger(client=client, user=user, stored=stored)

    forged = forged_about(pods["no-room-0"], int(entry.data), running)
    decisions = [await forger.forge(subject, message, Decision) for subject, message in forged]
    assert [(decision.outcome, decision.reason) for decision in decisions] == [
        (Outcome.UNSCHEDULABLE, ""),
        (Outcome.CONFLICT, Reason.NO_CANDIDATE),
        (Outcome.CONFLICT, Reason.VICTIMS),
        (Outcome.BOUND, ""),  # the forged one itself
    ]
    *proposals, bound = forged_about(pods["another-schedulers-0"], int(entry.data), running)
    for subject, message in proposals:
        letter = await forger.forge(subject, message, DeadLetter)
        assert letter.service == "binder"
        assert "names scheduler 'another'" in letter.reason
    await forger.forge(*bound, Decision)
    await eventually(partial(is_empty, admin, "RANKED"), "the binder to have taken every forged message")

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
