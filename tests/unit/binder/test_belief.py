"""The bus carries proposals, never authority: the pod is the cache's or the API's (docs/protocol.md, 5)."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.pod import Toleration
from berth.messages.attempts import Outcome, Reason
from berth_binder.events import RejectRanked
from harness.worlds.binder_bench import Bench, at_version, labelled, make_pod, posts, ranked, reads


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_pod_that_the_watch_has_not_shown_is_waited_for_and_bound_as_shown(bench):
    pod = make_pod("web", version=30)
    assert bench.take(ranked(pod, "n1")) == []
    assert bench.core.due() == bench.now + 0.1
    bench.show(pod)
    assert bench.core.due() == bench.now + 0.1
    assert posts(bench.tell_of_shown()) == [("web", "n1", "30")]
    assert bench.core.due() is None


def test_pod_whose_end_the_watch_shows_is_not_waited_for_any_longer(bench):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    bench.delete(pod, version=31)
    bench.tell_of_shown()
    assert bench.outcomes == ["gone"]


def test_other_pods_that_the_watch_shows_end_no_wait(bench):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    bench.show(make_pod("other", uid="other", version=29))
    assert bench.tell_of_shown() == []
    assert bench.core.due() == bench.now + 0.1


def test_pod_is_notified_of_once_and_not_after_its_wait(bench):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    bench.wait(0.1)
    bench.show(pod)
    assert bench.shown == []
    bench.reading(pod, pod)
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]


def test_pod_that_the_watch_does_not_show_in_time_is_read(bench):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    assert reads(bench.wait(0.1)) == ["web"]
    assert posts(bench.reading(pod, at_version(pod, 31))) == [("web", "n1", "31")]
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (None, "gone"),
        (make_pod("web", uid="another"), "gone"),
        (make_pod("web", version=31, node="n2"), "gone"),
        (make_pod("web", version=31, node="n1"), "bound"),
        (labelled(make_pod("web"), 31), "conflict"),
    ],
)
def test_what_the_api_shows_of_an_unknown_pod_decides(bench, found, outcome):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    bench.wait(0.1)
    assert posts(bench.reading(pod, found)) == []
    assert bench.outcomes == [outcome]


def test_unknown_pod_is_read_again_when_the_api_does_not_answer(bench):
    pod = make_pod("web", version=30)
    bench.take(ranked(pod, "n1"))
    bench.wait(0.1)
    bench.reading(pod, None, status=503)
    assert reads(bench.wait(1)) == ["web"]
    assert posts(bench.reading(pod, pod)) == [("web", "n1", "30")]


def test_pods_behind_an_unknown_one_are_bound(bench):
    bench.take(ranked(make_pod("unknown", version=30), "n1"))
    other = bench.show(make_pod("other"))
    assert posts(bench.take(ranked(other, "n2"))) == [("other", "n2", "10")]


def test_newer_message_about_a_pod_that_has_changed_is_no_authority(bench):
    pod = bench.show(make_pod("web", version=10))
    bench.take(ranked(labelled(pod, 16), "n1"))
    assert reads(bench.wait(0.1)) == ["web"]
    assert posts(bench.reading(pod, pod)) == []
    assert [(each.outcome, each.reason) for each in bench.decisions] == [(Outcome.CONFLICT, Reason.CHANGED)]


def test_newer_version_without_a_change_is_posted_as_the_watch_has_it(bench):
    pod = bench.show(make_pod("web", version=10))
    assert posts(bench.take(ranked(at_version(pod, 16), "n1"))) == [("web", "n1", "10")]


def test_version_of_5000_digits_is_none(bench):
    pod = make_pod("web")
    metadata = msgspec.structs.replace(pod.metadata, resource_version="9" * 5000)
    bench.take(ranked(msgspec.structs.replace(pod, metadata=metadata), "n1"))
    assert bench.outcomes == ["gone"]


def test_profile_is_the_one_that_the_pod_names(bench):
    pod = bench.show(make_pod("web", spec={"scheduler_name": "other"}))
    claimed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduler_name="berth"))
    effects = bench.take(ranked(claimed, "n1"))
    assert [type(each) for each in effects] == [RejectRanked]
    assert "other" in effects[0].reason
    assert list(bench.core.held()) == []


def test_message_whose_profile_is_not_its_pods_is_rejected(bench):
    pod = bench.show(make_pod("web", spec={"scheduler_name": "other"}))
    assert [type(each) for each in bench.take(ranked(pod, "n1"))] == [RejectRanked]


def test_pod_of_which_a_cycle_cannot_take_so_much_is_an_error_whatever_the_message_says(bench):
    huge = make_pod("huge", spec={"tolerations": [Toleration()] * 1001})
    bench.show(huge)
    assert posts(bench.take(ranked(huge, "n1"))) == []
    [decision] = bench.decisions
    assert decision.outcome is Outcome.ERROR
    assert "1001 tolerations (at most 1000)" in decision.message
