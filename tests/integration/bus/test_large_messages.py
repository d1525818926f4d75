"""The largest rankings on a nats-server as NATS configures it: they have less explanation, and all their nodes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import msgspec
import pytest

from berth.api.devices import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from berth.api.meta import NAME_CHARACTERS
from berth.bus.session import NatsBus
from berth.bus.settings import MEBIBYTE, BusSettings
from berth.bus.stages import group_ranked_message, ranked_message
from berth.bus.topology import RANKED
from berth.messages.attempts import MOST_CLASSES, MOST_PLUGINS, Candidate, Ranked, Rejection
from berth.messages.bundles import Bundle, bundled
from berth.messages.encoding import decode
from berth.messages.groupattempts import GroupRanked, decode_group
from berth.messages.groups import ClassPlan, GroupPlan, PlannedMember
from harness.builders.groups import a_group, members
from harness.builders.objects import a_pod
from harness.plugins.fixtures_bus import TEST_TOPOLOGY
from harness.servers.nats_server import NatsServer, nats_server

pytestmark = pytest.mark.requires("nats-server")

NODES = [f"{number:04}{'n' * (NAME_CHARACTERS - 4)}" for number in range(1_000)]


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server(max_payload_bytes=MEBIBYTE) as server:
        yield server


async def stored(server: NatsServer, message: Ranked | GroupRanked) -> bytes:
    """The ranking as RANKED has it."""
    session = await NatsBus(BusSettings(servers=(server.address,), topology=TEST_TOPOLOGY)).connect(name="test")
    try:
        await session.apply()
        assert session.max_message_bytes == MEBIBYTE
        of_kind = ranked_message if isinstance(message, Ranked) else group_ranked_message
        staged = of_kind(session, message)
        await staged.publish(session)
        found = await session.last(RANKED, staged.subject)
    finally:
        await session.close()
    assert found is not None
    return found.data


def a_gang(name: str, plan: GroupPlan, bundle: Bundle) -> GroupRanked:
    group = a_group(name)
    return GroupRanked(
        attempt=f"{group.uid}.1.1", profile="berth", group=group, bundle=bundle, need=plan.need, plan=plan
    )


def a_bundle(count: int) -> Bundle:
    pods = members(count, cpu="1")
    bundle = bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1))
    named = [msgspec.structs.replace(each, uid=str(uuid.uuid4())) for each in bundle.members]
    return msgspec.structs.replace(bundle, members=named)


async def test_a_ranking_with_the_longest_names_of_all_plugins_names_every_node(server):
    plugins = [f"{number:03}{'P' * (NAME_CHARACTERS - 3)}" for number in range(MOST_PLUGINS)]
    scores = dict.fromkeys(plugins, 100)
    explained = [Candidate(node=node, total=1, scores=scores) for node in NODES[:64]]
    further = [Candidate(node=node, total=1) for node in NODES[64:128]]
    given = Ranked(attempt="uid-web.1.1", profile="berth", pod=a_pod("web"), candidates=[*explained, *further])
    read = decode(await stored(server, msgspec.structs.replace(given, weights=scores)), Ranked)
    assert [each.node for each in read.candidates] == NODES[:128]
    assert (read.error, read.weights) == ("", {})


async def test_a_gang_of_1000_with_eight_devices_each_is_planned_without_naming_them(server):
    results = [
        DeviceRequestAllocationResult(request="gpus", driver="gpu.example.com", pool=NODES[0][:60], device=f"gpu-{n}")
        for n in range(8)
    ]
    allocation = AllocationResult(devices=DeviceAllocationResult(results=results))
    bundle = a_bundle(1_000)
    planned = [PlannedMember(member.uid, 0, number) for number, member in enumerate(bundle.members)]
    devices = {member.uid: {str(uuid.uuid4()): allocation} for member in bundle.members}
    plan = GroupPlan(
        need=1_000, nodes=NODES, members=planned, classes=[ClassPlan(members=1_000, placed=1_000)], devices=devices
    )
    read = decode_group(await stored(server, a_gang("devices", plan, bundle)), GroupRanked).plan
    assert (read.error, read.members, read.nodes) == ("", planned, NODES)
    assert read.devices == {}


async def test_why_a_group_of_many_kinds_has_no_place_is_said_without_examples(server):
    rejections = [Rejection(plugin="P" * 30, reason=f"r{n}", nodes=1, examples=NODES[:3]) for n in range(30)]
    classes = [ClassPlan(members=1, example=f"m{n}", rejections=rejections) for n in range(MOST_CLASSES)]
    plan = GroupPlan(need=MOST_CLASSES, classes=classes, message="0 of 64 have a place")
    read = decode_group(await stored(server, a_gang("kinds", plan, a_bundle(MOST_CLASSES))), GroupRanked).plan
    assert (read.error, read.message) == ("", "0 of 64 have a place")
    assert [(each.reason, each.examples) for each in read.classes[0].rejections[:2]] == [("r0", []), ("r1", [])]
