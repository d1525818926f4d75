"""The state of the pipeline, as a table and as JSON."""

from datetime import UTC, datetime, timedelta

import msgspec

from berth.bus.interface import ConsumerState, ServiceInstance, StreamState
from berth_cli.commands.top import NodeLine, Overview, as_json, overview_lines
from berth_cli.rendering import natural
from harness.worlds.printed import printed, words

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def before(seconds):
    return NOW - timedelta(seconds=seconds)


def state(stream, consumers=(), messages=0, oldest=None):
    first = None if oldest is None else before(oldest)
    return StreamState(
        stream=stream, messages=messages, bytes=1500, last_sequence=9, now=NOW, first_time=first, consumers=consumers
    )


SCORER = ConsumerState(name="scorer", undelivered=5, unacknowledged=2, redelivered=1)
NODES = [
    NodeLine(name="node-10", pods=3, cpu=(500, 1000), memory=(0, 4e9)),
    NodeLine(name="node-9", pods=3, cpu=(250, 1000), memory=(1e9, 4e9)),
    NodeLine(name="node-1", pods=7, cpu=(900, 1000), memory=(0, 0)),
]


def overview(**changes):
    parts = {
        "now": NOW,
        "source": "cluster uid-1, NATS nats://there:4222",
        "streams": [state("PENDING", (SCORER,), messages=7, oldest=2.5), state("dead")],
        "services": [
            ServiceInstance(service="berth-scorer", identity="scorer-1", version="0.1.0", stats={"answered": 7})
        ],
        "watermarks": {"node": before(3), "pod": before(1)},
        "outcomes": {"bound": 200, "conflict": 3},
        "window": timedelta(seconds=10),
        "nodes": NODES,
    }
    return Overview(**{**parts, **changes})


def lines(rows=None, width=100, **changes):
    return printed(*overview_lines(overview(**changes), rows=rows), width=width)


def test_a_queue_has_its_consumer_and_the_age_of_its_oldest_message():
    assert ["PENDING", "scorer", "7", "5", "2", "1", "2.5", "s", "1.5", "kB"] in words(lines())


def test_the_rate_and_the_lag_of_the_oldest_watermark_are_printed():
    words = "bound 200, conflict 3 (ranked again); 20 pods/s bound; mirror current (confirmed 3.0 s ago)"
    assert f"decisions of the last 10 s: {words}" in lines(width=160)


def test_a_mirror_without_watermarks_is_reported():
    assert any(line.endswith("no watcher has written yet") for line in lines(watermarks={}, width=160))


def test_no_services_are_reported():
    assert "no service answers" in lines(services=[])


def test_nodes_with_the_most_pods_come_first():
    names = [row[0] for row in words(lines()) if row and row[0].startswith("node-")]
    assert names == ["node-1", "node-9", "node-10"]
    assert sorted(["node-10", "node-9", "node"], key=natural) == ["node", "node-9", "node-10"]


def test_requests_are_a_share_of_allocatable():
    assert ["node-9", "3", "25", "%", "25", "%"] in words(lines())
    assert ["node-1", "7", "90", "%", "-"] in words(lines())


def test_traffic_has_columns_only_if_it_is_measured():
    assert not any("RECEIVE" in line for line in lines())
    measured = NodeLine(
        name="node-2",
        pods=1,
        cpu=(0, 1),
        memory=(0, 1),
        receive=2.5e6,
        transmit=None,
        sampled_at=before(4),
    )
    result = words(lines(nodes=[*NODES, measured]))
    assert ["NODE", "PODS", "CPU", "REQ", "MEM", "REQ", "RECEIVE", "TRANSMIT", "AGE"] in result
    assert ["node-2", "1", "0", "%", "0", "%", "2.5", "MB/s", "4.0", "s"] in result


def test_measured_load_has_columns_beside_the_requests_only_if_it_is_measured():
    assert not any("USED" in line for line in lines())
    loaded = NodeLine(
        name="node-2",
        pods=1,
        cpu=(500, 2000),
        memory=(1e9, 4e9),
        cpu_used=1500,
        memory_used=2e9,
        usage_sampled_at=before(4),
    )
    result = words(lines(nodes=[*NODES, loaded]))
    assert ["NODE", "PODS", "CPU", "REQ", "MEM", "REQ", "CPU", "USED", "MEM", "USED", "AGE"] in result
    assert ["node-2", "1", "25", "%", "25", "%", "75", "%", "50", "%", "4.0", "s"] in result
    assert ["node-9", "3", "25", "%", "25", "%"] in result  # no sample


def test_devices_have_a_column_only_if_there_are_some():
    assert not any("DEVICES" in line for line in lines())
    with_gpus = NodeLine(name="node-2", pods=1, cpu=(0, 1), memory=(0, 1), devices=(2, 8))
    result = words(lines(nodes=[*NODES, with_gpus]))
    assert ["NODE", "PODS", "CPU", "REQ", "MEM", "REQ", "DEVICES"] in result
    assert ["node-2", "1", "0", "%", "0", "%", "2", "of", "8"] in result


def test_a_small_terminal_has_the_first_nodes_and_a_count():
    assert lines(rows=2)[-1] == "and 1 more (--all)"


SAME = {"configuration": "aa6fe9f5f519", "profiles": {}, "settings": "s", "readiness": "ok"}
FOUR = [
    ServiceInstance(
        service=f"berth-{name}",
        identity=f"vm_820b9159-8a64-4f7c-b08b-2926244def92_{name}",
        version="0.1.0",
        stats={**SAME, "leading": {"number": 12, "seconds": 4000.0}, "answered": 123456},
    )
    for name in ("binder", "metrics-collector", "watcher")
]


def test_names_digests_and_leaders_are_whole_at_80_columns():
    rows = words(lines(width=80, services=FOUR))
    for name in ("binder", "metrics-collector", "watcher"):
        (row,) = [row for row in rows if row and row[0] == name]
        assert row[1:7] == ["aa6fe9f5f519", "leads", "for", "1", "h", "6"]


def test_versions_are_shown_when_they_differ():
    assert not any("VERSION" in line for line in lines(services=FOUR))
    later = ServiceInstance(service="berth-scorer", identity="scorer-1", version="0.2.0", stats=SAME)
    rows = words(lines(width=120, services=[*FOUR, later]))
    assert ["WHO", "VERSION", "CONFIG", "STATE", "SAYS"] in rows
    assert ["scorer-1", "0.2.0", "aa6fe9f5f519", "ready"] in rows


def test_the_output_fits_a_narrow_terminal():
    assert all(len(line) <= 80 for line in lines(width=80))


def test_json_has_every_node_and_ages_in_seconds():
    result = msgspec.json.decode(msgspec.json.encode(as_json(overview())))
    assert result["mirror_age_seconds"] == 3.0
    assert result["streams"][0]["oldest_age_seconds"] == 2.5
    assert result["streams"][0]["consumers"][0]["redelivered"] == 1
    assert [node["node"] for node in result["nodes"]] == ["node-1", "node-9", "node-10"]
    assert result["services"][0]["stats"] == {"answered": 7}
