"""What is written to the bucket, and what is left alone there, with two collectors side by side."""

from datetime import UTC, datetime, timedelta

from berth.api.livedata import Bandwidth, encode_bandwidth
from berth.bus.interface import Entry
from berth_metrics_collector.samplestore import SampleStore

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def sampled(seconds: float) -> Bandwidth:
    return Bandwidth(receive=1.0, sampled_at=T0 + timedelta(seconds=seconds))


def entry(node: str, sample: Bandwidth | None, sequence: int, query="q1") -> Entry:
    data = None if sample is None else encode_bandwidth(sample)
    return Entry(key=f"{query}.{node}", sequence=sequence, data=data, time=T0)


def due(book: SampleStore, **samples: Bandwidth) -> dict[str, int]:
    """Node to the sequence that the write expects."""
    return {write.node: write.expected for write in book.due(samples)}


def test_a_new_node_is_written_and_the_same_sample_not_again():
    book = SampleStore("q1")
    [write] = book.due({"a": sampled(1)})
    assert (write.key, write.expected) == ("q1.a", 0)
    book.written(write, 7)
    assert due(book, a=sampled(1)) == {}
    assert due(book, a=sampled(2)) == {"a": 7}


def test_what_another_collector_has_written_meanwhile_is_left_alone():
    book = SampleStore("q1")
    book.read(entry("a", sampled(5), 3))
    assert due(book, a=sampled(5)) == {}
    assert due(book, a=sampled(4)) == {}
    assert due(book, a=sampled(6)) == {"a": 3}


def test_an_older_entry_that_is_read_late_changes_nothing():
    book = SampleStore("q1")
    book.read(entry("a", sampled(5), 9))
    book.read(entry("a", sampled(1), 8))
    assert due(book, a=sampled(3)) == {}


def test_a_sample_from_far_in_the_future_is_written_over():
    book = SampleStore("q1")
    book.read(entry("a", sampled(3600), 3))
    assert due(book, a=sampled(0)) == {"a": 3}


def test_what_cannot_be_read_and_what_was_removed_is_written_over():
    book = SampleStore("q1")
    book.read(Entry(key="q1.a", sequence=4, data=b"{", time=T0))
    book.read(entry("b", None, 5))
    assert due(book, a=sampled(0), b=sampled(0)) == {"a": 4, "b": 5}


def test_other_questions_keys_are_somebody_elses():
    book = SampleStore("q1")
    book.read(entry("a", sampled(5), 3, query="q2"))
    assert due(book, a=sampled(1)) == {"a": 0}
    assert book.gone([]) == []


def test_samples_of_nodes_that_are_gone_are_removed_once():
    book = SampleStore("q1")
    book.read(entry("a", sampled(5), 3))
    book.read(entry("b", sampled(5), 4))
    [removal] = book.gone(["a"])
    assert (removal.node, removal.expected) == ("b", 4)
    book.read(entry("b", None, 5))
    assert book.gone(["a"]) == []


def test_a_node_name_with_dots_is_one_key():
    [write] = SampleStore("q1").due({"node-1.example.com": sampled(0)})
    assert write.key == "q1.node-1.example.com"
