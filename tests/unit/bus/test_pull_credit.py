"""The arithmetic of a continuous pull: never more held and asked for than allowed, and never asleep with room left."""

from hypothesis import given
from hypothesis import strategies as st

from berth.bus.consumer import Credit


def test_it_asks_for_all_at_first_and_again_below_half():
    credit = Credit(hold=8)
    assert credit.take() == 8
    for _ in range(3):
        credit.arrive()
    credit.held = 0  # three settled; 5 of 8 are still to come: more than half
    assert credit.take() == 0
    credit.arrive()
    assert credit.take() == 3  # 8 - 1 held - 4 to come


def test_what_the_server_gives_back_is_asked_for_again():
    credit = Credit(hold=8)
    credit.take()
    credit.give_back(8)
    assert credit.take() == 8


@given(st.integers(1, 100), st.lists(st.sampled_from(["arrive", "settle", "take", "give back"]), max_size=300))
def test_no_more_than_the_hold_is_held_and_asked_for(hold, steps):
    credit = Credit(hold=hold)
    credit.take()
    for step in steps:
        if step == "arrive" and credit.outstanding:
            credit.arrive()
        elif step == "settle" and credit.held:
            credit.held -= 1
        elif step == "take":
            credit.take()
        elif step == "give back" and credit.outstanding:
            credit.give_back(1)
        assert 0 <= credit.held + credit.outstanding <= hold


@given(st.integers(1, 100), st.integers(0, 100))
def test_with_nothing_to_come_and_room_left_it_asks(hold, held):
    credit = Credit(hold=hold, held=min(held, hold))
    assert credit.take() == hold - credit.held
