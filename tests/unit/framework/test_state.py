"""What plugins store during a cycle."""

import pytest

from berth.cluster.snapshot import Snapshot
from berth.framework.status import CycleState, StateKey, StateMissingError
from harness.builders.objects import a_pod

NUMBERS = StateKey[list[int]]("numbers")


class Clonable(list):
    def clone(self):
        return Clonable(self)


def state(shared: CycleState | None = None) -> CycleState:
    return CycleState(Snapshot().class_of(a_pod()), shared)


def test_a_value_is_read_under_its_key():
    cycle = state()
    cycle.write(NUMBERS, [1])
    assert cycle.read(NUMBERS) == [1]


def test_keys_of_one_name_are_two_keys():
    cycle = state()
    cycle.write(StateKey("numbers"), [1])
    with pytest.raises(StateMissingError, match="reading 'numbers': not written in this cycle"):
        cycle.read(NUMBERS)


def test_what_the_class_wrote_is_read_until_the_cycle_writes_its_own():
    shared = state()
    shared.write(NUMBERS, [1])
    cycle = state(shared)
    assert cycle.read(NUMBERS) == [1]
    cycle.write(NUMBERS, [2])
    assert (cycle.read(NUMBERS), shared.read(NUMBERS)) == ([2], [1])


def test_a_clone_has_its_own_values_where_they_can_be_cloned():
    cycle, plain = state(), StateKey[list[int]]("plain")
    cycle.write(NUMBERS, Clonable([1]))
    cycle.write(plain, [1])
    clone = cycle.clone()
    clone.read(NUMBERS).append(2)
    clone.read(plain).append(2)
    assert (cycle.read(NUMBERS), cycle.read(plain)) == ([1], [1, 2])
