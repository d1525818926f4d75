"""What the console's page is sent: everything once, then what changed, and never more than its bounds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.bus.interface import ConsumerState, Entry, ServiceInstance, StoredMessage, StreamState
from berth.bus.topology import BANDWIDTH, CLUSTER, DECISIONS, PENDING
from berth.messages.attempts import DeadLetter, Decision, Outcome, Reason
from berth.messages.encoding import encode
from berth.messages.livedata import MeasuredUsage, NodeSample, encode_sample
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Term, key
from berth_cli.console import nodetable
from berth_cli.console.decisionlog import (
    BARS,
    KEPT,
    MOST_IN_A_FRAME,
    MOST_NAMES,
    OTHERS,
    TEXT_CHARACTERS,
    WINDOW_SECONDS,
)
from berth_cli.console.model import ConsoleModel
from berth_cli.console.nodetable import CORDONED
from berth_cli.mirror import MirrorReader
from harness.builders.objects import a_node, a_pod, first_attempt

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ZONE = "topology.kubernetes.io/zone"


class Watched:
    """A model on a mirror that a test writes to."""

    def __init__(self) -> None:
        self.mirror = MirrorReader()
        self.model = ConsoleModel()
        self.now = NOW
        self._sequence = 0

    def connect(self, **given: bool) -> None:
        source = "cluster uid-1, NATS nats://there:4222"
        self.model.connected(self.mirror, source=source, at=self.now.timestamp(), **given)

    def write(self, name: str, data: bytes | None, bucket: str = CLUSTER) -> None:
        self._sequence += 1
        self.mirror.apply(bucket, Entry(key=name, sequence=self._sequence, data=data, time=self.now))

    def node(self, name: str, **fields: object) -> None:
        self.write(key("node", name), entry(a_node(name, **fields)))

    def pod(self, name: str, node: str, **fields: object) -> None:
        self.write(key("pod", f"uid-{name}"), entry(a_pod(name, node=node, **fields)))

    def decide(self, *decisions: Decision) -> None:
        self.model.decided([stored(decision, self.now) for decision in decisions])

    def decide_at(self, at: datetime, decision: Decision) -> None:
        self.model.decided([stored(decision, at)])

    def changes(self, *, every_second: bool = False):
        return self.model.changes(now=self.now.timestamp(), every_second=every_second)

    def settled(self):
        """The frame in which Decisions that were held come."""
        self.changes()
        return self.changes(every_second=True)

    def whole(self):
        return self.model.whole(now=self.now.timestamp())


def entry(thing: object) -> bytes:
    return encode_entry(MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing))))


def a_decision(name: str = "web", outcome: Outcome = Outcome.BOUND, **fields: object) -> Decision:
    pod = a_pod(name)
    given = {"attempt": str(first_attempt(pod)), "profile": "berth", "epoch": 1, "namespace": "default", "node": "a"}
    return Decision(outcome=outcome, pod=name, uid=pod.uid, **{**given, **fields})


def stored(message: object, at: datetime, data: bytes | None = None) -> StoredMessage:
    payload = encode(message) if data is None else data
    return StoredMessage(subject="berth.decision.berth.default.web", sequence=1, data=payload, time=at)


@pytest.fixture
def watched() -> Watched:
    watched = Watched()
    watched.node("a", labels={ZONE: "west", "pool": "gpu"}, cpu="4", memory="8Gi")
    watched.node("b", unschedulable=True)
    watched.pod("old", "a", cpu="500m")
    watched.connect()
    watched.changes()
    return watched


def rows(frame) -> dict[str, int]:
    return {facts.name: facts.row for facts in frame.nodes}


def test_a_page_begins_with_every_node_and_what_is_on_it(watched):
    frame = watched.whole()
    facts = {each.name: each for each in frame.nodes}
    loads = {each.row: each for each in frame.loads}
    assert frame.whole
    assert frame.bus.connected
    assert (facts["a"].zone, facts["a"].cpu, facts["a"].memory, facts["a"].pods) == ("west", 4000, 8 << 30, 110)
    assert {frame.labels[number] for number in facts["a"].labels} == {f"{ZONE}=west", "pool=gpu"}
    assert facts["b"].flags & CORDONED
    assert (loads[facts["a"].row].pods, loads[facts["a"].row].cpu) == (1, 500)
    assert loads[facts["a"].row].profiles == {"berth": 1}


def test_nothing_is_sent_while_nothing_changes(watched):
    assert watched.changes().is_empty


def test_only_the_node_that_a_pod_came_to_is_sent(watched):
    known = rows(watched.whole())
    watched.pod("new", "b", cpu="250m")
    frame = watched.changes()
    assert [(load.row, load.pods, load.cpu) for load in frame.loads] == [(known["b"], 1, 250)]
    assert frame.nodes == []
    assert watched.changes().is_empty


def test_a_pod_that_has_gone_leaves_its_node(watched):
    watched.write(key("pod", "uid-old"), None)
    assert [load.pods for load in watched.changes().loads] == [0]


def test_a_node_that_has_gone_is_named_once(watched):
    row = rows(watched.whole())["b"]
    watched.write(key("node", "b"), None)
    assert watched.changes().gone == [row]
    assert watched.changes().is_empty
    assert set(rows(watched.whole())) == {"a"}


def test_a_node_that_takes_the_row_of_another_has_none_of_its_numbers(watched):
    row = rows(watched.whole())["b"]
    watched.pod("new", "b")
    watched.changes()
    watched.write(key("pod", "uid-new"), None)
    watched.write(key("node", "b"), None)
    watched.node("c")
    frame = watched.changes()
    assert rows(frame) == {"c": row}
    assert [(load.row, load.pods) for load in frame.loads] == [(row, 0)]


def test_labels_that_are_new_get_the_next_numbers(watched):
    known = watched.whole().labels
    watched.node("c", labels={"pool": "gpu", "disk": "ssd"})
    frame = watched.changes()
    assert frame.labels_from == len(known)
    assert frame.labels == ["disk=ssd"]
    assert [[*known, *frame.labels][number] for number in frame.nodes[0].labels] == ["disk=ssd", "pool=gpu"]


def test_labels_that_change_for_ever_are_left_out_at_a_bound(watched, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nodetable, "MOST_TEXTS", 4)
    for number in range(10):
        watched.node("c", labels={"build": str(number)})
        watched.changes()
    assert len(watched.whole().labels) == 4


def test_a_node_has_a_bounded_number_of_labels_of_bounded_length(watched):
    watched.node("c", labels={f"label-{number}": "x" * 500 for number in range(200)})
    (facts,) = watched.changes().nodes
    assert len(facts.labels) == nodetable.MOST_LABELS
    assert max(map(len, watched.whole().labels)) == nodetable.MOST_CHARACTERS


def test_measured_use_is_sent_beside_traffic_of_another_query(watched):
    use = NodeSample(cpu=MeasuredUsage(average=700.0), memory=MeasuredUsage(average=2.0**30), sampled_at=NOW)
    watched.write(key("l1", "a"), encode_sample(use), BANDWIDTH)
    watched.write(key("q1", "a"), encode_sample(NodeSample(receive=5.0, sampled_at=NOW)), BANDWIDTH)
    frame = watched.changes(every_second=True)
    assert [(each.cpu, each.memory, each.sampled_at) for each in frame.usage] == [(700.0, 2.0**30, NOW.timestamp())]
    assert [each.receive for each in frame.traffic] == [5.0]
    assert watched.changes(every_second=True).usage == []
    watched.write(key("l1", "a"), None, BANDWIDTH)
    frame = watched.changes(every_second=True)
    assert ([each.sampled_at for each in frame.usage], frame.traffic) == ([None], [])


def test_traffic_is_sent_once_a_second_and_only_where_it_is_another(watched):
    sample = NodeSample(receive=5.0, transmit=None, capacity=10.0, sampled_at=NOW)
    watched.write(key("q1", "a"), encode_sample(sample), BANDWIDTH)
    assert watched.changes().traffic == []
    (traffic,) = watched.changes(every_second=True).traffic
    assert (traffic.receive, traffic.transmit, traffic.capacity) == (5.0, None, 10.0)
    assert watched.changes(every_second=True).traffic == []
    watched.write(key("q1", "a"), None, BANDWIDTH)
    (traffic,) = watched.changes(every_second=True).traffic
    assert traffic.sampled_at is None


def test_a_decision_says_how_long_each_stage_took(watched):
    created, asked = NOW - timedelta(seconds=3), NOW - timedelta(milliseconds=900)
    watched.pod("web", "a", metadata={"creation_timestamp": created.isoformat()})
    watched.decide(a_decision(asked_at=asked, ranked_at=asked + timedelta(milliseconds=4)))
    frame = watched.settled()
    (line,) = frame.decisions
    assert (line.pod, line.outcome, line.node) == ("web", "bound", "a")
    assert line.asked - line.created == pytest.approx(2.1)
    watched.now += timedelta(seconds=1)
    figures = watched.changes(every_second=True).figures
    assert figures.waited.p50 == 2.0  # whole seconds: 2.1 s of which a second's part is unknown
    assert figures.ranked.p50 == pytest.approx(0.004, abs=1e-5)
    assert figures.decided.p99 == pytest.approx(0.896, abs=1e-5)


def test_a_decision_waits_until_the_mirror_has_had_time_to_show_its_pod(watched):
    watched.decide(a_decision())
    assert watched.changes().decisions == []
    watched.pod("web", "a", metadata={"creation_timestamp": "2026-01-02T03:04:00Z"})
    (line,) = watched.changes().decisions
    assert line.created is not None


def test_the_reason_of_a_conflict_is_a_sentence(watched):
    watched.decide(a_decision(outcome=Outcome.CONFLICT, reason=Reason.CHANGED, message="x", node=""))
    (line,) = watched.settled().decisions
    assert line.text == "it was changed or gated after the ranking"


def test_decisions_that_are_too_many_are_counted_and_the_newest_are_sent(watched):
    watched.decide(*(a_decision(f"web-{number}") for number in range(MOST_IN_A_FRAME + 100)))
    frame = watched.settled()
    assert (len(frame.decisions), frame.left_out) == (MOST_IN_A_FRAME, 100)
    assert frame.decisions[-1].pod == f"web-{MOST_IN_A_FRAME + 99}"
    assert len(watched.whole().decisions) == MOST_IN_A_FRAME + 100


def test_a_page_that_comes_late_has_the_last_decisions(watched):
    for number in range(KEPT + 500):
        watched.decide(a_decision(f"web-{number}"))
        if number % 100 == 0:
            watched.changes()
    watched.settled()
    lines = watched.whole().decisions
    assert len(lines) == KEPT
    assert lines[-1].pod == f"web-{KEPT + 499}"


def test_outcomes_profiles_and_namespaces_of_the_last_minute_are_counted(watched):
    watched.decide(a_decision("one"), a_decision("two", profile="gpu", namespace="shop"))
    watched.decide(a_decision("two", Outcome.UNSCHEDULABLE, attempt="uid-two.1.2", node=""))
    watched.now += timedelta(seconds=1)
    figures = watched.changes(every_second=True).figures
    assert figures.outcomes == {"bound": 2, "unschedulable": 1}
    assert figures.profiles == {"berth": 2, "gpu": 1}
    assert figures.namespaces == {"default": 2, "shop": 1}
    assert figures.repeated == 1
    assert figures.series["bound"][-1] == 2
    assert len(figures.series["bound"]) == WINDOW_SECONDS
    watched.now += timedelta(seconds=WINDOW_SECONDS)
    assert watched.changes(every_second=True).figures.outcomes == {}


def test_the_last_15_minutes_and_the_last_hour_are_counted_in_longer_bars(watched):
    for minutes in (50, 10, 0):
        watched.decide_at(NOW - timedelta(minutes=minutes), a_decision(f"web-{minutes}"))
    frame = watched.changes(every_second=True)
    quarter, hour = frame.longer
    assert (quarter.seconds, quarter.step, sum(quarter.series["bound"])) == (900, 15, 2)
    assert (hour.seconds, hour.step, hour.outcomes) == (3600, 60, {"bound": 3})
    assert hour.series["bound"][-1] == 1  # the present bar, which is not over
    assert [len(each.series["bound"]) for each in frame.longer] == [BARS, BARS]
    watched.now += timedelta(seconds=1)
    assert watched.changes(every_second=True).longer is None
    assert watched.whole().longer == frame.longer
    watched.now += timedelta(minutes=55)
    assert watched.changes(every_second=True).longer[1].outcomes == {"bound": 1}


@pytest.mark.parametrize("lacks_older", [False, True])
def test_figures_say_from_when_on_decisions_are_known(watched, lacks_older):
    watched.connect(lacks_older=lacks_older)
    watched.decide_at(NOW - timedelta(minutes=5), a_decision())
    _, hour = watched.changes(every_second=True).longer
    assert hour.since == (NOW - timedelta(minutes=5)).timestamp() if lacks_older else hour.begin


def test_bars_of_an_hour_are_bounded_whatever_the_clock_says(watched):
    for minutes in range(0, 60 * 24 * 30, 7):
        watched.decide_at(NOW + timedelta(minutes=minutes), a_decision())
    assert all(len(bars._bars) <= 2 * BARS + 1 for bars in watched.model._decisions._bars)


def test_namespaces_that_are_too_many_are_counted_together(watched):
    watched.decide(*(a_decision(f"web-{number}", namespace=f"ns-{number}") for number in range(MOST_NAMES + 50)))
    watched.now += timedelta(seconds=1)
    counted = watched.changes(every_second=True).figures.namespaces
    assert sum(counted.values()) == MOST_NAMES + 50
    assert len(counted) < 20
    assert counted[OTHERS] >= 50


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"{}", id="no fields"),
        pytest.param(b"[" * 100_000, id="endless nesting"),
        pytest.param(encode(a_decision())[:-1] + b',"asked_at":"0001-01-01T00:00:00Z"}', id="no time of a clock"),
    ],
)
def test_a_decision_that_cannot_be_read_is_counted_and_shown_nowhere(watched, data):
    watched.model.decided([stored(None, NOW, data)])
    frame = watched.settled()
    assert watched.model.unreadable + len(frame.decisions) == 1


def test_texts_are_cut(watched):
    watched.decide(a_decision("x" * 5000, Outcome.ERROR, message="y" * 100_000, namespace="n" * 5000))
    (line,) = watched.settled().decisions
    assert max(len(line.pod), len(line.namespace)) == 253
    assert len(line.text) <= TEXT_CHARACTERS + 3


def test_a_dead_letter_that_cannot_be_read_is_shown_as_one(watched):
    letter = DeadLetter(subject="berth.ranked.berth.default.dies", reason="five exceptions in a row", service="binder")
    watched.model.dead_lettered([stored(letter, NOW), stored(None, NOW, b"rubbish")])
    known, unknown = watched.changes().dead
    assert (known.service, known.reason) == ("binder", "five exceptions in a row")
    assert "decoding" in unknown.reason
    assert watched.changes().dead == []


def services(**stats: object) -> Iterable[ServiceInstance]:
    leading = {"leading": {"number": 3, "seconds": 5.0}, **stats}
    return [ServiceInstance(service="berth-watcher", identity="host_1", version="1", stats=leading)]


def test_queues_windows_and_what_needs_attention_are_those_of_the_leading_watcher(watched):
    watched.model.services_answered(
        services(queues={"active": 4, "gated": 1}, in_flight={"berth": 7}, window={"berth": 64}, draining=True)
    )
    said = watched.changes().services
    assert said.queues == {"active": 4, "gated": 1}
    assert (said.in_flight, said.window, said.draining) == ({"berth": 7}, {"berth": 64}, True)
    assert any("no scorer answers" in sentence for sentence in said.attention)
    assert watched.changes().services is None


def test_processes_and_streams_are_listed_with_their_lag(watched):
    consumer = ConsumerState(name="scorer", undelivered=7, unacknowledged=5, redelivered=1)
    times = {"now": NOW, "first_time": NOW - timedelta(seconds=9)}
    pending = StreamState(stream=PENDING, messages=12, bytes=9, last_sequence=12, consumers=(consumer,), **times)
    decisions = StreamState(stream=DECISIONS, messages=3, bytes=9, last_sequence=3, **times)
    gone = [{"service": "scorer", "identity": "host_9", "seconds": 70.0}]
    scorer = ServiceInstance(
        service="berth-scorer", identity="host_2", version="2", stats={"readiness": "starting", "held": 4, "view": 0.25}
    )
    watched.model.services_answered([*services(gone=gone), scorer], [pending, decisions])
    said = watched.changes().services
    assert [(one.name, one.state, one.leads, one.ready, one.silent) for one in said.processes] == [
        ("watcher host_1", "leads for 5.0 s, term 3", True, True, False),
        ("scorer host_2", "starting", False, False, False),
        ("scorer host_9", "silent for 1 min 10 s", False, False, True),
    ]
    assert (said.processes[1].version, said.processes[1].figures) == ("2", "held 4, view 0.2")
    waiting, kept = said.streams
    assert (waiting.name, waiting.oldest, waiting.is_slow, waiting.consumers[0].undelivered) == (PENDING, 9.0, True, 7)
    assert (kept.is_slow, kept.consumers) == (False, [])


def test_what_processes_say_of_themselves_is_bounded(watched):
    long = "x" * 100_000
    stats = {
        "configuration": long,
        "readiness": long,
        "gone": [{"service": long, "identity": long, "seconds": 1.0}],
        long: long,
    }
    many = [
        ServiceInstance(service=long, identity=f"{number}{long}", version=long, stats=stats) for number in range(300)
    ]
    consumers = [ConsumerState(name="c", undelivered=1, unacknowledged=1, redelivered=1)] * 300
    state = StreamState(
        stream=PENDING, messages=1, bytes=1, last_sequence=1, now=NOW, first_time=NOW, consumers=consumers
    )
    watched.model.services_answered([*services(**stats), *many], [state])
    assert len(msgspec.json.encode(watched.changes().services)) < 1_000_000


def test_a_bus_that_is_away_is_said_and_what_was_there_stays(watched):
    watched.model.disconnected("connection refused", at=100.0)
    watched.model.disconnected("connection refused again", at=160.0)
    bus = watched.changes().bus
    assert (bus.connected, bus.reason, bus.since) == (False, "connection refused again", 100.0)
    assert bus.source == "cluster uid-1, NATS nats://there:4222", "what is shown is from there"
    assert set(rows(watched.whole())) == {"a", "b"}


def test_a_bus_that_is_back_replaces_everything(watched):
    watched.decide(a_decision())
    watched.settled()
    watched.model.disconnected("gone", at=100.0)
    watched.mirror = MirrorReader()
    watched.node("z")
    watched.connect()
    frame = watched.whole()
    assert set(rows(frame)) == {"z"}
    assert frame.decisions == []
    assert frame.bus.connected


def test_an_old_mirror_is_said(watched):
    watched.write(watermark_key("node"), encode_watermark(Watermark(term=Term(1), resource_version="1")))
    assert watched.changes(every_second=True).mirror_is_current
    watched.now += timedelta(minutes=2)
    frame = watched.changes(every_second=True)
    assert (frame.mirror_age, frame.mirror_is_current) == (120.0, False)


def test_while_the_bus_is_away_no_figures_say_that_nothing_happens(watched):
    watched.decide(a_decision())
    watched.now += timedelta(seconds=1)
    assert watched.settled().figures.outcomes == {"bound": 1}
    watched.model.disconnected("gone", at=100.0)
    watched.now += timedelta(seconds=WINDOW_SECONDS)
    assert watched.changes(every_second=True).figures is None
    assert watched.whole().figures.outcomes == {"bound": 1}


def test_what_was_read_before_pages_were_sent_everything_comes_once(watched):
    watched.decide(*(a_decision(f"web-{number}") for number in range(KEPT)))
    watched.model.dead_lettered([stored(None, NOW, b"rubbish")])
    watched.model.settle(now=watched.now.timestamp())
    frame = watched.whole()
    assert (len(frame.decisions), len(frame.dead)) == (KEPT, 1)
    for _ in range(2):
        later = watched.changes()
        assert (later.decisions, later.left_out, later.dead) == ([], 0, [])


def a_letter(number: int) -> StoredMessage:
    return StoredMessage(subject="berth.dead.x", sequence=number, data=b"rubbish", time=NOW)


def kept_in(stream: range, last: int) -> StreamState:
    first = stream.start if stream else last + 1
    return StreamState(
        stream="dead", messages=len(stream), bytes=0, first_sequence=first, last_sequence=last, now=NOW, first_time=NOW
    )


def test_dead_letters_that_nats_keeps_no_more_are_dropped(watched):
    watched.model.dead_lettered([a_letter(number) for number in range(951, 1001)])
    watched.model.counted_dead(kept_in(range(1, 1001), last=1000))
    frame = watched.changes()
    assert (len(frame.dead), frame.dead_kept.letters) == (50, 1000)
    watched.model.counted_dead(kept_in(range(999, 1001), last=1000))
    frame = watched.changes()
    assert (frame.dead, frame.dead_kept.letters, frame.dead_kept.first) == ([], 2, 999)
    assert [line.sequence for line in watched.whole().dead] == [999, 1000]
    watched.model.counted_dead(kept_in(range(0), last=1000))
    assert watched.changes().dead_kept.letters == 0
    assert (watched.whole().dead, watched.whole().dead_kept.letters) == ([], 0)
    assert watched.changes().is_empty


def test_a_dead_letter_that_came_after_its_stream_was_counted_counts_too(watched):
    watched.model.counted_dead(kept_in(range(0), last=6))
    watched.model.dead_lettered([a_letter(7)])
    assert watched.changes().dead_kept.letters == 1
    watched.model.counted_dead(kept_in(range(0), last=6))  # the answer was on its way
    assert watched.whole().dead_kept.letters == 1
    watched.model.counted_dead(kept_in(range(7, 8), last=7))
    assert [line.sequence for line in watched.whole().dead] == [7]
    assert watched.whole().dead_kept.letters == 1
