"""Pods that an extender binds: its failures, and a slow one beside the Bindings of other pods."""

from __future__ import annotations

import msgspec

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.pod import Container, Pod, ResourceRequirements
from berth.messages.attempts import Outcome
from berth_binder.events import Effect, PostBinding
from berth_binder.settings import CoreSettings
from harness.worlds.binder_bench import BACKOFF, Bench, make_pod, posts, ranked, reads

GPU = "example.com/gpu"
FAILED = 424


def of_the_extender(name: str) -> Pod:
    pod = make_pod(name)
    limited = Container(name="c", resources=ResourceRequirements(requests={"cpu": "1"}, limits={GPU: "1"}))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[limited]))


def extended(bench: Bench) -> Bench:
    binder = ExtenderConfiguration(
        url_prefix="http://x", name="http://x", bind_verb="bind", managed_resources=frozenset({GPU})
    )
    bench.profiles["berth"].extenders = (binder,)
    return bench


def by_extender(effects: list[Effect]) -> list[bool]:
    return [effect.by_extender for effect in effects if isinstance(effect, PostBinding)]


def test_only_pods_of_the_extender_are_bound_by_it():
    bench = extended(Bench())
    assert by_extender(bench.take(ranked(bench.show(of_the_extender("gpu")), "n1"))) == [True]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web")), "n1"))) == [False]


def test_pods_at_a_slow_extender_hold_up_no_binding():
    bench = extended(Bench(nodes=5, settings=CoreSettings(max_in_flight=1, backoff=BACKOFF)))
    for number in range(3):
        effects = bench.take(ranked(bench.show(of_the_extender(f"gpu-{number}")), "n1"))
        assert by_extender(effects) == [True]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web-0")), "n2"))) == [False]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web-1")), "n3"))) == []  # the one place is taken
    assert bench.core.in_flight == 4


def test_a_place_is_free_again_only_when_its_own_request_is_answered():
    bench = extended(Bench(settings=CoreSettings(max_in_flight=1, backoff=BACKOFF)))
    slow = bench.show(of_the_extender("gpu"))
    bench.take(ranked(slow, "n1"))
    bench.take(ranked(bench.show(make_pod("web-0")), "n2"))
    assert posts(bench.answer(slow, 201)) == []
    assert posts(bench.take(ranked(bench.show(make_pod("web-1")), "n3"))) == []


def test_what_the_extender_says_is_the_pods_error_and_its_node_is_free():
    bench = extended(Bench(nodes=1, cpu="1"))
    pod = bench.show(of_the_extender("gpu"))
    bench.take(ranked(pod, "n1"))
    effects = bench.answer(pod, FAILED, failure="the device is gone")
    assert reads(effects) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message) == (Outcome.ERROR, "the device is gone")
    assert len(bench.cache.assumed_pods) == 0


def test_an_api_server_that_does_not_show_the_pod_is_asked_again():
    bench = extended(Bench())
    pod = bench.show(of_the_extender("gpu"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 0)
    assert bench.decisions == []
    assert reads(bench.wait(10)) == ["gpu"]
