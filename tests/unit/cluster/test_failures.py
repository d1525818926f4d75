"""The log of failures: which facts it writes, when, and what it forgets."""

from datetime import UTC, datetime, timedelta

from berth.cluster.failures import MOST_FAILURES, MOST_ON_A_NODE, NodeFailureLog
from berth.messages.encoding import encode
from berth.messages.livedata import FACT_BYTES
from harness.builders.objects import a_pod
from harness.builders.owners import failed, owned_by

NOW = 1_700_000_000.0
MINUTE, FIVE = timedelta(minutes=1), timedelta(minutes=5)


def a_log(*ends: timedelta) -> NodeFailureLog:
    log = NodeFailureLog(ends or (MINUTE, FIVE))
    log.begin()
    return log


def failure_of(owner: str, node: str = "n1", at: float = NOW, **more: str):
    return failed(owned_by(owner, a_pod(f"{owner}-1")), node, at, **more)


def ages(log: NodeFailureLog, now: float) -> dict[str, dict[str, float]]:
    """By node and workload, the ages in the facts that are written now."""
    return {
        node: {}
        if fact is None
        else {name: (fact.written_at - each.at).total_seconds() for name, each in fact.workloads.items()}
        for node, fact in log.take_due(now)
    }


def test_a_failure_is_written_at_once_then_at_each_end_and_removed_after_the_last():
    log, at = a_log(), []
    log.observe(failure_of("web"), NOW)
    now: float | None = NOW
    while now is not None:
        at += [(now - NOW, written) for written in [ages(log, now)]]
        now = log.next_due()
    assert at == [
        (0, {"n1": {"uid-of-web": 0}}),
        (60, {"n1": {"uid-of-web": 60}}),  # the end of a back-off
        (180, {"n1": {"uid-of-web": 180}}),  # 120 s later, because a fact ends 300 s after it was written
        (300, {"n1": {"uid-of-web": 300}}),  # the last end
        (420, {"n1": {}}),
    ]


def test_only_a_later_failure_is_news():
    log = a_log()
    log.observe(failure_of("web"), NOW)
    assert ages(log, NOW)
    for at in (NOW, NOW - 30):
        log.observe(failure_of("web", at=at), NOW + 2)
        assert log.next_due() == NOW + 60
    log.observe(failure_of("web", at=NOW + 2), NOW + 2)
    assert ages(log, NOW + 2) == {"n1": {"uid-of-web": 0}}


def test_many_failures_on_a_node_are_a_write_a_second():
    log = a_log()
    for second in (0.0, 0.3, 0.6):
        log.observe(failure_of(f"web-{second}", at=NOW + second), NOW + second)
        written = ages(log, NOW + second)
        assert len(written) == (1 if second == 0 else 0)
    assert log.next_due() == NOW + 1
    assert len(ages(log, NOW + 1)["n1"]) == 3


def test_a_failure_longer_ago_than_every_end_does_not_count():
    log = a_log()
    log.observe(failure_of("web", at=NOW - 300), NOW)
    assert log.next_due() is None


def test_a_kubelet_whose_clock_is_ahead_prolongs_nothing():
    log = a_log()
    log.observe(failure_of("web", at=NOW + 3600), NOW)
    assert ages(log, NOW) == {"n1": {"uid-of-web": 0}}


def test_pods_without_a_workload_and_logs_without_an_end_keep_nothing():
    log, none = a_log(), NodeFailureLog(())
    none.begin()
    log.observe(failed(a_pod("bare"), "n1", NOW), NOW)
    none.observe(failure_of("web"), NOW)
    assert log.next_due() is None
    assert none.next_due() is None


def test_a_new_leader_takes_over_what_pods_no_longer_show_before_it_writes():
    former, log = a_log(), NodeFailureLog((MINUTE, FIVE))
    former.observe(failure_of("deleted"), NOW)
    [(node, fact)] = former.take_due(NOW)
    log.observe(failure_of("web", at=NOW + 5), NOW + 10)
    assert log.take_due(NOW + 10) == []
    log.adopt(node, fact, NOW + 10)
    log.begin()
    assert ages(log, NOW + 10) == {"n1": {"uid-of-web": 5, "uid-of-deleted": 10}}

    log.adopt(node, _with(fact, "uid-of-other"), NOW + 20)  # by somebody else
    assert log.next_due() == NOW + 60


def _with(fact, workload):
    [failure] = fact.workloads.values()
    return type(fact)(written_at=fact.written_at, workloads={workload: failure})


def test_a_fact_that_was_not_stored_is_written_again():
    log = a_log()
    log.observe(failure_of("web"), NOW)
    ages(log, NOW)
    log.on_not_written("n1", NOW)
    assert ages(log, NOW + 5) == {"n1": {"uid-of-web": 5}}


def test_a_fact_with_the_most_and_longest_texts_is_no_larger_than_a_fact_may_be():
    log = a_log()
    for number in range(MOST_ON_A_NODE + 1):
        pod = owned_by(f"{number:036}", a_pod(f"{number:0253}"))
        log.observe(failed(pod, "n1", NOW + number, reason="UnexpectedAdmissionError"), NOW + 200)
    [(_, fact)] = log.take_due(NOW + 200)
    assert len(fact.workloads) == MOST_ON_A_NODE
    assert min(each.at for each in fact.workloads.values()) == datetime.fromtimestamp(NOW + 1, tz=UTC)
    assert len(encode(fact)) <= FACT_BYTES


def test_failures_in_all_are_bounded():
    log = a_log()
    for number in range(MOST_FAILURES + 1):
        log.observe(failure_of("web", node=f"n{number}"), NOW)
    facts = dict(log.take_due(NOW))
    assert facts["n0"] is None
    assert sum(fact is not None for fact in facts.values()) == MOST_FAILURES
