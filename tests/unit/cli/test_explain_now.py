"""A pod ranked again on every node, from the buckets."""

import asyncio
import re
from datetime import timedelta

import msgspec
import pytest

from berth.api.devices import AllocationResult, ClaimMeta, ResourceClaim, ResourceClaimStatus
from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.node import Node, NodeSpec, NodeStatus, Taint
from berth.api.pod import Container, Pod, PodResourceClaim, PodSpec, ResourceRequirements
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank_every_node
from berth.framework.status import Code, Status
from berth.messages.livedata import NodeSample, encode_sample, utc_time
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Attempt
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.commands.top import newest_traffic, node_lines
from berth_cli.mirror import open_mirror
from berth_cli.options import parse_pod
from berth_cli.pods.finding import find_pod, in_the_mirror
from berth_cli.pods.now import RankedNow, ranked_now_json, ranked_now_lines, rejections_of
from berth_cli.remedies.rejections import remedies_of
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed, words

IS_NODE = re.compile(r"n\d{3}")
PROFILE = profiles_of(read_configuration(None))["berth"]


def node(name, cpu="4", **spec):
    return Node(
        metadata=ObjectMeta(name=name, uid=name),
        spec=NodeSpec(**spec),
        status=NodeStatus(allocatable={"cpu": cpu, "memory": "8Gi", "pods": "110"}),
    )


def pod(name="web-0", cpu="1", node_name=""):
    wants = ResourceRequirements(requests={"cpu": cpu})
    spec = PodSpec(scheduler_name="berth", node_name=node_name, containers=[Container(resources=wants)])
    return Pod(metadata=ObjectMeta(name=name, namespace="default", uid=name), spec=spec)


NODES = [
    node("roomy"),
    node("smaller", cpu="2"),
    node("full", cpu="500m"),
    node("cordoned", unschedulable=True),
    node("tainted", taints=[Taint(key="a", value="b", effect="NoSchedule")]),
]


def again(of=None, nodes=NODES, **result):
    snapshot = Snapshot()
    for one in nodes:
        snapshot.set_node(one)
    asked = of or pod()
    attempt = Attempt(uid=asked.uid, term=1, n=1)
    every = rank_every_node(asked, snapshot, PROFILE, attempt=attempt)
    known = {"node": "", "found_in": "PENDING", "weights": PROFILE.weights, "view_age_seconds": 0.5, **result}
    return RankedNow(pod=asked, every=every, **known)


def test_every_node_has_scores_or_the_plugin_that_rejected_it():
    result = again()
    assert [candidate.node for candidate in result.every.ranking.candidates] == ["roomy", "smaller"]
    assert {name: status.plugin for name, status in result.every.detail.node_to_status.items()} == {
        "full": "NodeResourcesFit",
        "cordoned": "NodeUnschedulable",
        "tainted": "TaintToleration",
    }


def test_the_table_has_a_line_for_every_node():
    lines = printed(*ranked_now_lines(again()), width=160)
    assert lines[0] == "default/web-0 is on no node; ranked now it would go to roomy"
    assert lines[1] == "  2 of 5 nodes are possible; the data is current; the pod is from PENDING"
    rows = words(lines)
    assert ["full", "NodeResourcesFit", "Insufficient", "cpu"] in rows
    assert any(row[:2] == ["1", "roomy"] for row in rows)


def many(count, *, cpu="4"):
    return [node(f"n{number:03}", cpu=cpu) for number in range(count)]


@pytest.mark.parametrize("count", [1, 10, 11, 300])
@pytest.mark.parametrize("cpu", ["4", "1m"], ids=["possible", "rejected"])
def test_ten_nodes_are_shown_and_the_others_counted(count: int, cpu: str):
    result = again(nodes=many(count, cpu=cpu))
    rows = [row for row in words(printed(*ranked_now_lines(result), width=160)) if any(map(IS_NODE.fullmatch, row[:2]))]
    assert len(rows) == min(count, 10)
    lines = printed(*ranked_now_lines(result), width=160)
    assert (f"and {count - 10} more (--all)" in lines) == (count > 10)
    whole = printed(*ranked_now_lines(result, every_row=True), width=160)
    assert all(any(f"n{number:03} " in line for line in whole) for number in range(count))
    assert not [line for line in whole if "--all" in line]
    found = ranked_now_json(result)
    assert len(found["candidates"]) + len(found["refused"]) == count


@pytest.mark.parametrize("cpu", ["4", "1m"], ids=["possible", "rejected"])
def test_the_present_node_is_shown_wherever_it_is(cpu: str):
    nodes = many(30, cpu=cpu)
    ranked = again(nodes=nodes).every
    last = ranked.ranking.candidates[-1].node if ranked.ranking.candidates else "n029"
    rows = words(printed(*ranked_now_lines(again(nodes=nodes, node=last)), width=160))
    assert [row for row in rows if last in row[:2]]
    assert ["and", "19" if cpu == "4" else "20", "more", "(--all)"] in rows


def test_a_nominated_node_is_tried_first_now_too():
    asked = pod()
    nominated = msgspec.structs.replace(
        asked, status=msgspec.structs.replace(asked.status, nominated_node_name="smaller")
    )
    result = again(nominated)
    lines = printed(*ranked_now_lines(result), width=160)
    assert lines[1].startswith("  the nominated smaller is possible and was tried first, without the 4 others;")
    found = ranked_now_json(result)
    assert (found["nominated_first"], found["evaluated"], found["nodes"]) == (True, 1, 5)


def test_a_mirror_beyond_the_usual_age_is_called_old():
    assert "; the data is current; the pod" in printed(*ranked_now_lines(again(view_age_seconds=27.5)), width=160)[1]
    old = printed(*ranked_now_lines(again(view_age_seconds=47.0)), width=160)[1]
    assert "the data is 47.0 s old, so the watcher is behind" in old


def test_what_would_help_follows_where_no_node_is_possible():
    large = pod(cpu="8")
    snapshot = Snapshot()
    for one in NODES:
        snapshot.set_node(one)
    ranked = again(large, remedies=remedies_of(large, snapshot, PROFILE))
    lines = printed(*ranked_now_lines(ranked), width=200)
    told = "of the 3 nodes that nothing else refuses, the largest node has 4, and the freest 4 of 4 free (roomy)"
    assert f"  NodeResourcesFit: asks for 8 CPU; {told}" in lines
    (found,) = [each for each in ranked_now_json(ranked)["remedies"] if each.about == "cpu"]
    assert found.amounts["asked"] == 8000


def test_a_gated_pod_is_called_gated_first():
    gates = Status(Code.UNSCHEDULABLE, ("waiting for scheduling gates: [a]",), "SchedulingGates")
    result = again(gated=gates)
    assert printed(*ranked_now_lines(result), width=200)[0] == (
        "default/web-0 is gated and not scheduled (SchedulingGates: waiting for scheduling gates: [a]); without "
        "that, ranked now it would go to roomy"
    )
    assert ranked_now_json(result)["gated"] == {
        "plugin": "SchedulingGates",
        "reasons": ("waiting for scheduling gates: [a]",),
    }
    assert ranked_now_json(again())["gated"] is None


def test_a_pod_that_fits_nowhere_has_counts_first():
    lines = printed(*ranked_now_lines(again(pod(cpu="64"))), width=160)
    assert lines[0].startswith("default/web-0 is on no node; ranked now it would wait: 0/5 nodes are available:")
    assert ["3", "NodeResourcesFit", "Insufficient", "cpu", "roomy,", "smaller,", "full"] in words(lines)


def test_rejections_by_prefilter_are_of_every_node():
    asked = pod()
    affine = msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, node_name="nowhere"))
    assert set(again(affine).every.detail.node_to_status) == {one.metadata.name for one in NODES}


def test_without_nodes_there_is_a_sentence():
    assert printed(*ranked_now_lines(again(nodes=[])))[0].endswith("would wait: no nodes available to schedule pods")


def test_counts_name_three_nodes_at_most():
    result = again(pod(cpu="64"), nodes=[node(f"node-{number}") for number in range(9)])
    (rejection,) = rejections_of(result.every.detail.node_to_status)
    assert (rejection.nodes, len(rejection.examples)) == (9, 3)


def test_json_has_every_node():
    result = msgspec.json.decode(msgspec.json.encode(ranked_now_json(again())))
    assert [one["node"] for one in result["candidates"]] == ["roomy", "smaller"]
    assert result["candidates"][0]["scores"]["TaintToleration"]["weight"] == 3
    assert {one["node"]: one["plugin"] for one in result["refused"]}["full"] == "NodeResourcesFit"


async def bus_with_mirror():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    for one in NODES:
        entry = MirrorEntry(term=1, object=msgspec.Raw(msgspec.json.encode(one)))
        await session.put("cluster", f"node.{one.metadata.name}", encode_entry(entry))
    bound = MirrorEntry(term=1, object=msgspec.Raw(msgspec.json.encode(pod(node_name="roomy"))))
    await session.put("cluster", "pod.web-0", encode_entry(bound))
    await session.put("cluster", watermark_key("pod"), encode_watermark(Watermark(term=1, resource_version="7")))
    return session


async def test_the_mirror_is_complete_on_entering_and_kept_up_to_date():
    session = await bus_with_mirror()
    await session.put("cluster", "node.broken", b"junk")
    async with open_mirror(session, also=("bandwidth",)) as mirror:
        assert mirror.snapshot.node_count == len(NODES)
        assert mirror.snapshot.node_of("web-0") == "roomy"
        assert (mirror.unreadable, set(mirror.watermarks)) == (1, {"pod"})
        assert {line.name: line.pods for line in node_lines(mirror)}["roomy"] == 1
        sample = NodeSample(receive=2.0, sampled_at=utc_time(1000))
        await session.put("bandwidth", "q1.roomy", encode_sample(sample))
        async with asyncio.timeout(5):
            while not (lines := [line for line in node_lines(mirror) if line.sampled_at]):  # noqa: ASYNC110 - there is no event for a read sample
                await asyncio.sleep(0)
        assert [(line.name, line.receive) for line in lines] == [("roomy", 2.0)]


async def test_a_pod_is_found_where_it_is_bound():
    session = await bus_with_mirror()
    async with open_mirror(session) as mirror:
        found = await find_pod(session, parse_pod("web-0"), mirror.snapshot, None)
    assert (found.pod.uid, found.where) == ("web-0", "bucket cluster")


def test_a_placed_pod_has_the_claims_that_were_made_for_it():
    """The mirror's pod has no status; its next claim is allocated to the node that it is on."""
    template = PodResourceClaim(name="gpu", resource_claim_template_name="t")
    snapshot, placed = Snapshot(), pod(node_name="roomy")
    placed = msgspec.structs.replace(placed, spec=msgspec.structs.replace(placed.spec, resource_claims=[template]))
    snapshot.set_node(NODES[0])
    snapshot.place(placed, "roomy")
    owners = [OwnerReference(uid=placed.uid, name="web-0", kind="Pod", controller=True)]
    for name, entry in (("web-0-gpu-x7k2p", "gpu"), ("others", "")):
        metadata = ClaimMeta(
            name=name,
            namespace="default",
            uid=name,
            annotations={"resource.kubernetes.io/pod-claim-name": entry} if entry else None,
            owner_references=owners,
        )
        status = ResourceClaimStatus(allocation=AllocationResult())
        snapshot.objects(ResourceClaim).set(name, ResourceClaim(metadata=metadata, status=status))
    found = in_the_mirror(snapshot, parse_pod("web-0"))
    statuses = [(each.name, each.resource_claim_name) for each in found.pod.status.resource_claim_statuses]
    assert statuses == [("gpu", "web-0-gpu-x7k2p")]
    every = rank_every_node(found.pod, snapshot, PROFILE, attempt=Attempt(uid=placed.uid, term=1, n=1))
    assert [each.node for each in every.ranking.candidates] == ["roomy"]


def test_the_newest_sample_of_a_node_counts():
    old, new = (
        NodeSample(receive=1.0, sampled_at=utc_time(1)),
        NodeSample(receive=2.0, sampled_at=utc_time(2) + timedelta(0)),
    )
    assert newest_traffic([new, old]) is new
    assert newest_traffic([]) is None
