"""What is kept between calls of queueing hints, and how pods are found by what they have in common with an event."""

from __future__ import annotations

from berth.framework.hintindex import IdentityCache, ValueIndex, encoded
from harness.builders.objects import a_pod


def test_result_is_computed_once_for_an_object_and_again_for_an_equal_one():
    computed = []
    length = IdentityCache(lambda items: computed.append(items) or len(items), capacity=10)
    one, equal = [1, 2], [1, 2]

    assert [length(one), length(one), length(equal)] == [2, 2, 2]
    assert len(computed) == 2


def test_cache_drops_what_was_not_used_for_longest_by_weight():
    computed = []
    kept = IdentityCache(lambda items: computed.append(items) or items, capacity=10, weigh=len)
    small, medium, large = [1] * 3, [1] * 6, [1] * 7

    for items in (small, medium, small, large, small):
        kept(items)
    assert computed == [small, medium, large]
    kept(medium)

    assert computed == [small, medium, large, medium]


def test_result_that_alone_exceeds_the_capacity_is_kept_until_the_next():
    kept = IdentityCache(list, capacity=1, weigh=len)
    large = [1, 2, 3]

    assert kept(large) is kept(large)


def test_pods_are_found_by_the_values_of_the_event_in_the_order_in_which_they_came():
    index = ValueIndex(lambda pod: pod.metadata.labels, lambda _old, new: new)
    index.add("both", a_pod(labels={"a": "", "b": ""}))
    index.add("any", a_pod())
    index.add("b", a_pod(labels={"b": ""}))

    assert list(index.find(None, ["b"])) == ["any", "both", "b"]
    assert list(index.find(None, ["a"])) == ["any", "both"]
    assert list(index.find(None, None)) == ["both", "any", "b"]
    index.remove("both")
    index.remove("any")
    assert list(index.find(None, ["a", "b"])) == ["b"]


def test_long_keys_are_digests():
    assert len(encoded("x" * 10_000)) == 64
    assert encoded({"a": 1, "b": 2}) == encoded({"b": 2, "a": 1})
    assert encoded("x" * 10_000) != encoded("x" * 10_001)
