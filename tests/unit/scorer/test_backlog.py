"""Which messages are ranked, in which order and when."""

from datetime import timedelta

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.messages.attempts import Pending, Positions
from berth_scorer.backlog import Backlog
from berth_scorer.events import PendingDelivery

HERE = Positions(cluster=10, decisions=10)


def item(name, *, after=0, at=0.0):
    pending = Pending(
        attempt=f"{name}.1.1", profile="berth", pod=Pod(metadata=ObjectMeta(name=name)), after=Positions(cluster=after)
    )
    return PendingDelivery(delivery=object(), pending=pending, sequence=1, taken_at=at)


def popped(backlog, positions=HERE, now=0.0):
    names = []
    while (one := backlog.pop(positions, now)) is not None:
        names.append(one.pending.pod.metadata.name)
    return names


def test_messages_are_ranked_in_order_of_arrival():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    for name in "abc":
        backlog.add(item(name), HERE)
    assert popped(backlog) == ["a", "b", "c"]


def of(namespace, name, rank=0):
    pending = Pending(
        attempt=f"{name}.1.1", profile="berth", pod=Pod(metadata=ObjectMeta(name=name, namespace=namespace)), after=HERE
    )
    return PendingDelivery(delivery=object(), pending=pending, sequence=1, taken_at=0.0, rank=rank)


def test_a_pod_of_another_namespace_waits_for_one_of_each_and_not_for_all_that_came_before_it():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    for one in (*(of("noisy", f"n{number}") for number in range(4)), of("quiet", "q0"), of("quiet", "q1")):
        backlog.add(one, HERE)
    assert popped(backlog) == ["n0", "q0", "n1", "q1", "n2", "n3"]


def test_a_namespace_that_comes_again_has_no_turn_left_over():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    for number in range(3):
        backlog.add(of("noisy", f"n{number}"), HERE)
    backlog.add(of("quiet", "q0"), HERE)
    seen = [backlog.pop(HERE, 0.0).pending.pod.metadata.name for _ in range(2)]
    backlog.add(of("quiet", "q1"), HERE)
    assert [*seen, *popped(backlog)] == ["n0", "q0", "n1", "q1", "n2"]


def test_no_message_passes_one_of_another_rank():
    """A less important pod of a namespace that waits for its turn comes after all that are more important."""
    backlog = Backlog(position_wait=timedelta(seconds=1))
    for one in (of("a", "a0", rank=-9), of("a", "a1", rank=-9), of("b", "b0"), of("a", "a2"), of("a", "a3", rank=-9)):
        backlog.add(one, HERE)
    assert popped(backlog) == ["a0", "a1", "b0", "a2", "a3"]
    assert len(backlog) == 0


def test_a_message_waits_for_its_position_and_blocks_no_other():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=11), HERE)
    backlog.add(item("now"), HERE)
    assert popped(backlog) == ["now"]
    assert popped(backlog, Positions(cluster=11, decisions=10)) == ["later"]


def test_after_the_wait_it_is_ranked_on_an_older_view():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=11, at=5.0), HERE)
    assert backlog.due() == 6.0
    assert popped(backlog, now=5.9) == []
    assert popped(backlog, now=6.0) == ["later"]
    assert backlog.due() is None


def at(cluster, decisions=10):
    return Positions(cluster=cluster, decisions=decisions)


def test_a_view_that_is_being_read_is_waited_for_to_its_end():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=5000), at(33))
    for second in range(8):
        assert popped(backlog, at(500 * second), now=second * 0.9) == []
    assert popped(backlog, at(5000), now=8.0) == ["later"]


def test_a_view_that_is_not_read_any_more_is_waited_for_a_second():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=5000), at(33))
    assert popped(backlog, at(33), now=0.5) == []
    assert popped(backlog, at(900), now=0.9) == []
    assert backlog.due() == 1.9
    assert popped(backlog, at(900), now=1.8) == []
    assert popped(backlog, at(900), now=1.9) == ["later"]


def test_another_source_that_moves_on_lengthens_no_wait():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=5000), at(33))
    for tenth in range(1, 10):
        assert popped(backlog, at(33, decisions=10 + tenth), now=tenth / 10) == []
    assert popped(backlog, at(33, decisions=20), now=1.0) == ["later"]


def test_a_position_that_is_never_reached_holds_no_pod_up_though_the_view_moves():
    """The store has lost its last writes: watermarks go on, from far below."""
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("later", after=1_000_000), at(33))
    for half in range(60):
        assert popped(backlog, at(33 + half), now=half / 2) == []
    assert popped(backlog, at(93), now=30.0) == ["later"]


def test_clear_empties_the_backlog():
    backlog = Backlog(position_wait=timedelta(seconds=1))
    backlog.add(item("a"), HERE)
    backlog.add(item("b", after=99), HERE)
    assert len(backlog) == 2
    backlog.clear()
    assert len(backlog) == 0
