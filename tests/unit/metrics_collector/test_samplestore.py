"""What is written to and removed from the bucket, with two collectors side by side."""

from datetime import UTC, datetime, timedelta

from berth.bus.interface import Entry
from berth.messages.livedata import Bandwidth, encode_bandwidth
from berth_metrics_collector.samplestore import SampleStore

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def sampled(seconds: float) -> Bandwidth:
    return Bandwidth(receive=1.0, sampled_at=T0 + timedelta(seconds=seconds))


def entry(node: str, sample: Bandwidth | None, sequence: int, query="q1", stored: float = 60) -> Entry:
    data = None if sample is None else encode_bandwidth(sample)
    return Entry(key=f"{query}.{node}", sequence=sequence, data=data, time=T0 + timedelta(seconds=stored))


def writes(store: SampleStore, **samples: Bandwidth) -> dict[str, int]:
    """Node to the sequence that the write expects."""
    return {write.node: write.expected for write in store.writes(samples)}


def test_a_new_node_is_written_and_the_same_sample_not_again():
    store = SampleStore("q1")
    [write] = store.writes({"a": sampled(1)})
    assert (write.key, write.expected) == ("q1.a", 0)
    store.written(write, 7)
    assert writes(store, a=sampled(1)) == {}
    assert writes(store, a=sampled(2)) == {"a": 7}


def test_a_sample_of_another_collector_is_not_overwritten_by_an_older_one():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(5), 3))
    assert writes(store, a=sampled(5)) == {}
    assert writes(store, a=sampled(4)) == {}
    assert writes(store, a=sampled(6)) == {"a": 3}


def test_an_older_entry_changes_nothing():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(5), 9))
    store.apply(entry("a", sampled(1), 8))
    assert writes(store, a=sampled(3)) == {}


def test_a_sample_of_a_clock_that_was_far_ahead_is_overwritten():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(3600), 3, stored=3600))
    assert writes(store, a=sampled(3400)) == {}
    assert writes(store, a=sampled(0)) == {"a": 3}


def test_a_sample_from_the_future_counts_as_that_of_its_storing():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(240), 3, stored=0))
    assert writes(store, a=sampled(240)) == {}  # the same again: Prometheus's clock may be ahead of NATS's
    assert writes(store, a=sampled(0)) == {}
    assert writes(store, a=sampled(1)) == {"a": 3}
    assert store.newest() == T0


def test_undecodable_and_removed_samples_are_overwritten():
    store = SampleStore("q1")
    store.apply(Entry(key="q1.a", sequence=4, data=b"{", time=T0))
    store.apply(entry("b", None, 5))
    assert writes(store, a=sampled(0), b=sampled(0)) == {"a": 4, "b": 5}


def test_keys_of_other_queries_are_ignored():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(5), 3, query="q2"))
    assert writes(store, a=sampled(1)) == {"a": 0}
    assert store.removals([]) == []


def test_samples_of_deleted_nodes_are_removed_once():
    store = SampleStore("q1")
    store.apply(entry("a", sampled(5), 3))
    store.apply(entry("b", sampled(5), 4))
    [removal] = store.removals(["a"])
    assert (removal.node, removal.expected) == ("b", 4)
    store.apply(entry("b", None, 5))
    assert store.removals(["a"]) == []


def test_the_undecodable_sample_of_a_deleted_node_is_removed_once():
    store = SampleStore("q1")
    store.apply(Entry(key="q1.a", sequence=4, data=b"{", time=T0))
    assert store.removals(["a"]) == []
    [removal] = store.removals([])
    assert (removal.key, removal.expected) == ("q1.a", 4)
    store.apply(entry("a", None, 5))
    assert store.removals([]) == []


def test_a_node_name_with_dots_is_one_key():
    [write] = SampleStore("q1").writes({"node-1.example.com": sampled(0)})
    assert write.key == "q1.node-1.example.com"
