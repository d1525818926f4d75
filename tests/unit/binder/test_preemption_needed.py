"""No needless eviction: before the first one the binder makes sure that one scheduler with full knowledge would evict.

The rule: docs/protocol.md, 5, *Preempts*.
"""

from __future__ import annotations

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.pod import Pod
from berth.messages.attempts import Outcome, Preemption, Ranked, Reason, Victim
from berth_binder.events import Effect, EvictPods, NodesAnswered
from harness.worlds.binder_bench import Bench, at_version, gated, labelled, make_pod, on_node, ranked, reads

FRESH = {"evaluated": 2, "view_age_seconds": 1.0}


@pytest.fixture
def bench() -> Bench:
    """Two nodes, each filled by one pod of low priority. The API server answers only when the test does."""
    bench = Bench(nodes=2, cpu="2", reads_preemptors=False)
    for node in ("n1", "n2"):
        bench.show(make_pod(f"low-{node}", cpu="2", node=node))
    return bench


def important(priority: int = 1000) -> Pod:
    return make_pod("vip", cpu="2", spec={"priority": priority})


def proposing(pod: Pod, node: str = "n1", **parts: object) -> Ranked:
    victim = Victim(uid=f"uid-low-{node}", namespace="default", name=f"low-{node}")
    return ranked(pod, preemption=Preemption(node=node, victims=[victim]), message="none fits", **{**FRESH, **parts})


def evicts(effects: list[Effect]) -> bool:
    return any(isinstance(each, EvictPods) for each in effects)


def conflict(bench: Bench) -> str:
    (decision,) = bench.decisions
    assert decision.outcome is Outcome.CONFLICT
    return decision.reason


# The view of the scorer.


def test_free_node_that_the_scorer_did_not_know_is_a_conflict_and_no_eviction(bench):
    bench.show_node("late", cpu="4")
    pod = bench.show(important())
    effects = bench.take(proposing(pod, evaluated=3))
    assert (evicts(effects), conflict(bench)) == (False, Reason.FITS)
    assert "late" in bench.decisions[0].message


def test_no_pod_is_evicted_before_extenders_have_refused_the_node_that_passes_the_filters(bench):
    bench.show_node("rejected", cpu="4")
    pod = bench.show(important())
    bench.profiles["berth"].extenders = (ExtenderConfiguration(url_prefix="", name="", filter_verb="filter"),)
    effects = bench.take(proposing(pod, evaluated=3))
    assert (reads(effects), bench.decisions) == (["vip"], [])
    assert not evicts(bench.reading(pod, pod))
    bench.handle(NodesAnswered(pod=pod, asked=frozenset({"rejected"})))
    assert evicts(bench.reading(pod, pod))


# The preemptor is read before the first eviction.


def test_preemptor_is_read_before_the_first_eviction(bench):
    pod = bench.show(important())
    effects = bench.take(proposing(pod))
    assert (reads(effects), evicts(effects)) == (["vip"], False)
    assert evicts(bench.reading(pod, pod))


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        pytest.param(lambda pod: None, Outcome.GONE, id="deleted"),
        pytest.param(lambda pod: make_pod("vip", uid="another", version=30), Outcome.GONE, id="namesake"),
        pytest.param(lambda pod: on_node(pod, "n2"), Outcome.GONE, id="bound"),
        pytest.param(
            lambda pod: make_pod("vip", version=30, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}),
            Outcome.GONE,
            id="going",
        ),
        pytest.param(lambda pod: labelled(pod, 30), Outcome.CONFLICT, id="changed"),
        pytest.param(lambda pod: at_version(gated(pod), 30), Outcome.CONFLICT, id="gated"),
    ],
)
def test_nothing_is_evicted_for_a_preemptor_that_is_not_as_ranked(bench, found, outcome):
    pod = bench.show(important())
    bench.take(proposing(pod))
    assert not evicts(bench.reading(pod, found(pod)))
    assert bench.outcomes == [outcome]


def test_reading_without_an_answer_is_repeated_before_the_eviction(bench):
    pod = bench.show(important())
    bench.take(proposing(pod))
    assert not evicts(bench.reading(pod, None, status=503))
    assert reads(bench.wait(1)) == ["vip"]
    assert evicts(bench.reading(pod, pod))


def test_node_that_became_free_during_the_reading_is_a_conflict(bench):
    pod = bench.show(important())
    bench.take(proposing(pod))
    bench.delete(make_pod("low-n2", cpu="2", node="n2"), 40)
    assert not evicts(bench.reading(pod, pod))
    assert conflict(bench) == Reason.FITS


# A message is a proposal.


def test_priority_of_the_message_counts_for_nothing(bench):
    real = bench.show(important(priority=0))
    forged = msgspec.structs.replace(real, spec=msgspec.structs.replace(real.spec, priority=10**6))
    forged = at_version(forged, 9_000)
    bench.take(proposing(forged))
    bench.wait(1)
    assert not evicts(bench.reading(real, real))
    assert not any(evicts([each]) for each in bench.effects)
    assert conflict(bench) == Reason.CHANGED
