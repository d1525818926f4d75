"""From whatever moment of a history a checkpoint is, what follows can be made again from it, and it keeps no more."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random

import pytest

from berth.api.pod import Pod
from berth.messages.attempts import Outcome, Ranked, Watermark, decode, encode_watermark, watermark_key
from berth.messages.subjects import Term
from berth_cli.recording.checkpoint import Checkpoint
from berth_cli.recording.file import Begun, Recorded, Recording, Source
from berth_cli.recording.replay import Replay, ReplayCounts
from harness.builders.objects import a_pod
from harness.builders.profiles import default_profile
from harness.plugins.long_runs import often
from harness.worlds.recorded_world import RecordedWorld, a_recording

STEPS = 300
BEFORE = "ranked before everything that counted then was recorded"
SOURCES: tuple[Source, ...] = ("PENDING", "RANKED", "DECISIONS", "cluster", "bandwidth")


def read_until(whole: Recording, random: Random, lag: float) -> tuple[Checkpoint, dict[Source, int]]:
    """A checkpoint at a moment of the history, of a recorder that reads each source at a pace of its own."""
    there = sorted((record for source in SOURCES for record in whole.of(source)), key=lambda record: record.time)
    moment = random.choice(there[len(there) // 4 : -len(there) // 4]).time
    checkpoint, positions = Checkpoint(), dict.fromkeys(SOURCES, 0)
    until = {source: moment - timedelta(seconds=random.random() * lag) for source in SOURCES}
    for record in there:
        if record.time <= until[record.source]:
            checkpoint.add(record)
            positions[record.source] = record.sequence
    return checkpoint, positions


def from_there(whole: Recording, checkpoint: Checkpoint, positions: dict[Source, int]) -> Recording:
    """The recording that begins with the checkpoint."""
    found = a_recording()
    found.begun = Begun(positions=positions)
    for record in checkpoint.records():
        found.messages.setdefault(record.source, []).append(record)
    for source in SOURCES:
        later = [record for record in whole.of(source) if record.sequence > positions[source]]
        found.messages.setdefault(source, []).extend(later)
    return found


def counts(recording: Recording) -> ReplayCounts:
    found = ReplayCounts()
    for one in Replay(recording, {"berth": default_profile()}, best=32).run():
        found.add(one)
    return found


@pytest.mark.parametrize("seed", range(often(4)))
@pytest.mark.parametrize("lag", [0.0, 0.5])
def test_what_follows_a_checkpoint_is_made_again_and_equal(seed: int, lag: float):
    world = RecordedWorld(seed, scorers=1 + seed % 3, lag=lag)
    world.run(STEPS)
    checkpoint, positions = read_until(world.recording, Random(seed), lag)
    found = counts(from_there(world.recording, checkpoint, positions))
    later = [
        decode(record.payload or b"", Ranked)
        for record in world.recording.of("RANKED")
        if record.sequence > positions["RANKED"]
    ]
    assert found.different == 0
    assert set(found.left_out) <= {BEFORE}
    assert found.equal.total() >= sum(message.positions.cluster >= positions["cluster"] for message in later) > 0


def test_sequences_rise_as_a_file_wants_them():
    world = RecordedWorld(3, lag=0.1)
    world.run(STEPS)
    checkpoint, _ = read_until(world.recording, Random(3), 0.1)
    for source in SOURCES:
        sequences = [record.sequence for record in checkpoint.records() if record.source == source]
        assert sequences == sorted(set(sequences))


def a_world() -> RecordedWorld:
    return RecordedWorld(1, scorers=1, nodes=2, lag=0.0, ever_away=False)


def kept(checkpoint: Checkpoint, *sources: Source) -> Counter[str]:
    return Counter(record.source for record in checkpoint.records() if record.source in sources)


def add_new(world: RecordedWorld, checkpoint: Checkpoint, seen: dict[Source, int]) -> None:
    for source in SOURCES:
        there = world.recording.of(source)
        for record in there[seen.get(source, 0) :]:
            checkpoint.add(record)
        seen[source] = len(there)


def wait(world: RecordedWorld, seconds: float, checkpoint: Checkpoint, seen: dict[Source, int]) -> None:
    """Time goes by, in which nothing but a node is mirrored."""
    world.seconds += seconds
    world.mirror("node.n0", None)
    add_new(world, checkpoint, seen)


def asked_for(world: RecordedWorld, checkpoint: Checkpoint, seen: dict[Source, int]) -> Pod:
    pod = a_pod("web", uid="5f0c9a4e-0000-4000-8000-000000000001")
    world.ask_for(pod, f"{pod.uid}.1.1")
    add_new(world, checkpoint, seen)
    return pod


STREAMS: tuple[Source, ...] = ("PENDING", "RANKED", "DECISIONS")


def test_a_pod_that_no_scorer_ranks_counts_for_an_hour():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    asked_for(world, checkpoint, seen)
    wait(world, 3599, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1}
    wait(world, 2, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {}


def test_a_ranked_pod_counts_for_as_long_as_its_proposal_may():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    asked_for(world, checkpoint, seen)
    world.read()
    world.rank()
    wait(world, 39, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1, "RANKED": 1}
    wait(world, 2, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {}


def test_a_pod_that_waits_to_be_bound_counts_from_the_last_word():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    asked_for(world, checkpoint, seen)
    world.read()
    world.rank()
    message = decode(world.recording.of("RANKED")[0].payload or b"", Ranked)
    for _ in range(5):
        wait(world, 30, checkpoint, seen)
        world._decided(message, Outcome.WAITING, node="n1")
        add_new(world, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1, "RANKED": 1, "DECISIONS": 1}


@pytest.mark.parametrize("complete", [True, False])
def test_a_bound_pod_counts_until_the_mirror_shows_it_or_is_complete_without_it(*, complete: bool):
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    pod = asked_for(world, checkpoint, seen)
    world.read()
    world.rank()
    world.decide()
    wait(world, 300, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1, "RANKED": 1, "DECISIONS": 1}
    if complete:
        world.publish("cluster", watermark_key("pod"), encode_watermark(Watermark(term=Term(1), resource_version="1")))
    else:
        world.mirror(f"pod.{pod.uid}", pod)
    add_new(world, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {}


def test_a_decision_on_an_earlier_attempt_ends_nothing():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    asked_for(world, checkpoint, seen)
    world.read()
    world.rank()
    message = decode(world.recording.of("RANKED")[0].payload or b"", Ranked)
    world._decided(message, Outcome.CONFLICT)
    late = world.recording.messages["DECISIONS"].pop()
    world.seconds += 1
    world.ask_for(message.pod, f"{message.pod.uid}.1.2")
    add_new(world, checkpoint, seen)
    checkpoint.add(late)
    wait(world, 60, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1}


def test_what_cannot_be_decoded_is_kept_for_a_while_and_ends_nothing():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    asked_for(world, checkpoint, seen)
    world.publish("DECISIONS", "berth.decision.berth.default.web", b"\xff")
    add_new(world, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1, "DECISIONS": 1}
    wait(world, 60, checkpoint, seen)
    assert kept(checkpoint, *STREAMS) == {"PENDING": 1}


def test_of_each_key_the_newest_value_is_kept_and_a_marker_as_long_as_nats_keeps_it():
    world, checkpoint, seen = a_world(), Checkpoint(), {}
    wait(world, 1, checkpoint, seen)
    assert [(one.subject, one.payload is None) for one in of_cluster(checkpoint)] == [
        ("node.n1", False),
        ("node.n0", True),
    ]
    world.seconds += 3601
    world.mirror("node.n2", {"metadata": {"name": "n2"}})
    add_new(world, checkpoint, seen)
    assert [one.subject for one in of_cluster(checkpoint)] == ["node.n1", "node.n2"]


def of_cluster(checkpoint: Checkpoint) -> list[Recorded]:
    return [record for record in checkpoint.records() if record.source == "cluster"]
