"""What another configuration would have done with the pods of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import msgspec
import pytest

from berth.api.config.load import load
from berth.api.config.networktraffic import EGRESS_ANNOTATION
from berth.api.config.presets import DEFAULT
from berth.api.config.types import API_VERSION, KIND
from berth.api.devices import ResourceClaim
from berth.api.pod import Pod, PodResourceClaim
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools
from berth.cluster.snapshot import Snapshot
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome, Ranked
from berth.messages.encoding import decode
from berth.messages.livedata import MeasuredUsage, NodeSample, encode_sample
from berth.plugins.dynamicresources.claims import claim_names
from berth.profiles.configuration import profiles_of
from berth.profiles.installed import known_plugins
from berth_cli.recording.file import Recording
from berth_cli.recording.history import Fate, History, recorded_end
from berth_cli.recording.measures import LastSamples, MeasuredLoad, Spread
from berth_cli.recording.whatif import OtherRun, RunResult, WhatIf, what_if
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile, packing_profiles
from harness.builders.volumes import a_claim, a_class, pod_with_claims
from harness.plugins.long_runs import often
from harness.worlds.recorded_claims import RecordedClaims
from harness.worlds.recorded_groups import RecordedGroups
from harness.worlds.recorded_world import START, RecordedWorld

SAME: Mapping[str, Profile] = {"berth": default_profile()}


def profiles(more: str = "", name: str = "berth") -> Mapping[str, Profile]:
    text = f"apiVersion: {API_VERSION}\nkind: {KIND}\nprofiles:\n- schedulerName: {name}\n{more}"
    return profiles_of(load(text, known=known_plugins(), preset=DEFAULT))


def asked(recording: Recording, other: Mapping[str, Profile]) -> WhatIf:
    return what_if(recording, SAME, other)


def small(name: str, cpu: str = "500m", **spec: object) -> Pod:
    return a_pod(name, containers=[a_container(cpu=cpu)], **{"priority": 0, **spec})


@pytest.fixture
def world() -> RecordedWorld:
    """Three nodes of 4 cores, one scorer, a binder that takes the best node."""
    world = RecordedWorld(0, scorers=1, nodes=0, lag=0.0, chosen_of=1, ever_away=False)
    for number in range(3):
        world.mirror(f"node.n{number}", a_node(f"n{number}", cpu="4"))
    return world


def fates(run: RunResult) -> dict[str, tuple[Fate, str]]:
    return {each.pod.partition("/")[2]: (each.other.fate, each.other.node) for each in run.pods}


def test_with_the_same_configuration_pods_that_came_one_by_one_are_where_they_were(world: RecordedWorld):
    for number in range(12):
        world.one_by_one(small(f"web-{number}"))
    found = asked(world.recording, SAME)
    assert all(each.is_equal for each in found.other.pods)
    assert (len(found.other.pods), found.other.left_out, found.other.failures) == (12, 0, {})
    assert found.recorded == found.other.measures == found.again.measures
    assert (found.recorded.pods, found.recorded.pods_per_node.least, found.recorded.pods_per_node.most) == (12, 4, 4)


def test_a_configuration_that_packs_uses_fewer_nodes_and_leaves_more_room(world: RecordedWorld):
    for number in range(6):
        world.one_by_one(small(f"web-{number}"))
    world.one_by_one(small("large", "2"))
    found = asked(world.recording, packing_profiles())
    assert (found.recorded.nodes_used, found.other.measures.nodes_used) == (3, 2)
    # free by then: 3, 3, 1 cores beside the recorded pods; 0.5, 2.5, 4 of the packed ones, or the like
    assert found.other.measures.room_for >= found.recorded.room_for
    assert any(not each.is_equal for each in found.other.pods)
    assert all(each.is_equal for each in found.again.pods)


def test_a_pod_that_waited_is_placed_where_the_other_configuration_leaves_room(world: RecordedWorld):
    for number in range(3):
        world.one_by_one(small(f"web-{number}", "1"))
    world.one_by_one(small("big", "4"))
    found = asked(world.recording, packing_profiles())
    assert fates(found.again)["big"] == (Fate.WAITS, "")
    assert fates(found.other)["big"][0] is Fate.PLACED
    (big,) = [each for each in found.other.pods if each.pod == "default/big"]
    assert big.recorded.fate is Fate.WAITS
    assert "Insufficient cpu" in big.recorded.reason


def test_a_pod_that_ended_makes_room_at_its_time(world: RecordedWorld):
    for number in range(3):
        world.one_by_one(small(f"web-{number}", "4"))
    world.one_by_one(small("late", "4"))
    assert fates(asked(world.recording, SAME).other)["late"][0] is Fate.WAITS
    world.seconds += 1
    world.end()
    found = asked(world.recording, SAME)
    assert fates(found.other)["late"][0] is Fate.PLACED


def test_pods_are_evicted_for_important_ones_in_each_run_by_itself(world: RecordedWorld):
    for number in range(3):
        world.one_by_one(small(f"web-{number}", "4"))
    world.one_by_one(small("vip", "4", priority=100))
    found = asked(world.recording, SAME)
    assert fates(found.other)["vip"][0] is Fate.PLACED
    evicted = [each for each in found.other.pods if each.other.fate is Fate.EVICTED]
    assert len(evicted) == 1
    assert evicted[0].is_equal


def test_a_victim_of_before_the_recording_is_named(world: RecordedWorld):
    for number in range(3):
        old = small(f"old-{number}", "4")
        world.mirror(f"pod.{old.uid}", msgspec.structs.replace(old, spec=on(old, f"n{number}")))
    begin = world.recording.messages["cluster"][-1].sequence
    world.recording.begun = msgspec.structs.replace(world.recording.begun, positions={"cluster": begin})
    world.one_by_one(small("vip", "4", priority=100))
    found = asked(world.recording, SAME)
    vip, victim = found.other.pods
    assert (vip.pod, vip.other.fate) == ("default/vip", Fate.PLACED)
    assert victim.pod.startswith("default/old-")
    assert victim.other.fate is Fate.EVICTED


def test_pods_that_one_without_a_profile_has_evicted_are_not_beside_it(world: RecordedWorld):
    for number in range(3):
        world.one_by_one(small(f"web-{number}", "4"))
    world.one_by_one(small("vip", "4", priority=100, scheduler_name="batch"))
    for happens in (world.rank, world.decide, world.show):
        world.read()
        happens()
    found = asked(world.recording, SAME)
    assert (found.other.left_out, found.other.measures.pods) == (1, 3)
    assert [each.other.fate for each in found.other.pods].count(Fate.EVICTED) == 1
    assert all(each.is_equal for each in found.other.pods)
    assert found.other.measures.cpu_percent.most == 100  # not 200, as of a node with both


def on(pod: Pod, node: str):
    return msgspec.structs.replace(pod.spec, node_name=node)


@pytest.mark.parametrize("number", range(0, 300, 12))
def test_a_pod_stays_on_its_node_however_many_others_are_as_good(number: int):
    world = RecordedWorld(0, scorers=1, nodes=0, lag=0.0, chosen_of=1, ever_away=False)
    for each in range(300):
        world.mirror(f"node.n{each}", a_node(f"n{each}", cpu="4"))
    pod = small("web")
    world.ask_for(pod, f"{pod.uid}.1.1")
    world.bind(pod, f"n{number}")
    assert all(each.is_equal for each in asked(world.recording, SAME).other.pods)


def test_a_bound_pod_that_the_mirror_shows_as_nominated_counts_on_its_node(world: RecordedWorld):
    pod = small("vip")
    nominated = msgspec.structs.replace(pod.status, nominated_node_name="n1")
    world.ask_for(pod, f"{pod.uid}.1.1")
    world.mirror(f"pod.{pod.uid}", msgspec.structs.replace(pod, status=nominated))
    world.bind(pod, "n1")
    assert recorded_end(world.recording, History(world.recording)).node_of(pod.uid) == "n1"


def test_pods_without_a_profile_are_left_out(world: RecordedWorld):
    world.one_by_one(small("web"))
    found = asked(world.recording, profiles(name="another"))
    assert (found.other.pods, found.other.left_out) == ([], 1)


def test_what_a_claim_was_bound_to_is_left_out_once_its_pod_was_placed(world: RecordedWorld):
    world.mirror("storageclass.slow", a_class())
    world.mirror("pvc.uid-data", a_claim("data"))
    asked_at = world.now
    world.one_by_one(pod_with_claims("db", "data"))
    history = History(world.recording)
    claim = ("pvc", "default", "data")
    assert not history.is_a_consequence(claim, asked_at)
    assert history.is_a_consequence(claim, world.now)
    assert not history.is_a_consequence(("pvc", "default", "other"), world.now)


@pytest.mark.parametrize("seed", range(often(2)))
def test_devices_of_another_run_are_its_own(seed: int):
    world = RecordedClaims(seed, scorers=1, lag=0.0, ever_away=False)
    world.run(200)
    run = OtherRun(world.recording, SAME, History(world.recording))
    run.through()
    ledger, claims = DeviceLedger.of(run.snapshot), run.snapshot.objects(ResourceClaim)
    assert all(len(ledger.owners_of(device.key)) <= 1 for device in DevicePools.of(run.snapshot))
    placed = [each for each in run.compared() if each.other.fate is Fate.PLACED]
    given = 0
    for each in placed:
        pod = run.snapshot.placed(each.uid)
        for name in claim_names(pod.pod) if pod else ():
            found = ledger.allocation_of(claims.named(name, "default"))
            assert {result.pool for result in found.devices.results} == {each.other.node}
            given += 1
    assert given > 3
    assert run.failures == {}


def test_a_device_is_given_again_when_its_pod_ends(world: RecordedWorld):
    world.mirror("deviceclass.gpu", {"metadata": {"name": "gpu"}})
    pool = {"name": "n0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d", "nodeName": "n0", "pool": pool, "devices": [{"name": "gpu-0"}]}
    world.mirror("resourceslice.n0", {"metadata": {"name": "n0"}, "spec": spec})

    def show(name: str, **status: object) -> None:
        exactly = {"deviceClassName": "gpu"}
        metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        claim = {"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}, "status": status}
        world.mirror(f"resourceclaim.uid-{name}", {"metadata": metadata, **claim})

    for name in ("first", "late"):
        show(name)
        entry = PodResourceClaim(name="gpu", resource_claim_name=name)
        world.one_by_one(a_pod(f"of-{name}", resource_claims=[entry]))
        if name == "first":
            result = {"request": "r", "driver": "d", "pool": "n0", "device": "gpu-0"}
            show(name, allocation={"devices": {"results": [result]}}, reservedFor=[{"name": "of-first", "uid": "uid"}])
    assert fates(asked(world.recording, SAME).other)["of-late"][0] is Fate.WAITS
    world.seconds += 1
    world.end()
    found = fates(asked(world.recording, SAME).other)
    assert found["of-late"] == (Fate.PLACED, "n0")


def test_traffic_moves_with_the_pods_by_their_annotations():
    """80 Mbit/s are 10 MB/s, on n0 in the one cluster and on n1 in the other."""
    pod = a_pod("busy", metadata={"annotations": {EGRESS_ANNOTATION: "80M"}})
    here, there = Snapshot(), Snapshot()
    for snapshot, node in ((here, "n0"), (there, "n1")):
        snapshot.set_node(a_node("n0"))
        snapshot.set_node(a_node("n1"))
        snapshot.place(pod, node)
    samples = {
        "n0": NodeSample(receive=5.0, transmit=12e6, sampled_at=START),
        "n1": NodeSample(receive=7.0, transmit=6e6, sampled_at=START),
    }
    load = MeasuredLoad(here, LastSamples(traffic=samples))
    assert (load.received(here), load.transmitted(here)) == (7.0, 12e6)
    assert (load.received(there), load.transmitted(there)) == (7.0, 16e6)  # 6 + 10; n0: 12 - 10
    annotated, empty = MeasuredLoad(here, LastSamples()), Snapshot()
    assert (annotated.received(there), annotated.transmitted(there)) == (None, 10e6)
    assert (annotated.received(empty), annotated.transmitted(empty)) == (None, None)


def test_measured_cpu_and_memory_move_with_the_pods_by_their_estimates(world: RecordedWorld):
    for node, cores in (("n0", 3000.0), ("n1", 1000.0)):
        used = MeasuredUsage(average=cores), MeasuredUsage(average=2.0**30)
        sample = NodeSample(cpu=used[0], memory=used[1], sampled_at=START)
        world.publish("bandwidth", f"load.{node}", encode_sample(sample))
    world.publish("bandwidth", "load.n2", b"no sample")
    for number in range(2):
        world.one_by_one(small(f"web-{number}", cpu="2"))
    found = asked(world.recording, packing_profiles())
    assert found.recorded.cpu_used_percent == Spread(least=25, mean=50, most=75, deviation=25)
    # Both pods are on n0 then: 3000 + 1700 (85 % of 2 cores) of 4000, and 1 GiB + 200 MiB of 8 GiB; n2 has no sample.
    assert found.other.measures.cpu_used_percent == Spread(least=25, mean=71.25, most=117.5, deviation=46.25)
    assert found.other.measures.memory_used_percent == Spread(least=12.5, mean=13.72, most=14.94, deviation=1.22)
    assert found.again.measures == found.recorded
    unmeasured = asked(RecordedWorld(1, scorers=1, nodes=1).recording, SAME).recorded
    assert (unmeasured.cpu_used_percent, unmeasured.memory_used_percent) == (None, None)


def test_outcomes_are_the_last_decision_of_a_pod(world: RecordedWorld):
    world.one_by_one(small("web"))
    history = History(world.recording)
    (uid,) = history.pods
    assert history.fate_of(uid).fate is Fate.PLACED
    assert history.bound[uid] == decode(world.recording.of("RANKED")[0].payload or b"", Ranked).candidates[0].node
    assert Outcome.BOUND in world.recording.of("DECISIONS")[0].payload.decode()
    assert history.asked[0].at <= world.now - timedelta(milliseconds=10)


def test_pods_of_groups_stay_where_they_were_recorded_and_others_see_them_there():
    world = RecordedGroups(2, scorers=1, lag=0.0, ever_away=False, nodes=20)
    world.run(200)
    run = OtherRun(world.recording, packing_profiles(), History(world.recording))
    run.through()
    members = {uid: pod for uid, pod in world._placed.items() if pod.metadata.name.startswith("gang")}
    assert len(members) > 5
    assert {run.snapshot.node_of(uid) for uid in members} != {None}
    assert all(run.snapshot.node_of(uid) == pod.spec.node_name for uid, pod in members.items())
    assert not any(each.pod.startswith("default/gang") for each in run.compared() if each.recorded.fate is Fate.WAITS)
