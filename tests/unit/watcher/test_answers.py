"""What the leading watcher answers about its queue: pages, one pod in full, and pods that a person has tried again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from berth.messages.attempts import Outcome, Positions
from berth.messages.queue import Helping, PageRequest, PodRequest, QueueAnswer, QueuedPodDetail
from berth.messages.subjects import Uid
from berth_watcher.events import DrainRead, RetryRequested
from berth_watcher.queue.answers import MESSAGE_CHARACTERS, PODS_ON_A_PAGE
from berth_watcher.service import endpoints
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

FIT = ["NodeResourcesFit"]


def page(watcher: WatcherUnderTest, **request) -> QueueAnswer:
    return watcher.core.answers.page(PageRequest(**request), watcher.now)


def detail(watcher: WatcherUnderTest, name: str = "web") -> QueuedPodDetail:
    found = watcher.core.answers.pod(PodRequest(namespace="default", name=name), watcher.now).detail
    assert found is not None
    return found


def rejected(watcher: WatcherUnderTest, name: str = "web", message: str = "no room") -> None:
    positions = Positions(cluster=watcher.sequence)
    watcher.decide(name, Outcome.UNSCHEDULABLE, positions=positions, blockers=FIT, message=message)


def test_what_a_standby_answers_counts_as_an_error_of_its_endpoint():
    standby = SimpleNamespace(answers={})
    for endpoint in endpoints(standby):
        assert "does not lead" in endpoint.error_of(endpoint.answer(b""))
        assert endpoint.error_of(QueueAnswer()) == ""


def with_one_of_each() -> WatcherUnderTest:
    """A window of 64 pods, and one pod more; one unschedulable, one in back-off, one gated."""
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("bad"), a_pod("gated", gates=("quota",)))
    rejected(watcher)
    watcher.decide("bad", Outcome.ERROR, message="a plugin failed")
    watcher.show(*(a_pod(f"busy-{number}") for number in range(65)))
    return watcher


def test_each_pod_is_in_its_queue_with_its_reason():
    answer = page(with_one_of_each())
    waiting = {one.name: one for one in answer.pods if not one.name.startswith("busy")}
    assert answer.queues == {"active": 1, "backoff": 1, "unschedulable": 1, "gated": 1, "with group": 0}
    assert (waiting["web"].queue, waiting["web"].plugins, waiting["web"].message) == ("unschedulable", FIT, "no room")
    assert (waiting["bad"].queue, waiting["bad"].message) == ("backoff", "a plugin failed")
    assert (waiting["gated"].queue, waiting["gated"].plugins) == ("gated", ["SchedulingGates"])
    assert sorted(one.queue for one in answer.pods if one.name.startswith("busy")) == ["active", *["in flight"] * 64]


def test_time_until_it_is_tried_again_counts_down():
    watcher = with_one_of_each()
    assert detail(watcher, "bad").pod.tried_again_seconds == 1.0
    assert detail(watcher).pod.tried_again_seconds == 300.0
    assert detail(watcher, "gated").pod.tried_again_seconds is None
    watcher.advance(100)
    assert detail(watcher).pod.tried_again_seconds == 200.0


def test_a_pod_waits_since_its_creation_however_often_it_was_tried():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    before = detail(watcher).pod.since
    watcher.advance(60)
    rejected(watcher)
    assert detail(watcher).pod.since == before


def test_one_pod_is_answered_with_what_it_asks_for_unless_it_is_too_large():
    gates = tuple(f"example.com/{'long' * 60}-{number}" for number in range(200))
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("large", gates=gates))
    pod = detail(watcher).object
    assert pod is not None
    assert pod.metadata.name == "web"
    assert detail(watcher, "large").object is None


def test_pods_of_one_queue_and_namespace_are_answered_alone():
    watcher = with_one_of_each()
    assert [one.name for one in page(watcher, queue="gated").pods] == ["gated"]
    assert page(watcher, namespace="shop").pods == []
    assert [one.name for one in page(watcher, queue="backoff", namespace="default").pods] == ["bad"]


def test_pages_together_have_every_pod_once():
    names = {f"web-{number}" for number in range(2 * PODS_ON_A_PAGE + 50)}
    watcher = WatcherUnderTest().lead(*map(a_pod, names))
    pages, start = [], 0
    while start is not None:
        pages.append(page(watcher, start=start))
        start = pages[-1].next
    assert [len(one.pods) for one in pages] == [100, 100, 50]
    assert {pod.name for one in pages for pod in one.pods} == names


def test_page_that_finds_nothing_says_where_the_next_one_starts():
    watcher = WatcherUnderTest().lead(*(a_pod(f"web-{number}") for number in range(2500)))
    first = page(watcher, namespace="shop")
    assert (first.pods, first.next) == ([], 2000)
    assert page(watcher, namespace="shop", start=2000).next is None


def test_message_is_cut_on_a_page_and_whole_for_one_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher, message="x" * 2 * MESSAGE_CHARACTERS)
    assert len(page(watcher).pods[0].message) == MESSAGE_CHARACTERS
    assert len(detail(watcher).pod.message) == 2 * MESSAGE_CHARACTERS


def test_unschedulable_pod_names_the_events_that_its_plugins_wait_for():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    rejected(watcher)
    (helping,) = detail(watcher).helping
    assert helping.plugin == "NodeResourcesFit"
    assert {"AssignedPodDelete", "NodeAdd", "NodeUpdateNodeAllocatable"} <= set(helping.events)
    assert "NodeAdd" in helping.hinted


def test_preemptor_waits_for_its_victims():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    positions = Positions(cluster=watcher.sequence)
    watcher.decide("web", Outcome.PREEMPTING, positions=positions, blockers=FIT, node="n1")
    found = detail(watcher)
    assert (found.outcome, found.node, found.helping[0].events) == ("preempting", "n1", ["AssignedPodDelete"])


def test_pod_that_no_plugin_rejected_waits_for_any_event():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=Positions(cluster=watcher.sequence))
    found = detail(watcher)
    assert (found.pod.queue, found.helping) == ("unschedulable", [Helping(plugin="", events=[])])


def test_pod_after_an_error_waits_for_its_timer():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.ERROR)
    found = detail(watcher)
    assert (found.pod.queue, found.helping, found.failures) == ("backoff", [], 1)


def test_unknown_pod_has_no_detail():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    assert watcher.core.answers.pod(PodRequest(namespace="shop", name="web"), watcher.now).detail is None


def test_pod_that_replaces_one_of_its_name_is_the_one_that_is_found():
    watcher = WatcherUnderTest().lead(a_pod("web", uid="old"))
    watcher.show(a_pod("web", uid="new", version=2))
    watcher.delete(a_pod("web", uid="old"))
    assert detail(watcher).pod.uid == "new"
    watcher.delete(a_pod("web", uid="new"))
    assert watcher.core.answers.pod(PodRequest(namespace="default", name="web"), watcher.now).detail is None
    watcher.show(a_pod("web", uid="third", version=3))
    assert detail(watcher).pod.uid == "third"


@pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.UNSCHEDULABLE])
def test_pod_that_a_person_has_tried_again_goes_at_once_and_its_failures_are_forgotten(outcome):
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", outcome, positions=Positions(cluster=watcher.sequence), blockers=FIT)
    assert len(watcher.published) == 1
    watcher.send(RetryRequested(uid=Uid(a_pod("web").uid)))
    assert len(watcher.published) == 2
    assert watcher.published[-1].message.failures == 0
    assert dict(watcher.core.figures(watcher.now).incoming)["active", "ForceActivate"] == 1


def test_gated_pod_stays_gated_when_a_person_has_it_tried_again():
    watcher = WatcherUnderTest().lead(a_pod("web", gates=("quota",)))
    watcher.send(RetryRequested(uid=Uid(a_pod("web").uid)))
    assert watcher.published == []
    assert detail(watcher).pod.queue == "gated"


def test_no_pod_is_published_while_the_pipeline_is_drained():
    watcher = WatcherUnderTest().lead()
    watcher.send(DrainRead(is_draining=True, sequence=5))
    watcher.show(a_pod("web"))
    assert watcher.published == []
    assert page(watcher).draining
    assert watcher.core.waiting == 0  # it is no stall
    watcher.send(DrainRead(is_draining=False, sequence=6))
    assert len(watcher.published) == 1


def test_back_offs_do_not_end_early_while_the_pipeline_is_drained():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.send(DrainRead(is_draining=True, sequence=5))
    watcher.show(a_node("n1"))
    assert len(watcher.published) == 1
    watcher.advance(20)
    assert (len(watcher.published), detail(watcher).pod.queue) == (1, "active")


def test_of_two_reads_of_the_key_the_later_sequence_counts():
    watcher = WatcherUnderTest().lead()
    watcher.send(DrainRead(is_draining=False, sequence=6))
    watcher.send(DrainRead(is_draining=True, sequence=5))
    watcher.show(a_pod("web"))
    assert len(watcher.published) == 1
