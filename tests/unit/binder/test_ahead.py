"""Messages that only a newer binder may understand are put off within bounds of time and bytes."""

from datetime import timedelta

from berth_binder.effects import LONGEST, REDELIVERY, AheadMessages

SECONDS = REDELIVERY.total_seconds()
NEW = timedelta(0)


def test_a_message_waits_for_two_minutes_since_it_was_stored():
    ahead = AheadMessages(8000)
    assert ahead.may_wait(1, size=10, age=LONGEST, now=0)
    assert not ahead.may_wait(2, size=10, age=LONGEST + timedelta(seconds=1), now=0)


def test_a_message_waits_for_two_minutes_also_if_the_bus_stands_still():
    ahead, now = AheadMessages(8000), 100.0
    while ahead.may_wait(1, size=10, age=NEW, now=now):
        now += SECONDS
    assert now == 100 + LONGEST.total_seconds() + SECONDS


def test_all_of_them_have_an_eighth_of_the_stream():
    ahead = AheadMessages(8000)
    assert ahead.may_wait(1, size=600, age=NEW, now=0)
    assert not ahead.may_wait(2, size=401, age=NEW, now=0)
    assert ahead.may_wait(3, size=400, age=NEW, now=0)
    assert ahead.may_wait(1, size=600, age=NEW, now=SECONDS)


def test_a_message_that_comes_no_more_takes_no_room():
    ahead = AheadMessages(8000)
    assert ahead.may_wait(1, size=1000, age=NEW, now=0)
    assert not ahead.may_wait(2, size=1000, age=NEW, now=3 * SECONDS)
    assert ahead.may_wait(3, size=1000, age=NEW, now=3 * SECONDS + 1)
