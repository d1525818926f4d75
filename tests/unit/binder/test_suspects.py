"""Pods that a binder left when it ended are counted before they go on: one of them may be what ended it."""

from __future__ import annotations

import pytest

from berth.api.pod import Pod
from berth_binder.events import ClearTries, CountTry, Effect, PublishDecision, SetAside, TryCounted
from harness.worlds.binder_bench import Bench, make_pod, posts, ranked, reads


@pytest.fixture
def bench() -> Bench:
    return Bench(cpu="100")


def counts(effects: list[Effect]) -> list[str]:
    return [each.uid for each in effects if isinstance(each, CountTry)]


def cleared(effects: list[Effect]) -> list[str]:
    return [each.uid for each in effects if isinstance(each, ClearTries)]


def left_by_former(bench: Bench, *names: str) -> list[Pod]:
    """Pods whose messages a former binder has left."""
    pods = [bench.show(make_pod(name)) for name in names]
    for pod in pods:
        bench.take(ranked(pod, "n1"), is_suspect=True)
    return pods


def counted(bench: Bench, pod: Pod, tries: int = 1) -> list[Effect]:
    return bench.handle(TryCounted(uid=pod.uid, tries=tries))


def test_other_pods_are_not_counted(bench):
    pod = bench.show(make_pod("web"))
    effects = bench.take(ranked(pod, "n1"))
    assert posts(effects) == [("web", "n1", "10")]
    assert counts(effects) == []
    assert cleared(bench.answer(pod, 201)) == []


def test_suspect_is_begun_once_it_is_counted_and_the_count_goes_with_its_decision(bench):
    web = bench.show(make_pod("web"))
    effects = bench.take(ranked(web, "n1"), is_suspect=True)
    assert (counts(effects), posts(effects)) == (["uid-web"], [])
    assert bench.core.due() is None
    effects = counted(bench, web)
    assert (posts(effects), cleared(effects)) == ([("web", "n1", "10")], [])
    assert cleared(bench.answer(web, 201)) == ["uid-web"]
    assert bench.outcomes == ["bound"]


def test_nothing_is_begun_while_one_is_being_counted_but_several_may_be_under_way(bench):
    one, two = left_by_former(bench, "one", "two")
    new = bench.show(make_pod("new"))
    assert posts(bench.take(ranked(new, "n1"))) == []
    effects = counted(bench, one)
    assert (posts(effects), counts(effects)) == ([("one", "n1", "10")], ["uid-two"])
    effects = counted(bench, two)
    assert posts(effects) == [("two", "n1", "10"), ("new", "n1", "10")]


def test_pod_that_was_under_way_at_an_end_before_goes_on_alone(bench):
    one, two, three = left_by_former(bench, "one", "two", "three")
    assert posts(counted(bench, one)) == [("one", "n1", "10")]
    assert posts(counted(bench, two, tries=2)) == []
    assert bench.core.due() is None
    effects = bench.answer(one, 201)
    assert (posts(effects), counts(effects)) == ([("two", "n1", "10")], [])
    effects = bench.answer(two, 201)
    assert counts(effects) == ["uid-three"]
    assert posts(counted(bench, three)) == [("three", "n1", "10")]


def test_pod_that_has_ended_three_binders_is_given_up_and_others_go_on(bench):
    bad, good = left_by_former(bench, "bad", "good")
    effects = counted(bench, bad, tries=4)
    assert [each.dead_letter for each in effects if isinstance(each, PublishDecision)] == [True]
    [decision] = bench.decisions
    assert (str(decision.outcome), decision.reason) == ("error", "tries")
    assert decision.message == "committing 'default/bad' ended 3 binders before this one"
    assert cleared(effects) == ["uid-bad"]
    assert counts(effects) == ["uid-good"]
    assert posts(counted(bench, good)) == [("good", "n1", "10")]


def test_pause_takes_the_count_back_and_going_on_counts_again(bench):
    [web] = left_by_former(bench, "web")
    counted(bench, web)
    effects = bench.no_answer(web)
    assert cleared(effects) == ["uid-web"]
    assert [each for each in effects if isinstance(each, SetAside)]
    assert counts(bench.wait(1)) == ["uid-web"]
    assert reads(counted(bench, web)) == ["web"]


def test_pod_that_the_watch_has_not_shown_is_read_at_once(bench):
    web = make_pod("web", version=30)
    bench.take(ranked(web, "n1"), is_suspect=True)
    assert reads(counted(bench, web, tries=2)) == ["web"]
    assert posts(bench.reading(web, web)) == [("web", "n1", "30")]


def test_message_of_another_profile_is_rejected_and_no_longer_counted(bench):
    web = bench.show(make_pod("web", spec={"scheduler_name": "other"}))
    bench.take(ranked(make_pod("web"), "n1"), is_suspect=True)
    assert cleared(counted(bench, web)) == ["uid-web"]


def test_count_that_arrives_after_the_end_of_leading_is_taken_back(bench):
    [web] = left_by_former(bench, "web")
    bench.core.close()
    effects = counted(bench, web)
    assert (posts(effects), cleared(effects)) == ([], ["uid-web"])


def test_count_that_nobody_waits_for_changes_nothing(bench):
    web = bench.show(make_pod("web"))
    assert counted(bench, web) == []
