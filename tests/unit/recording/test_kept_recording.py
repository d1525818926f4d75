"""A recording of an earlier berth is still made again, and equal: with its names, and without."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from berth.bus.topology import CLUSTER, DECISIONS, RANKED
from berth.messages.attempts import Decision, Outcome, Ranked
from berth.profiles.configuration import profiles_of
from berth_cli.recording.anonymised import Anonymiser
from berth_cli.recording.configuration import configuration_of
from berth_cli.recording.file import Recording, read_recording
from berth_cli.recording.history import decoded
from berth_cli.recording.replay import Replay, ReplayCounts

FILE = Path(__file__).parents[2] / "data/recordings/preemption-and-volumes.berth"
RANKINGS = 95
MOST_BYTES = 100_000


@pytest.fixture
def kept() -> Recording:
    return read_recording(FILE)


def counts(recording: Recording) -> ReplayCounts:
    found = ReplayCounts()
    for one in Replay(recording, profiles_of(configuration_of(recording.header, "it")), best=32).run():
        assert one.differences == ()
        found.add(one)
    return found


def test_every_ranking_is_equal(kept: Recording):
    found = counts(kept)
    assert (found.different, found.left_out) == (0, Counter())
    assert found.equal.total() == len(kept.of(RANKED)) == RANKINGS
    assert len(found.equal) == 2
    assert min(found.equal.values()) > RANKINGS / 4


def test_every_ranking_is_equal_without_names(kept: Recording):
    anonymiser = Anonymiser(configuration_of(kept.header, "it"))
    kept.messages = {source: list(map(anonymiser.of, there)) for source, there in kept.messages.items()}
    kept.header = anonymiser.header(kept.header)
    found = counts(kept)
    assert (found.different, found.left_out) == (0, Counter())
    assert found.equal.total() == RANKINGS
    assert set(found.equal) == {"scorer-1", "scorer-2"}


def test_it_has_preemption_volumes_affinity_and_spread_and_is_small(kept: Recording):
    """Else the tests above would prove less than they say."""
    decisions = [decision for _, decision in decoded(kept, DECISIONS, Decision)]
    assert {each.outcome for each in decisions} >= {Outcome.BOUND, Outcome.PREEMPTING, Outcome.UNSCHEDULABLE}
    assert any(each.preemption and each.preemption.victims for each in decisions)
    specs = [ranked.pod.spec for _, ranked in decoded(kept, RANKED, Ranked)]
    assert any(spec.affinity is not None and spec.topology_spread_constraints for spec in specs)
    assert any(b'"volumeName":"made-' in (record.payload or b"") for record in kept.of(CLUSTER))
    assert not kept.is_cut
    assert FILE.stat().st_size < MOST_BYTES
