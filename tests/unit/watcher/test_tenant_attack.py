"""The attack of `make bench-tenant` on the watcher's core, counted in pods: how many go before another's."""

from __future__ import annotations

import msgspec

from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from berth.messages.attempts import Outcome, Positions
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

WINDOW = 8
ROUNDS = 40


def noisy(name: str, **form: object) -> Pod:
    pod = a_pod(name, age_seconds=60, **form)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace="noisy"))


def with_terms(pod: Pod, number: int) -> Pod:
    terms = [PodAffinityTerm(topology_key=f"zone-{each}") for each in range(number)]
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=terms)
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, affinity=Affinity(pod_anti_affinity=anti))
    )


class Attack:
    """A cluster that is full of one tenant's pods, and has thousands more of them waiting."""

    def __init__(self) -> None:
        self.watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=WINDOW))
        self.watcher.lead(a_node("n1"), *(noisy(f"noisy-{number}") for number in range(2000)))
        self.decided = 0

    def decide_next(self) -> str:
        """The pod that has been in flight for longest: another's is bound, the noisy tenant's fits nowhere."""
        watcher = self.watcher
        name = watcher.pods_published[self.decided]
        self.decided += 1
        if name.startswith("quiet"):
            watcher.decide(name, Outcome.BOUND)
        else:
            seen = Positions(cluster=watcher.sequence)
            watcher.decide(name, Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=seen)
        return name


def test_another_tenants_pod_waits_for_the_window_and_one_turn_only():
    attack = Attack()
    waits = []
    for number in range(ROUNDS):
        gone = noisy(f"gone-{number}", node="n1")
        attack.watcher.show(gone, noisy(f"new-{number}"))
        attack.watcher.delete(gone)  # free resources, for which the waiting pods are requeued
        attack.watcher.show(a_pod(f"quiet-{number}", age_seconds=-number))
        before, in_flight = attack.decided, len(attack.watcher.published) - attack.decided
        while attack.decide_next() != f"quiet-{number}":
            pass
        waits.append(attack.decided - before - in_flight)
        attack.watcher.advance(0.3)
    assert max(waits) <= 2


def test_pod_with_ten_thousand_terms_takes_one_place_and_none_of_its_terms_is_published():
    attack = Attack()
    attack.watcher.show(with_terms(noisy("huge"), 10_000))
    for _ in range(2100):
        if attack.decide_next() == "huge":
            break
    [huge] = [each.message for each in attack.watcher.published if each.message.pod.metadata.name == "huge"]
    assert "10000 pod affinity and anti-affinity terms (at most 256)" in huge.error
    assert len(msgspec.json.encode(huge)) < 1000
