"""What a scorer holds, and in which order it is ranked."""

from dataclasses import dataclass
from datetime import timedelta

from berth.api.messages import Pending, Positions
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth_scorer.backlog import Backlog, PendingDelivery

HERE = Positions(cluster=10, decisions=10)


@dataclass
class Lent:
    delivered: int = 1


def held(name, *, after=0, at=0.0, delivered=1):
    pending = Pending(
        attempt=f"{name}.1.1", profile="berth", pod=Pod(metadata=ObjectMeta(name=name)), after=Positions(cluster=after)
    )
    return PendingDelivery(delivery=Lent(delivered), pending=pending, taken_at=at)


def taken(hold, positions=HERE, now=0.0):
    names = []
    while (one := hold.next(positions, now)) is not None:
        names.append(one.pending.pod.metadata.name)
    return names


def test_messages_are_ranked_in_the_order_in_which_they_came():
    hold = Backlog(patience=timedelta(seconds=1))
    for name in "abc":
        hold.take(held(name), HERE)
    assert taken(hold) == ["a", "b", "c"]


def test_one_that_asks_for_a_position_waits_for_it_and_holds_up_nobody():
    hold = Backlog(patience=timedelta(seconds=1))
    hold.take(held("later", after=11), HERE)
    hold.take(held("now"), HERE)
    assert taken(hold) == ["now"]
    assert taken(hold, Positions(cluster=11, decisions=10)) == ["later"]


def test_after_a_second_it_is_ranked_on_the_view_that_there_is():
    hold = Backlog(patience=timedelta(seconds=1))
    hold.take(held("later", after=11, at=5.0), HERE)
    assert hold.due_in(5.4) == 0.5999999999999996
    assert taken(hold, now=5.9) == []
    assert taken(hold, now=6.0) == ["later"]
    assert hold.due_in(6.0) is None


def test_a_message_is_under_suspicion_from_its_fourth_delivery_on():
    assert [held("a", delivered=n).suspect for n in (1, 3, 4, 5)] == [False, False, True, True]


def test_what_is_given_back_is_held_no_more():
    hold = Backlog(patience=timedelta(seconds=1))
    hold.take(held("a"), HERE)
    hold.take(held("b", after=99), HERE)
    assert [one.pending.pod.metadata.name for one in hold.empty()] == ["a", "b"]
    assert len(hold) == 0
