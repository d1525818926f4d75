"""What is written to and removed from the bucket: by one collector, by several, and after a thief of a credential."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.bus.interface import Entry
from berth.messages.livedata import NodeSample, encode_sample
from berth_metrics_collector import samplestore
from berth_metrics_collector.samplestore import CHECK_SECONDS, PEER_SECONDS, SampleStore
from harness.plugins.long_runs import often

T0 = datetime(2026, 1, 1, tzinfo=UTC)
NODES = frozenset({"a", "b", "c"})


def sampled(seconds: float, receive: float = 1.0, by: str = "") -> NodeSample:
    return NodeSample(receive=receive, sampled_at=T0 + timedelta(seconds=seconds), by=by)


class Bucket:
    """A query's keys on NATS, with the collectors that read and write them at a time in seconds."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.sequence = 0
        self.now = 0.0
        self.readers: list[SampleStore] = []
        self.writes = 0

    def collector(self, **samples: NodeSample) -> SampleStore:
        """One more collector, which has read the bucket and measured these nodes."""
        store = SampleStore("q1")
        for entry in self.entries.values():
            store.apply(entry, self.now)
        self.readers.append(store)
        if samples:
            store.measured(samples, NODES)
        return store

    def put(self, node: str, sample: NodeSample | bytes | None, query: str = "q1") -> int:
        """Somebody writes a key; ``None`` removes it."""
        self.sequence += 1
        data = encode_sample(sample) if isinstance(sample, NodeSample) else sample
        time = T0 + timedelta(seconds=self.now)
        entry = self.entries[f"{query}.{node}"] = Entry(
            key=f"{query}.{node}", sequence=self.sequence, data=data, time=time
        )
        for store in self.readers:
            store.apply(entry, self.now)
        return self.sequence

    def check(self, store: SampleStore, nodes: frozenset[str] = NODES) -> list[str]:
        """One check of a collector; return the nodes whose keys it has changed."""
        changed = []
        for write in store.writes(nodes, self.now):
            if write.expected == self._last(write.key):
                store.written(write, self.put(write.node, write.sample), self.now)
                changed.append(write.node)
                self.writes += 1
        for removal in store.removals(nodes, self.now):
            if removal.expected == self._last(removal.key):
                self.put(removal.node, None)
                changed.append(f"-{removal.node}")
        return changed

    def pass_time(self, seconds: float, *stores: SampleStore) -> None:
        """These collectors check at each interval."""
        until = self.now + seconds
        while self.now < until:
            self.now += CHECK_SECONDS
            for store in stores:
                self.check(store)

    def stored(self) -> dict[str, tuple[float, float]]:
        """By node, what was received, and the second of the sample."""
        found = {}
        for key, entry in self.entries.items():
            if entry.data is not None:
                sample = msgspec.json.decode(entry.data, type=NodeSample)
                found[key.partition(".")[2]] = sample.receive, (sample.sampled_at - T0).total_seconds()
        return found

    def _last(self, key: str) -> int:
        return self.entries[key].sequence if key in self.entries else 0


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


# --- one collector


def test_a_new_node_is_written_and_the_same_scrape_not_again(bucket):
    store = bucket.collector(a=sampled(1))
    [write] = store.writes(NODES, 0.0)
    assert (write.key, write.expected) == ("q1.a", 0)
    assert bucket.check(store) == ["a"]
    store.measured({"a": sampled(1, receive=1.1)}, NODES)  # a rate differs from query to query
    assert bucket.check(store) == []
    store.measured({"a": sampled(2)}, NODES)
    assert bucket.check(store) == ["a"]


def test_an_older_entry_changes_nothing(bucket):
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    store.apply(Entry(key="q1.a", sequence=0, data=b"{", time=T0), 0.0)
    assert bucket.check(store) == []


def test_an_older_scrape_is_taken_only_from_a_clock_that_was_set_back(bucket):
    store = bucket.collector(a=sampled(3600))
    bucket.now = 3600
    bucket.check(store)
    store.measured({"a": sampled(3400)}, NODES)
    assert bucket.check(store) == []
    store.measured({"a": sampled(0)}, NODES)
    assert bucket.check(store) == ["a"]


def test_a_sample_from_the_future_counts_as_that_of_its_storing(bucket):
    store = bucket.collector(a=sampled(240))
    bucket.check(store)
    assert store.times() == [T0]
    store.measured({"a": sampled(240)}, NODES)  # the same again: Prometheus's clock may be ahead of NATS's
    assert bucket.check(store) == []
    store.measured({"a": sampled(0)}, NODES)
    assert bucket.check(store) == []
    store.measured({"a": sampled(1)}, NODES)
    assert bucket.check(store) == ["a"]


def test_keys_of_other_queries_are_ignored(bucket):
    store = bucket.collector()
    bucket.put("a", sampled(5), query="q2")
    store.measured({"a": sampled(1)}, NODES)
    assert [write.expected for write in store.writes(NODES, 0.0)] == [0]
    assert list(store.removals(frozenset(), 0.0)) == []


@pytest.mark.parametrize("data", [sampled(5), b"{"], ids=["a sample", "undecodable"])
def test_samples_of_deleted_nodes_are_removed_once(bucket, data):
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    bucket.put("gone", data)
    assert bucket.check(store) == ["-gone"]
    assert bucket.check(store) == []


def test_the_own_sample_of_a_deleted_node_is_not_written_again(bucket):
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    assert bucket.check(store, NODES - {"a"}) == ["-a"]
    assert bucket.check(store, NODES - {"a"}) == []
    store.measured({}, NODES - {"a"})
    assert bucket.check(store) == []


def test_a_node_name_with_dots_is_one_key(bucket):
    name = "node-1.example.com"
    store = bucket.collector(**{name: sampled(0)})
    assert [write.key for write in store.writes(frozenset({name}), 0.0)] == [f"q1.{name}"]


def test_a_node_without_a_new_scrape_keeps_its_sample_also_on_another_session(bucket):
    store = bucket.collector(a=sampled(1), b=sampled(1))
    bucket.check(store)
    store.begin()
    for entry in bucket.entries.values():
        store.apply(entry, 0.0)
    store.measured({"b": sampled(1)}, NODES)
    assert bucket.check(store) == []
    bucket.put("a", None)
    assert bucket.check(store) == ["a"]


def test_a_collector_with_nothing_to_write_writes_its_oldest_sample_again(bucket):
    store = bucket.collector(a=sampled(1), b=sampled(1))
    assert bucket.check(store) == ["a", "b"]
    found = []
    for _ in range(4):
        bucket.now += CHECK_SECONDS
        found += bucket.check(store)
    assert found == ["a", "b", "a", "b"]
    assert bucket.stored() == {"a": (1.0, 1.0), "b": (1.0, 1.0)}


def test_what_a_full_bucket_has_dropped_is_written_again_at_once(bucket):
    store = bucket.collector(a=sampled(1), b=sampled(1), c=sampled(1))
    bucket.check(store)
    del bucket.entries["q1.a"], bucket.entries["q1.b"]  # as the oldest; nobody is told
    store.forget("b")  # found out by a write that NATS refuses
    assert [write.node for write in store.writes(NODES, 0.0)] == ["a", "b"]


def test_a_marker_that_has_expired_says_nothing_of_other_keys(bucket):
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    bucket.put("b", None)
    store.forget("b")
    assert store.writes(NODES, 0.0) == []


# --- another collector


def test_the_newer_sample_of_another_collector_stays(bucket):
    peer, store = bucket.collector(a=sampled(5)), bucket.collector(a=sampled(4))
    bucket.check(peer)
    assert bucket.check(store) == []
    store.measured({"a": sampled(5, receive=2.0)}, NODES)
    assert bucket.check(store) == []
    store.measured({"a": sampled(6)}, NODES)
    assert bucket.check(store) == ["a"]


@pytest.mark.parametrize("ahead", [0.0, 3600.0], ids=["right clocks", "clocks ahead of NATS's"])
def test_collectors_of_two_servers_settle(bucket, ahead):
    one = bucket.collector(a=sampled(ahead + 1, receive=1.0), b=sampled(ahead + 9, receive=1.0))
    two = bucket.collector(a=sampled(ahead + 3, receive=2.0), c=sampled(ahead + 5, receive=2.0))
    bucket.pass_time(60, one, two)
    assert bucket.stored() == {"a": (2.0, ahead + 3), "b": (1.0, ahead + 9), "c": (2.0, ahead + 5)}
    assert bucket.writes <= 2 * 60 / CHECK_SECONDS + 4  # signs of life, and each sample once


def test_what_only_another_collector_measures_ends_with_it(bucket):
    one, two = bucket.collector(a=sampled(1)), bucket.collector(c=sampled(1))
    bucket.pass_time(300, one, two)
    assert set(bucket.stored()) == {"a", "c"}
    bucket.pass_time(PEER_SECONDS + CHECK_SECONDS, one)
    assert set(bucket.stored()) == {"a"}


def test_a_former_collectors_samples_stay_until_prometheus_has_answered(bucket):
    bucket.put("a", sampled(1, by="former"))
    bucket.put("b", sampled(1, by="former"))
    store = bucket.collector()
    bucket.pass_time(60, store)
    assert set(bucket.stored()) == {"a", "b"}
    store.measured({"a": sampled(16, receive=2.0)}, NODES)
    bucket.check(store)
    assert bucket.stored() == {"a": (2.0, 16.0)}


# --- somebody with the credential


FORGED = [
    pytest.param(sampled(1, receive=9.0), id="the same time"),
    pytest.param(sampled(0, receive=9.0), id="an older time"),
    pytest.param(sampled(2, receive=9.0), id="a slightly newer time"),
    pytest.param(sampled(86400, receive=9.0), id="tomorrow"),
    pytest.param(b"{", id="undecodable"),
    pytest.param(None, id="removed"),
]


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("author", ["", "somebody", "its own"])
def test_what_somebody_has_written_ends_within_ten_seconds(bucket, forged, author):
    store = bucket.collector(a=sampled(1), b=sampled(1))
    bucket.check(store)
    by = {"its own": store.author}.get(author, author)
    for node in ("a", "c", "x"):  # measured, not measured, not there
        bucket.put(node, msgspec.structs.replace(forged, by=by) if isinstance(forged, NodeSample) else forged)
    bucket.pass_time(8, store)
    assert bucket.stored() == {"a": (1.0, 1.0), "b": (1.0, 1.0)}


def test_what_names_a_living_collector_is_corrected_by_that(bucket):
    one, two = bucket.collector(a=sampled(1)), bucket.collector(b=sampled(1))
    bucket.pass_time(3, one, two)
    for node in NODES:
        bucket.put(node, sampled(100, receive=9.0, by=two.author))
    assert bucket.check(one) == []
    bucket.pass_time(PEER_SECONDS + 2 * CHECK_SECONDS, two, one)
    assert bucket.stored() == {"a": (1.0, 1.0), "b": (1.0, 1.0)}


def test_many_names_cost_no_more_than_some(bucket):
    store = bucket.collector(a=sampled(1))
    for number in range(1000):
        bucket.put("b", sampled(1, by=f"x{number}"))
    assert len(store._received_at) == 64
    bucket.put("b", sampled(1, by="x" * 100))  # too long for a name
    assert bucket.check(store) == ["a", "-b"]


def test_a_name_of_no_node_is_forgotten_once_it_is_removed(bucket):
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    for number in range(100):
        bucket.put(f"ghost-{number}", sampled(1, by="thief"))
    assert len(bucket.check(store)) == 100
    assert bucket.check(store) == []
    assert store._by_node.keys() == {"a"}
    bucket.put("a", None)  # a removal of a node that is there is answered
    assert bucket.check(store) == ["a"]


def test_of_a_flood_of_names_some_are_remembered_and_no_node_is_forgotten(bucket, monkeypatch):
    monkeypatch.setattr(samplestore, "MAX_UNKNOWN", 10)
    store = bucket.collector(a=sampled(1))
    bucket.check(store)
    bucket.put("b", sampled(1, by="thief"))  # a node that the collector does not measure
    for number in range(100):
        bucket.put(f"ghost-{number}", sampled(1, by="thief"))
    assert next(store.removals(NODES, bucket.now + 60)).node == "b"
    assert store._by_node.keys() == {"a", "b", *(f"ghost-{number}" for number in range(90, 100))}


@pytest.mark.parametrize("seed", range(often(50)))
def test_collectors_with_other_servers_settle_after_anything(seed):
    """Ten seconds after the last of random writes, each node has the newest sample that a collector has of it."""
    chance, bucket = random.Random(seed), Bucket()
    stores = []
    for number in range(chance.choice((1, 2, 3))):
        measured = {node: float(chance.randrange(20)) for node in NODES if chance.random() < 0.7}
        own = {node: sampled(at, receive=10.0 * number + at) for node, at in measured.items()}
        stores.append((bucket.collector(**own), own))
        stores[-1][0].measured(own, NODES)
    readers = [store for store, _ in stores]
    bucket.pass_time(3, *readers)
    authors = [*(store.author for store in readers), "", "x", "y"]
    for _ in range(chance.randrange(60)):
        node = chance.choice(("a", "b", "c", "x"))
        sample = sampled(chance.choice((0, 5, 19, 25, 9999)), receive=99.0, by=chance.choice(authors))
        bucket.put(node, chance.choice((sample, sample, sample, b"{", None)))
        bucket.now += chance.choice((0.0, 0.0, 0.5, 1.0))
        if chance.random() < 0.3:
            bucket.check(chance.choice(readers))
    chance.shuffle(readers)
    bucket.pass_time(9, *readers)
    best = {
        node: max((own[node] for _, own in stores if node in own), key=lambda sample: sample.sampled_at)
        for node in NODES
        if any(node in own for _, own in stores)
    }
    expected = {node: (sample.sampled_at - T0).total_seconds() for node, sample in best.items()}
    assert {node: at for node, (_, at) in bucket.stored().items()} == expected
    assert all(receive < 99 for receive, _ in bucket.stored().values())
    writes = bucket.writes
    bucket.pass_time(15, *readers)
    assert bucket.writes - writes <= len(readers) * 15 / CHECK_SECONDS  # signs of life only
