"""Which consumers are declared, and what the names of a berth are on a server."""

from datetime import timedelta

import pytest

from berth.bus.settings import TopologySettings
from berth.bus.topology import PENDING, Names, declared_consumer, declared_consumers, declared_streams

SERVER_CLOSES_A_SILENT_CONNECTION = timedelta(minutes=2) * 3
"""nats-server's `ping_interval`, and one more than its `ping_max` of them."""


def test_a_marker_outlives_the_connection_of_a_paused_reader_and_is_not_kept_for_long():
    assert SERVER_CLOSES_A_SILENT_CONNECTION < TopologySettings().marker_ttl <= timedelta(minutes=10)


def test_consumers_are_declared_by_name():
    settings = TopologySettings()
    scorer = declared_consumer(settings, PENDING, "scorer")
    binder = declared_consumer(settings, "RANKED", "binder-12")
    assert scorer is not None
    assert scorer.ack_wait == settings.scorer_ack_wait
    assert binder is not None
    assert binder.ack_wait == settings.binder_ack_wait
    assert declared_consumer(settings, PENDING, "binder-12") is None


@pytest.mark.parametrize(
    ("name", "on_the_server"),
    [
        ("berth.pending.p.default.web-0", "east.berth.pending.p.default.web-0"),
        ("$KV.cluster.node.a", "$KV.east-cluster.node.a"),
        (">", ">"),
    ],
)
def test_a_subject_has_the_prefix_on_the_server_and_nowhere_else(name: str, on_the_server: str):
    names = Names("east")
    assert names.filter(name) == on_the_server
    assert names.own_subject(on_the_server) == name
    assert Names().filter(name) == Names().own_subject(name) == name


@pytest.mark.parametrize(("name", "on_the_server"), [("RANKED", "east-RANKED"), ("KV_facts", "KV_east-facts")])
def test_a_stream_has_the_prefix_in_its_buckets_name(name: str, on_the_server: str):
    assert Names("east").stream(name) == on_the_server
    assert Names("east").own_stream(on_the_server) == name
    assert Names().stream(name) == Names().own_stream(name) == name


@pytest.mark.parametrize("prefix", ["", "east"])
def test_the_store_of_a_subject_is_named_without_prefix(prefix: str):
    names = Names(prefix)
    assert names.store_of(names.subject("berth.decision.p.default.web-0")) == "DECISIONS"
    assert names.store_of(names.filter("$KV.cluster.node.a")) == "cluster"
    assert names.store_of("elsewhere") == "elsewhere"


def test_two_berths_declare_nothing_in_common():
    def declared(prefix: str) -> set[str]:
        settings = TopologySettings(prefix=prefix)
        streams = declared_streams(settings)
        consumers = {f"{one.stream} {one.name}" for one in declared_consumers(settings)}
        return consumers | {each for one in streams for each in (one.name, *one.subjects)}

    found = [declared(prefix) for prefix in ("", "east", "east-2", "west")]
    assert len(set.union(*found)) == sum(map(len, found)) > 0


@pytest.mark.parametrize("prefix", ["", "east"])
def test_the_stream_of_a_subject_is_the_one_that_declares_it(prefix: str):
    names = Names(prefix)
    for stream in declared_streams(TopologySettings(prefix=prefix)):
        (subject,) = stream.subjects
        assert names.stream_of(subject.replace(">", "x.y")) == stream.name
