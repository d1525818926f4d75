"""Rankings of random histories are made again, and are equal; what is missing or changed is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import API_VERSION, KIND
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome, Ranked, Received
from berth.messages.encoding import decode, encode
from berth.messages.groupattempts import GroupRanked, decode_group
from berth.profiles.configuration import profiles_of
from berth.profiles.installed import known_plugins
from berth_cli.recording.differences import differences
from berth_cli.recording.file import Begun, Recorded, recorded
from berth_cli.recording.replay import Replay, ReplayCounts, Replayed
from harness.builders.profiles import default_profile
from harness.plugins.long_runs import often
from harness.worlds.recorded_claims import RecordedClaims
from harness.worlds.recorded_earmarks import RecordedEarmarks
from harness.worlds.recorded_groups import RecordedGroups, RecordedMembers
from harness.worlds.recorded_world import RecordedWorld

STEPS = 300
TRAFFIC = """\
  plugins: {score: {enabled: [{name: NetworkTraffic, weight: 3}]}}
  pluginConfig:
  - name: NetworkTraffic
    args: {url: "http://prometheus:9090", maximumAge: 60s}
"""
HISTORIES = [(seed, lag) for lag in (0.0, 0.05, 0.5) for seed in range(often(2))]


def history(seed: int = 1, **options: object) -> RecordedWorld:
    world = RecordedWorld(seed, scorers=1 + seed % 3, **options)
    world.run(STEPS)
    return world


def replayed(world: RecordedWorld) -> list[Replayed]:
    return list(Replay(world.recording, {"berth": default_profile()}, best=32).run())


def counts(world: RecordedWorld) -> ReplayCounts:
    found = ReplayCounts()
    for one in replayed(world):
        found.add(one)
    return found


def changed(world: RecordedWorld, index: int, **members: object) -> None:
    """Change a ranking of the recording."""
    there = world.recording.messages["RANKED"]
    message = msgspec.structs.replace(decode(there[index].payload or b"", Ranked), **members)
    there[index] = recorded("RANKED", there[index].sequence, there[index].time, there[index].subject, encode(message))


def rankings(world: RecordedWorld) -> list[Ranked]:
    return [decode(record.payload or b"", Ranked) for record in world.recording.of("RANKED")]


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_every_ranking_of_a_random_history_is_equal(seed: int, lag: float):
    world = history(seed, lag=lag)
    found = counts(world)
    assert (found.different, found.left_out) == (0, Counter())
    assert found.equal.total() == len(world.recording.of("RANKED")) > STEPS / 6
    assert len(found.equal) == len(world.scorers)


@pytest.mark.parametrize("seed", range(often(2)))
def test_rankings_on_live_data_are_equal(seed: int):
    """Also those that depend on the age of a sample, by the scorer's clock."""
    world = RecordedWorld(seed, lag=0.2, profiles=on_traffic())
    world.run(STEPS)
    found = ReplayCounts()
    for one in Replay(world.recording, on_traffic(), best=32).run():
        found.add(one)
    assert (found.different, found.left_out) == (0, Counter())
    points = {
        each.scores["NetworkTraffic"] for message in rankings(world) for each in message.candidates if each.scores
    }
    assert len(points) > 10


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_rankings_with_devices_are_equal(seed: int, lag: float):
    world = RecordedClaims(seed, scorers=1 + seed % 3, lag=lag)
    world.run(STEPS)
    found = counts(world)
    assert (found.different, found.left_out) == (0, Counter())
    assert world.bound > 10
    assert sum(bool(message.devices) for message in rankings(world)) > 20


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_plans_of_groups_are_equal_also_those_during_which_their_scorer_went_on(seed: int, lag: float):
    world = RecordedGroups(seed, scorers=1 + seed % 3, lag=lag)
    world.run(STEPS)
    found = replayed(world)
    assert [one.differences for one in found if one.differences or one.left_out] == []
    assert len(found) == len(world.recording.of("RANKED"))
    groups = [one.again for one in found if isinstance(one.again, GroupRanked)]
    assert len(groups) > 10
    assert any(each.plan.is_found for each in groups)
    assert world.interrupted > 1


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_rankings_and_plans_beside_earmarks_are_equal(seed: int, lag: float):
    world = RecordedEarmarks(seed, scorers=1 + seed % 3, lag=lag)
    world.run(STEPS)
    found = replayed(world)
    assert [one.differences for one in found if one.differences or one.left_out] == []
    assert len(found) == len(world.recording.of("RANKED"))
    assert any(b"are earmarked for group" in (record.payload or b"") for record in world.recording.of("RANKED"))


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_rankings_of_pods_that_follow_their_group_into_its_rack_are_equal(seed: int, lag: float):
    world = RecordedMembers(seed, scorers=1 + seed % 3, lag=lag)
    world.run(STEPS)
    assert [one.differences for one in replayed(world) if one.differences or one.left_out] == []
    named = [{each.node for each in ranked.candidates} for ranked in rankings(world) if ranked.pod.metadata.labels]
    racks = [{int(node[1:]) % 2 for node in nodes} for nodes in named if nodes]
    assert len(racks) > 10
    # A scorer that knows of no member may name both.
    assert 5 * sum(len(each) > 1 for each in racks) < len(racks)


def test_another_plan_is_a_difference():
    world = RecordedGroups(1, scorers=1)
    world.run(STEPS)
    there = world.recording.messages["RANKED"]
    index = next(index for index, record in enumerate(there) if b'"schema":2' in (record.payload or b""))
    message = decode_group(there[index].payload or b"", GroupRanked)
    plan = msgspec.structs.replace(message.plan, nodes=["elsewhere"] * len(message.plan.nodes), steps=99)
    data = encode(msgspec.structs.replace(message, plan=plan))
    there[index] = recorded("RANKED", there[index].sequence, there[index].time, there[index].subject, data)
    found = replayed(world)[index]
    assert found.ranking.name == f"default/{message.group.name}"
    assert found.differences[0].startswith(f"member {message.plan.members[0].uid}: recorded elsewhere, again n")
    assert found.differences[-1] == f"steps: recorded 99, again {message.plan.steps}"


def test_other_devices_are_a_difference():
    world = RecordedClaims(1, scorers=1)
    world.run(STEPS)
    index, message = next((index, each) for index, each in enumerate(rankings(world)) if each.devices)
    changed(world, index, devices={})
    (found, *_) = [one.differences for one in replayed(world) if one.differences]
    (uid,) = message.devices
    assert found[0].startswith(f"devices: recorded none, again {uid}: gpu.acme.example/n")


@pytest.mark.parametrize("best", [1, 3])
def test_rankings_of_scorers_that_named_fewer_nodes_are_equal(best: int):
    """As with another setting, or before small clusters had twice as many."""
    world = RecordedWorld(1)
    for scorer in world.scorers:
        scorer.ranker = replace(scorer.ranker, named=best)
    world.run(STEPS)
    assert any(len(message.candidates) == best < message.feasible for message in rankings(world))
    assert (counts(world).different, counts(world).left_out) == (0, Counter())


def test_rankings_of_a_scorer_with_a_larger_setting_that_name_every_node_are_equal():
    world = history()
    assert all(message.feasible <= len(message.candidates) for message in rankings(world) if message.candidates)
    made = list(Replay(world.recording, world.profiles, best=1).run())
    assert [one.differences for one in made if one.differences] == []


def test_a_ranking_is_made_again_as_by_its_scorer_whose_own_proposals_are_no_others():
    made = replayed(history())
    assert {one.again.scorer for one in made if one.again} == {"scorer-0", "scorer-1"}
    assert all(one.again.scorer == one.ranking.message.scorer for one in made if one.again)


@pytest.mark.slow
def test_without_the_newest_pending_message_live_data_has_another_age():
    different = 0
    for seed in range(20, 30):
        world = RecordedWorld(seed, lag=0.2, profiles=on_traffic())
        world.run(STEPS)
        for index, message in enumerate(rankings(world)):
            changed(world, index, received=msgspec.structs.replace(message.received, pending=1))
        different += sum(bool(one.differences) for one in Replay(world.recording, on_traffic(), best=32).run())
    assert different > 0


def on_traffic() -> Mapping[str, Profile]:
    """NetworkTraffic beside the default plugins; a sample is too old after a minute."""
    text = f"apiVersion: {API_VERSION}\nkind: {KIND}\nprofiles:\n- schedulerName: berth\n{TRAFFIC}"
    return profiles_of(load(text, known=known_plugins(), preset=DEFAULT))


def test_the_histories_have_what_makes_a_view():
    """Else the test above would prove less than it says."""
    made = [message for seed, lag in HISTORIES for message in rankings(history(seed, lag=lag))]
    assert any(message.preemption is not None for message in made)
    assert any(message.proposals_counted for message in made)
    assert any(message.received.expired for message in made)
    assert any(message.candidates for message in made)
    assert any(message.rejections for message in made)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["ranked", "expired"])
def test_without_the_positions_of_the_view_rankings_differ(field: str):
    """So each field is needed."""
    different = 0
    for seed, lag in HISTORIES:
        world = history(seed, lag=lag)
        for index, message in enumerate(rankings(world)):
            changed(
                world,
                index,
                received=msgspec.structs.replace(message.received, **{field: getattr(Received(), field)}),
            )
        different += counts(world).different
    assert different > 0


def test_a_changed_ranking_is_named_and_causes_no_other_difference():
    world = history()
    index, message = next(
        (index, message) for index, message in enumerate(rankings(world)) if len(message.candidates) > 2
    )
    first, second, *others = message.candidates
    changed(world, index, candidates=[first, msgspec.structs.replace(second, total=second.total + 7), *others])
    (one,) = [one for one in replayed(world) if one.differences]
    assert one.ranking.message.attempt == message.attempt
    (sentence,) = one.differences
    assert sentence.startswith(f"{second.node}: recorded {second.total + 7} with {second.pods} pods")
    assert f", again {second.total} with " in sentence


def test_another_order_of_nodes_is_named():
    world = history()
    index, message = next(
        (index, message) for index, message in enumerate(rankings(world)) if len(message.candidates) > 2
    )
    first, second, *others = message.candidates
    changed(world, index, candidates=[second, first, *others])
    sentences = [sentence for one in replayed(world) for sentence in one.differences]
    assert any(each.startswith(f"nodes: recorded {second.node}, {first.node}") for each in sentences)


def test_a_missing_message_of_the_mirror_is_noticed():
    world = history()
    world.recording.messages["cluster"] = [
        record for record in world.recording.of("cluster") if record.subject != "node.n0"
    ]
    assert counts(world).different > 0


def test_what_cannot_be_made_again_is_left_out_with_the_reason():
    world = history()
    changed(world, 0, received=Received())
    changed(world, 1, config="another")
    changed(world, 2, error="it failed", nodes=None, evaluated=0, candidates=[], rejections=[])
    changed(world, 3, evaluated=1, nodes=6, nominated_first=False)
    found = counts(world)
    assert found.left_out == Counter(
        {
            "ranked by a version that does not report the positions of its view": 1,
            "ranked under another configuration (another)": 1,
            "not ranked: it failed before": 1,
            "percentageOfNodesToScore: which nodes were searched depends on the scorer's earlier pods": 1,
        }
    )


def begun_after(world: RecordedWorld, count: int) -> None:
    """As if the recorder had started when that many rankings had been made and bound."""
    recording = world.recording
    since = recording.messages["RANKED"][count].time
    positions = {
        source: max((record.sequence for record in there if record.time <= since), default=0)
        for source, there in recording.messages.items()
    }
    decided = {
        msgspec.json.decode(record.payload or b"")["attempt"]
        for record in recording.of("DECISIONS")
        if record.time <= since
    }
    recording.begun = Begun(positions=positions)
    last_of_key = {record.subject: record for record in recording.of("cluster") if record.time <= since}
    recording.messages["cluster"] = [
        record for record in recording.of("cluster") if record.time > since or last_of_key[record.subject] is record
    ]
    for stream in ("PENDING", "RANKED"):  # what was acknowledged is not there any more
        recording.messages[stream] = [
            record
            for record in recording.of(stream)
            if record.time > since or msgspec.json.decode(record.payload or b"")["attempt"] not in decided
        ]


@pytest.mark.parametrize("seed", range(often(2)))
def test_a_recording_that_begins_in_the_middle_has_equal_rankings(seed: int):
    """Those that were made on a view from before it are left out, and no other ones."""
    world = history(seed, lag=0.05)
    begun_after(world, 20)
    found = counts(world)
    assert found.different == 0
    assert found.equal.total() > 10
    assert set(found.left_out) <= {"ranked before everything that counted then was recorded"}


def test_a_recording_without_a_begin_compares_nothing():
    world = history()
    world.recording.begun = None
    assert set(counts(world).left_out) == {"the recorder was ended before it had read the cluster"}


def test_rankings_on_what_came_after_the_recording_are_left_out():
    world = history()
    there = world.recording.messages["cluster"]
    del there[len(there) // 2 :]
    found = counts(world)
    assert found.different == 0
    assert found.left_out["ranked on what was not recorded any more"] > 0


def test_rankings_after_one_that_the_recorder_missed_are_left_out():
    world = history(4)
    del world.recording.messages["RANKED"][30]
    found = counts(world)
    assert found.different == 0
    assert set(found.left_out) == {"ranked soon after rankings that the recorder missed"}
    assert found.equal.total() >= 30


def test_rankings_after_one_that_their_scorer_missed_are_left_out():
    world = history(4)
    missed = world.recording.messages["RANKED"][29].sequence
    changed(world, 30, received=msgspec.structs.replace(rankings(world)[30].received, missed=missed))
    found = counts(world)
    assert found.different == 0
    assert found.left_out == {"ranked soon after rankings that the scorer missed": 1}


def test_messages_that_cannot_be_decoded_are_counted():
    world = history()
    there = world.recording.messages["RANKED"]
    for data in (b"{}", b"[" * 5000, b"\xff"):
        there.append(_after(there[-1], data))
    replay = Replay(world.recording, {"berth": default_profile()}, best=32)
    assert replay.unreadable == 3
    assert all(not one.differences for one in replay.run())


def _after(last: Recorded, data: bytes) -> Recorded:
    return recorded("RANKED", last.sequence + 1, last.time, last.subject, data)


def test_a_message_that_was_cut_to_fit_is_compared_by_what_it_has():
    world = history()
    message = next(message for message in rankings(world) if len(message.candidates) > 3)
    cut = msgspec.structs.replace(
        message, candidates=[msgspec.structs.replace(each, scores={}) for each in message.candidates[:2]]
    )
    assert list(differences(cut, message)) == []
    assert list(differences(message, message)) == []
    (sentence,) = differences(msgspec.structs.replace(message, candidates=message.candidates[:2]), message)
    assert sentence.startswith("nodes: recorded none, again ")


def test_decisions_of_the_history_bind_pods():
    outcomes = Counter(
        msgspec.json.decode(record.payload or b"")["outcome"] for record in history().recording.of("DECISIONS")
    )
    assert outcomes[Outcome.BOUND] > 10
