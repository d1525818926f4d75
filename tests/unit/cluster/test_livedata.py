"""Live data beside a Snapshot: rows that are added, freed and reassigned, and the entries of the buckets."""

import gc
import math
import tracemalloc
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster.buckets import LiveDataReader
from berth.cluster.livedata import MAX_FACT_BYTES, MAX_UNKNOWN
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.messages.livedata import LiveSource, MeasuredUsage, NodeSample, encode_sample
from harness.builders.objects import a_node, a_pod

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SOURCES = [LiveSource(bucket="bandwidth", name="q1"), LiveSource(bucket="facts", name="disk")]


def sample(receive: float) -> NodeSample:
    return NodeSample(receive=receive, sampled_at=T0)


def receive(snapshot: Snapshot, node: str) -> float:
    return float(snapshot.live.samples("q1").receive[snapshot.rows.of(node)])


def test_a_sample_that_comes_before_its_node_is_there_when_the_node_comes():
    snapshot = Snapshot()
    snapshot.live.set_sample("q1", "a", sample(5.0))
    snapshot.set_node(a_node("a"))
    assert receive(snapshot, "a") == 5.0


def test_queries_that_no_plugin_reads_cost_their_samples_and_end_with_them():
    snapshot = Snapshot()
    for number in range(2000):
        snapshot.set_node(a_node(f"n{number}"))
    gc.collect()
    tracemalloc.start()
    for number in range(300):
        snapshot.live.set_sample(f"unread-{number}", "n1", sample(5.0))
        snapshot.live.set_fact(f"unread-{number}", "n1", msgspec.Raw(b"1"), stored_at=0.0)
    alive = tracemalloc.get_traced_memory()[0]
    for number in range(300):
        snapshot.live.set_sample(f"unread-{number}", "n1", None)
        snapshot.live.set_fact(f"unread-{number}", "n1", None, stored_at=0.0)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert alive < 3_000_000  # not 300 queries of five columns of 16 KB
    assert left < 100_000


def test_samples_of_nodes_that_do_not_exist_are_bounded_and_take_no_place_of_one_that_does():
    snapshot = Snapshot()
    snapshot.live.set_sample("q1", "before", sample(5.0))
    snapshot.set_node(a_node("before"))
    for number in range(MAX_UNKNOWN + 1000):
        snapshot.live.set_sample("q1", f"junk-{number}", sample(1.0))
    samples = snapshot.live.samples("q1").samples()
    assert len(samples) == MAX_UNKNOWN + 1
    assert "junk-0" not in samples
    assert receive(snapshot, "before") == 5.0


def test_facts_are_bounded_in_bytes_and_the_oldest_end_first():
    snapshot, fact = Snapshot(), msgspec.Raw(b'"%b"' % (b"x" * 60_000))
    fit = MAX_FACT_BYTES // 60_000
    snapshot.live.set_fact("power", "honest", msgspec.Raw(b"1"), stored_at=0.0)
    for number in range(fit + 100):
        snapshot.live.set_fact("power", f"junk-{number}", fact, stored_at=0.0)
        snapshot.live.set_fact("power", "honest", msgspec.Raw(b"2"), stored_at=0.0)
    assert fit - 10 < len(snapshot.live.facts("power")) <= fit + 1
    assert snapshot.live.fact("power", "junk-0") is None
    assert snapshot.live.fact("power", "honest") == msgspec.Raw(b"2")
    for node in list(snapshot.live.facts("power")):
        snapshot.live.set_fact("power", node, None, stored_at=0.0)
    assert snapshot.live.facts("power") == {}
    snapshot.live.set_fact("power", "again", fact, stored_at=0.0)
    assert snapshot.live.fact("power", "again") == fact


def test_a_row_that_another_node_takes_over_shows_that_nodes_sample():
    snapshot = Snapshot()
    for name, amount in (("a", 5.0), ("b", 7.0)):
        snapshot.live.set_sample("q1", name, sample(amount))
    snapshot.set_node(a_node("a"))
    row = snapshot.rows.of("a")
    assert receive(snapshot, "a") == 5.0
    snapshot.remove_node("a")
    snapshot.set_node(a_node("b"))
    assert snapshot.rows.of("b") == row
    assert receive(snapshot, "b") == 7.0
    snapshot.remove_node("b")
    snapshot.set_node(a_node("c"))
    assert receive(snapshot, "c") != receive(snapshot, "c")  # NaN: unknown


def test_a_node_that_comes_back_to_a_row_shows_its_own_newest_sample():
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    snapshot.live.set_sample("q1", "a", sample(5.0))
    snapshot.remove_node("a")
    snapshot.place(a_pod("early"), "b")  # takes the row before its node exists
    snapshot.live.set_sample("q1", "b", sample(7.0))
    snapshot.live.set_sample("q1", "a", sample(6.0))
    snapshot.remove_pod("uid-early")
    snapshot.set_node(a_node("a"))
    assert receive(snapshot, "a") == 6.0


@pytest.mark.parametrize("newest", [6.0, None])
def test_a_sample_that_comes_while_its_node_is_gone_counts_when_the_node_is_back_before_anybody_has_read(newest):
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    snapshot.live.set_sample("q1", "a", sample(5.0))
    assert receive(snapshot, "a") == 5.0
    snapshot.remove_node("a")
    snapshot.live.set_sample("q1", "a", None if newest is None else sample(newest))
    snapshot.set_node(a_node("a"))
    assert receive(snapshot, "a") == pytest.approx(math.nan if newest is None else newest, nan_ok=True)


def test_a_statistic_is_a_column_once_a_plugin_reads_it_and_follows_the_samples_and_the_rows():
    snapshot = Snapshot()
    measured = NodeSample(
        cpu=MeasuredUsage(average=1500.0, p95=2600.0), memory=MeasuredUsage(average=2.0**30), sampled_at=T0
    )
    snapshot.live.set_sample("load", "early", measured)
    for name in ("a", "early"):
        snapshot.set_node(a_node(name))
    samples = snapshot.live.samples("load")
    a, early = snapshot.rows.of("a"), snapshot.rows.of("early")
    assert samples.usage("cpu", "p95")[early] == 2600.0
    assert np.isnan(samples.usage("cpu", "p95")[a])
    assert np.isnan(samples.usage("cpu", "deviation")[early])
    assert samples.usage("memory", "average")[early] == 2.0**30

    snapshot.live.set_sample("load", "a", msgspec.structs.replace(measured, cpu=MeasuredUsage(p95=7.0), memory=None))
    for number in range(200):
        snapshot.set_node(a_node(f"n{number}"))
    samples = snapshot.live.samples("load")
    assert samples.usage("cpu", "p95")[a] == 7.0
    assert np.isnan(samples.usage("memory", "average")[a])
    assert np.isnan(samples.usage("cpu", "p95")[snapshot.rows.of("n199")])
    snapshot.live.set_sample("load", "early", None)
    assert np.isnan(samples.usage("cpu", "p95")[early])


def test_columns_grow_with_the_cluster():
    snapshot = Snapshot()
    snapshot.live.set_sample("q1", "n0", sample(1.0))
    for number in range(200):
        snapshot.set_node(a_node(f"n{number}"))
    snapshot.live.set_sample("q1", "n199", sample(2.0))
    assert (receive(snapshot, "n0"), receive(snapshot, "n199")) == (1.0, 2.0)


def test_only_changed_rows_are_returned_newest_first():
    snapshot = Snapshot()
    for name in ("a", "b"):
        snapshot.set_node(a_node(name))
    columns = snapshot.live.samples("q1")
    before = columns.version
    snapshot.live.set_sample("q1", "b", sample(1.0))
    assert columns.changed_since(before) == [snapshot.rows.of("b")]
    assert columns.changed_since(columns.version) == []
    before = columns.version
    for name in ("a", "b", "a"):
        snapshot.live.set_sample("q1", name, sample(2.0))
    a, b = snapshot.rows.of("a"), snapshot.rows.of("b")
    assert [columns.changed_since(before + written) for written in range(4)] == [[a, b], [a, b], [a], []]


def test_entries_of_undeclared_sources_are_ignored():
    snapshot = Snapshot()
    reader = LiveDataReader(snapshot.live, SOURCES)
    for query in ("q1", "q2"):
        reader.apply("bandwidth", f"{query}.node-1.example.com", encode_sample(sample(3.0)), T0)
    assert set(snapshot.live.samples("q1").samples()) == {"node-1.example.com"}
    assert not snapshot.live.samples("q2").samples()
    assert reader.buckets == ("bandwidth", "facts")
    assert snapshot.live.now == T0.timestamp()


def test_a_sample_from_the_future_is_as_old_as_its_entry():
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    reader = LiveDataReader(snapshot.live, SOURCES)
    future = msgspec.structs.replace(sample(3.0), sampled_at=T0 + timedelta(days=9))
    reader.apply("bandwidth", "q1.a", encode_sample(future), T0)
    assert snapshot.live.samples("q1").sample("a").sampled_at == T0
    before = msgspec.structs.replace(sample(3.0), sampled_at=T0 - timedelta(seconds=9))
    reader.apply("bandwidth", "q1.a", encode_sample(before), T0)
    assert snapshot.live.samples("q1").sample("a").sampled_at == before.sampled_at


def test_a_removal_leaves_nothing():
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("bandwidth", "q1.a", encode_sample(sample(3.0)), T0)
    reader.apply("bandwidth", "q1.a", None, T0)
    assert snapshot.live.samples("q1").sample("a") is None
    assert receive(snapshot, "a") != receive(snapshot, "a")


def test_facts_of_sources_that_no_plugin_reads_are_not_kept_and_those_of_other_nodes_change_none():
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("facts", "disk.a", b'{"free": 5}', T0)
    for number in range(100):
        reader.apply("facts", f"junk-{number}.a", b'{"free": 0}', T0)
        reader.apply("facts", f"disk.junk-{number}", b'{"free": 0}', T0)
    assert snapshot.live.fact("disk", "a") == msgspec.Raw(b'{"free": 5}')
    assert not any(snapshot.live.facts(f"junk-{number}") for number in range(100))
    assert [node for node in snapshot.live.facts("disk") if not node.startswith("junk")] == ["a"]


def test_a_fact_counts_until_five_minutes_after_it_was_stored_whatever_time_it_states():
    snapshot = Snapshot()
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("facts", "disk.wrong", b'{"free": 0, "sampled_at": "2099-01-01T00:00:00Z"}', T0)
    reader.apply("facts", "disk.again", b'{"free": 0}', T0 + timedelta(seconds=1))
    reader.apply("facts", "disk.again", b'{"free": 9}', T0 + timedelta(seconds=299))
    with pytest.raises(DecodeError):
        reader.apply("facts", "disk.wrong", b"{not json", T0 + timedelta(seconds=299))
    snapshot.live.observe_time((T0 + timedelta(seconds=300)).timestamp())
    assert set(snapshot.live.facts("disk")) == {"wrong", "again"}

    snapshot.live.observe_time((T0 + timedelta(seconds=301)).timestamp())

    assert dict(snapshot.live.facts("disk")) == {"again": msgspec.Raw(b'{"free": 9}')}
    assert snapshot.live.fact("disk", "wrong") is None


def test_a_reader_that_starts_takes_no_fact_that_has_ended():
    snapshot = Snapshot()
    snapshot.live.observe_time((T0 + timedelta(hours=1)).timestamp())
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("facts", "disk.old", b'{"free": 0}', T0)
    reader.apply("facts", "disk.new", b'{"free": 1}', T0 + timedelta(minutes=56))
    assert list(snapshot.live.facts("disk")) == ["new"]


@settings(deadline=None)
@given(stamps=st.lists(st.integers(0, 600), min_size=1, max_size=20), seconds=st.integers(0, 900))
def test_a_fact_ends_five_minutes_after_its_time_also_when_the_clock_of_nats_fell_back(stamps, seconds):
    """Another server leads the stream, and its clock is behind: a later fact has an earlier time."""
    snapshot = Snapshot()
    for number, stamp in enumerate(stamps):
        snapshot.live.set_fact("disk", f"n{number}", msgspec.Raw(b"1"), stored_at=float(stamp))
    snapshot.live.observe_time(float(seconds))
    facts = snapshot.live.facts("disk")
    assert not any(f"n{number}" in facts for number, stamp in enumerate(stamps) if seconds - stamp > 300)
    assert all(f"n{number}" in facts for number in range(len(stamps)) if seconds - min(stamps[number:]) <= 300)


@settings(deadline=None)
@given(
    writes=st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=30),
    early=st.integers(0, 30),
)
def test_two_readers_know_the_same_facts_whenever_they_started(writes, early):
    """One reads each entry as it is stored; the other has only the last entry of each key, later."""
    followed, fresh = Snapshot(), Snapshot()
    stored, now = {}, T0
    for seconds, node, value in writes:
        now += timedelta(seconds=seconds)
        entry = ("facts", f"disk.{node}", None if value is None else b"%d" % value, now)
        LiveDataReader(followed.live, SOURCES).apply(*entry)
        stored.pop(node, None)
        stored[node] = entry
    now += timedelta(seconds=early)
    for snapshot in (followed, fresh):
        snapshot.live.observe_time(now.timestamp())
    for entry in stored.values():
        LiveDataReader(fresh.live, SOURCES).apply(*entry)

    expected = {n: e[2] for n, e in stored.items() if e[2] is not None and now - e[3] <= timedelta(minutes=5)}
    for snapshot in (followed, fresh):
        assert {node: bytes(fact) for node, fact in snapshot.live.facts("disk").items()} == expected


def test_facts_are_any_json():
    snapshot = Snapshot()
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("facts", "disk.a", b'{"free": 5, "sampled_at": "2026-01-01T00:00:00Z"}', T0)
    fact = snapshot.live.fact("disk", "a")
    assert msgspec.json.decode(fact) == {"free": 5, "sampled_at": "2026-01-01T00:00:00Z"}
    reader.apply("facts", "disk.a", None, T0)
    assert snapshot.live.fact("disk", "a") is None


@pytest.mark.parametrize(
    ("bucket", "key", "data"),
    [
        ("bandwidth", "q1.a", b"{"),
        ("bandwidth", "q1.a", b'{"schema":1,"receive":-1,"sampled_at":"2026-01-01T00:00:00Z"}'),
        ("bandwidth", "q1.a", b'{"schema":1,"sampled_at":"2026-01-01T00:00:00"}'),
        ("bandwidth", "q1.a", b'{"schema":9,"sampled_at":"2026-01-01T00:00:00Z"}'),
        ("bandwidth", "q1.a", b'{"schema":1}'),
        ("bandwidth", "nothing", b"{}"),
        ("facts", "disk.a", b"{not json"),
        ("facts", "disk.a", b""),
    ],
)
def test_an_invalid_entry_is_rejected_and_the_previous_value_stays(bucket, key, data):
    snapshot = Snapshot()
    reader = LiveDataReader(snapshot.live, SOURCES)
    reader.apply("bandwidth", "q1.a", encode_sample(sample(3.0)), T0)
    with pytest.raises(DecodeError):
        reader.apply(bucket, key, data, T0)
    assert snapshot.live.samples("q1").sample("a") == sample(3.0)


def test_a_supposition_keeps_the_time_of_the_pods_binding():
    snapshot = Snapshot()
    snapshot.set_node(a_node("a"))
    snapshot.place(a_pod("web"), "a", bound_at=5.0)
    with snapshot.supposing(removed=["uid-web"]):
        assert snapshot.placed("uid-web") is None
    assert snapshot.placed("uid-web").bound_at == 5.0
