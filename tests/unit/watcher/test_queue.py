"""Pods go by priority, then age, into the window; and which pods are not queued at all."""

from berth.kube.listwatch import Deleted
from berth.messages.attempts import Outcome, Positions
from berth_watcher.queue import schedulingqueue
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

ONE_PLACE = AttemptSettings(window_floor=1)


def test_higher_priority_goes_first_then_age():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    watcher.show(a_pod("old", age_seconds=100), a_pod("young"), a_pod("urgent", priority=1000))

    for name in ("running", "urgent", "old"):
        watcher.decide(name, Outcome.BOUND)

    assert watcher.pods_published == ["running", "urgent", "old", "young"]


def test_window_limits_pods_in_flight():
    watcher = WatcherUnderTest().lead(*(a_pod(f"p{n}") for n in range(100)))

    assert len(watcher.published) == 64
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 64}
    assert watcher.core.figures(watcher.now).pending["active"] == 36


def test_window_grows_to_a_quarter_of_the_last_seconds_decisions():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(*(a_pod(f"p{n}") for n in range(100)))
    for _ in range(40):
        watcher.decide(watcher.pods_published[-1], Outcome.BOUND)
    assert watcher.core.figures(watcher.now).window_size == {"berth": 10}

    watcher.advance(1)

    assert watcher.core.figures(watcher.now).window_size == {"berth": 1}


def test_waiting_frees_the_slot():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("first", age_seconds=5), a_pod("second"))

    watcher.decide("first", Outcome.WAITING)

    assert watcher.pods_published == ["first", "second"]
    assert watcher.stage("first") == "in flight"


def test_pods_of_others_bound_deleted_and_finished_pods_are_ignored():
    watcher = WatcherUnderTest().lead(
        a_node("n1"),
        a_pod("other", scheduler="default-scheduler"),
        a_pod("bound", node="n1"),
        a_pod("terminating", deleted=True),
        a_pod("done", phase="Succeeded"),
    )

    assert watcher.published == []


def test_ungated_pod_is_queued_by_its_age():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    watcher.show(a_pod("gated", gates=("example.com/quota",), age_seconds=60), a_pod("young"))
    assert watcher.core.figures(watcher.now).pending["gated"] == 1

    watcher.show(a_pod("gated", age_seconds=60, version=2))
    watcher.decide("running", Outcome.BOUND)

    assert watcher.pods_published == ["running", "gated"]


def test_pod_deleted_while_queued_is_not_published():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    watcher.show(a_pod("waiting"))

    watcher.delete(a_pod("waiting", version=2))
    watcher.decide("running", Outcome.BOUND)

    assert watcher.pods_published == ["running"]


def test_attempt_is_uid_term_and_number():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    assert watcher.attempt_of("web") == "uid-web.7.1"
    assert watcher.published[0].message.pod == a_pod("web")


def test_timers_of_former_stages_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(schedulingqueue, "MIN_COMPACTED", 16)
    watcher = WatcherUnderTest().lead(a_node("n1"), *(a_pod(f"p{n}") for n in range(20)))
    for cpu in range(25):
        for n in range(20):
            seen = Positions(cluster=watcher.sequence)
            watcher.decide(f"p{n}", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit"], positions=seen)
        watcher.advance(11)
        watcher.show(a_node("n1", cpu=str(cpu + 5), version=cpu + 2))

    assert len(watcher.published) == 20 * 26
    assert len(watcher.core._queue._timers) <= 3 * 20 + 16  # without: 500
    assert watcher.core.due() > watcher.now


def test_pods_that_come_and_go_while_the_window_is_full_leave_nothing_behind():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))

    for start in range(0, 2000, 100):
        pods = [a_pod(f"p{number}") for number in range(start, start + 100)]
        watcher.show(*pods)
        watcher.send(*(Deleted(kind="pod", object=pod) for pod in pods))

    assert watcher.core.queue_entries <= 1300
    watcher.show(a_pod("next"))
    watcher.decide("running", Outcome.BOUND)
    assert watcher.pods_published == ["running", "next"]
