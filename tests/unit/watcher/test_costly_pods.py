"""Pods that have more than a scheduling cycle can take, and pods that take long: they cost their owners, not others."""

from __future__ import annotations

import msgspec

from berth.api.meta import LabelSelector
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, Toleration
from berth.api.trimming import with_whole
from berth.messages.attempts import Decision, Outcome
from berth_watcher.events import FoundDecision, FoundInFlight, StreamsRead, Warn
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_pod, attempt


def with_terms(pod: Pod, number: int) -> Pod:
    terms = [
        PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": f"app-{each}"}))
        for each in range(number)
    ]
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=terms)
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, affinity=Affinity(pod_anti_affinity=anti))
    )


def with_tolerations(pod: Pod, number: int) -> Pod:
    spec = msgspec.structs.replace(pod.spec, tolerations=[Toleration(operator="Exists")] * number)
    return msgspec.structs.replace(pod, spec=spec)


def test_pod_with_too_many_terms_is_refused_by_name_before_it_reaches_the_bus():
    watcher = WatcherUnderTest().lead()

    watcher.show(with_terms(a_pod("huge"), 12_000), a_pod("other"))

    huge, other = (each.message for each in watcher.published)
    assert huge.error.startswith(
        "the pod has more than a scheduling cycle can take: 12000 pod affinity and anti-affinity terms (at most 256), "
        "12000 requirements of pod label selectors (at most 1000), "
    )
    assert len(msgspec.json.encode(huge)) < 1000
    assert (huge.pod.uid, huge.pod.metadata.name, huge.pod.spec.scheduler_name) == ("uid-huge", "huge", "berth")
    assert (other.error, other.pod.spec.containers is not None) == ("", True)


def decided(name: str, outcome: Outcome) -> Decision:
    return Decision(
        attempt=str(attempt(name, 6, 1)),
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=name,
        uid=f"uid-{name}",
    )


def with_labels(pod: Pod, number: int) -> Pod:
    labels = {f"label-{each}": "x" * 50 for each in range(number)}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


def test_pod_of_too_many_bytes_is_refused_by_name_and_tried_again_after_five_minutes():
    watcher = WatcherUnderTest().lead(with_labels(a_pod("huge"), 2000))
    [huge] = (each.message for each in watcher.published)
    assert "bytes (at most 65536)" in huge.error
    assert len(msgspec.json.encode(huge)) < 1000
    watcher.decide("huge", Outcome.ERROR)
    watcher.advance(200)
    assert watcher.pods_published == ["huge"]
    watcher.advance(101)
    assert watcher.pods_published == ["huge", "huge"]


def test_pod_of_too_many_bytes_that_waits_for_a_volume_leaves_ranked_after_a_takeover():
    """Its message is of a watcher that had no such limit: the next attempt replaces it."""
    huge = with_labels(a_pod("huge"), 2000)
    in_flight = {"uid-huge": FoundInFlight(attempt=attempt("huge", 6, 1), pod=huge)}
    waiting = FoundDecision(decision=decided("huge", Outcome.WAITING), time=EPOCH, age_seconds=0.0)
    watcher = WatcherUnderTest().lead(huge, streams=StreamsRead(in_flight=in_flight, decisions={"uid-huge": waiting}))
    assert ["bytes (at most 65536)" in each.message.error for each in watcher.published] == [True]


def test_few_whole_pods_that_are_large_are_in_flight_at_once():
    """PENDING has them whole for extenders, and has room for the pods of all profiles only when these are few."""
    large = [with_whole(a_pod(f"large-{each}"), b'{"env":"' + b"x" * 1_400_000 + b'"}') for each in range(50)]
    watcher = WatcherUnderTest().lead(*large)
    assert len(watcher.published) == 3
    watcher.decide(watcher.pods_published[0], Outcome.BOUND)
    assert len(watcher.published) == 4


def test_refused_pod_is_tried_again_after_five_minutes_or_when_it_changes():
    watcher = WatcherUnderTest().lead(with_terms(a_pod("huge"), 300))
    watcher.decide("huge", Outcome.ERROR)
    watcher.advance(200)
    assert watcher.pods_published == ["huge"]
    watcher.advance(101)
    assert watcher.pods_published == ["huge", "huge"]
    watcher.decide("huge", Outcome.ERROR)
    watcher.show(with_terms(a_pod("huge", version=2), 256))
    watcher.advance(10)
    assert [each.message.error != "" for each in watcher.published] == [True, True, False]


def test_pod_that_gets_too_much_while_it_is_in_flight_is_refused():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.show(with_tolerations(a_pod("web", version=2), 1001))
    assert "1001 tolerations (at most 1000)" in watcher.published[-1].message.error


def test_affinity_of_a_bound_pod_above_the_limits_is_left_out_of_the_mirror_and_said_once():
    watcher = WatcherUnderTest().lead()
    fine, huge = (with_terms(a_pod(name, node="n1"), number) for name, number in (("fine", 256), ("huge", 257)))
    watcher.show(fine, huge)
    assert "affinity" in watcher.mirrored("pod.uid-fine")["spec"]
    assert "affinity" not in watcher.mirrored("pod.uid-huge")["spec"]
    [warning] = watcher.of(Warn)
    assert warning.fields["pod"] == "default/huge"
    assert "257 pod affinity" in warning.fields["reason"]

    watcher.show(with_terms(a_pod("huge", node="n1", version=2), 257))
    assert len(watcher.of(Warn)) == 1


def test_nothing_is_said_of_a_pod_that_is_on_no_node_any_more():
    nominated = with_terms(a_pod("huge", nominated="n1"), 257)
    watcher = WatcherUnderTest().lead(nominated)
    warned = len(watcher.of(Warn))
    watcher.show(with_terms(a_pod("huge", version=2), 257))
    assert watcher.mirrored("pod.uid-huge") is None
    assert len(watcher.of(Warn)) == warned


def test_few_pods_that_take_long_are_in_flight_at_once():
    costly = [with_terms(a_pod(f"costly-{number}", age_seconds=60), 200 + number % 50) for number in range(50)]
    watcher = WatcherUnderTest().lead(*costly)
    assert len(watcher.published) == 3

    watcher.decide(watcher.pods_published[0], Outcome.BOUND)
    assert len(watcher.published) == 4
    assert watcher.core.figures(watcher.now).in_flight["berth"] <= 64 + 25
