"""The scorer's core, event by event: which messages are ranked, answered, kept alive and returned, and when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.node import Node
from berth.api.pod import Pod, PodResourceClaim
from berth.bus.interface import Entry
from berth.cluster.pods import Trait
from berth.framework.extending import Extension
from berth.messages.attempts import Pending, Positions
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth.observability.tracing import UnexportedSpan
from berth.plugins.dynamicresources.plugin import DynamicResources
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker
from berth_scorer.core import HEARTBEAT_SECONDS, LONG_SECONDS, SUSPECT_DELIVERIES, ScorerCore
from berth_scorer.events import (
    AckPending,
    AskExtenders,
    ClearSuspect,
    CountSuspect,
    DeadLetterStored,
    Effect,
    Event,
    ExtendersAnswered,
    ExtendersFailed,
    KeepAlive,
    LogFailure,
    MirrorRead,
    NakPending,
    PendingReceived,
    PublishRanked,
    RankedNotStored,
    RankedRefused,
    RankedStored,
    SetAsidePending,
    SuspectCounted,
    SuspectNotCounted,
    WriteDeadLetter,
)
from berth_scorer.questions import MOST_ROUNDS
from harness.builders.objects import a_container, a_node, a_pod, pod_requesting

STORED_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class FakeDelivery:
    """A delivery of PENDING; the core only reads it."""

    sequence: int
    delivered: int = 1
    subject: str = "berth.pending.berth.default.web"
    data: bytes = b"{}"
    time: datetime = STORED_AT
    headers: dict[str, str] = field(default_factory=dict)


MANAGED = "example.com/license"
EXTENDER = ExtenderConfiguration(
    url_prefix="http://extender", name="extender", filter_verb="filter", managed_resources=frozenset({MANAGED})
)


class Bench:
    """A core, the time that it is given, and messages by the names of their pods."""

    def __init__(self, ranker: Ranker | None = None) -> None:
        self.now = 100.0
        self.core = ScorerCore(
            ranker=ranker or ranker_of(),
            stopwatch=lambda: 0.0,
            spanning=lambda _held: UnexportedSpan(None),
            position_wait=timedelta(seconds=1),
        )
        self._position = 0
        self._sequence = 0

    def handle(self, *events: Event, may_continue: Callable[[], bool] = lambda: True) -> list[Effect]:
        """What the core does, but for the heartbeat."""
        effects = self.core.handle(events, self.now, may_continue)
        return [each for each in effects if not isinstance(each, KeepAlive)]

    def mirror(self, *objects: Node | Pod) -> None:
        entries = []
        for each in objects:
            self._position += 1
            name = key("node", each.metadata.name) if isinstance(each, Node) else key("pod", each.metadata.uid)
            data = encode_entry(MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(each))))
            entries.append(Entry(key=name, data=data, sequence=self._position, time=STORED_AT))
        self.handle(MirrorRead(entries=entries, position=self._position))

    def message(self, pod: Pod, *, after: int = 0, delivered: int = 1) -> PendingReceived:
        self._sequence += 1
        pending = Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod, after=Positions(cluster=after))
        delivery = FakeDelivery(sequence=self._sequence, delivered=delivered)
        return PendingReceived(delivery=delivery, pending=pending)

    def suspect(self, pod: Pod) -> PendingReceived:
        return self.message(pod, delivered=SUSPECT_DELIVERIES)


def ranker_of() -> Ranker:
    configuration = read_configuration(None)
    profiles = {name: replace(each, extenders=(EXTENDER,)) for name, each in profiles_of(configuration).items()}
    return Ranker(profiles=profiles, config=configuration.digest, identity="s1", best=8)


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.mirror(a_node("a", cpu="4"), a_node("b", cpu="4"))
    return made


def small(name: str) -> Pod:
    return pod_requesting(name, cpu="100m")


def extended(name: str, cpu: str = "100m") -> Pod:
    """A pod with the extender's resource."""
    container = a_container(cpu=cpu)
    limits = msgspec.structs.replace(container.resources, limits={MANAGED: "1"})
    return a_pod(name, containers=[msgspec.structs.replace(container, resources=limits)])


def of(kind: type, effects: list[Effect]) -> list:
    return [each for each in effects if isinstance(each, kind)]


def ranked(effects: list[Effect]) -> list[str]:
    """The names of the pods whose answers are published."""
    return [each.message.pod.metadata.name for each in of(PublishRanked, effects)]


# --- answers


def test_message_is_acknowledged_once_its_answer_is_stored(bench):
    message = bench.message(small("web"))
    effects = bench.handle(message)
    assert ranked(effects) == ["web"]
    assert of(AckPending, effects) == []
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=message.delivery)]
    assert bench.core.held == 0


def test_message_whose_answer_is_not_stored_is_redelivered(bench):
    message = bench.message(small("web"))
    bench.handle(message)
    assert bench.handle(RankedNotStored(sequence=1)) == [NakPending(delivery=message.delivery)]
    assert bench.core.held == 0


@pytest.mark.parametrize(("is_stored", "settled"), [(True, AckPending), (False, NakPending)])
def test_answer_that_is_never_stored_has_a_dead_letter_in_its_place(bench, is_stored, settled):
    message = bench.message(small("web"))
    bench.handle(message)
    (letter,) = bench.handle(RankedRefused(sequence=1, reason="no form of it fits"))
    assert (letter.reason, letter.in_place_of_answer, bench.core.held) == ("no form of it fits", True, 1)
    assert bench.handle(DeadLetterStored(sequence=1, is_stored=is_stored)) == [settled(delivery=message.delivery)]
    assert (bench.core.held, bench.core.is_idle) == (0, True)


def test_answer_names_when_its_pod_was_asked_for(bench):
    (publish, *_) = bench.handle(bench.message(small("web")))
    assert publish.message.asked_at == STORED_AT


def test_message_that_is_held_already_is_ranked_once_and_settled_by_its_newest_delivery(bench):
    first = bench.message(small("web"))
    again = PendingReceived(delivery=FakeDelivery(sequence=1, delivered=2), pending=first.pending)
    assert ranked(bench.handle(first)) == ["web"]
    assert bench.handle(again) == [SetAsidePending(delivery=first.delivery)]
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=again.delivery)]


def test_pod_that_the_watcher_refuses_is_passed_on_with_its_error(bench):
    message = bench.message(small("huge"))
    pending = msgspec.structs.replace(message.pending, error="the pod takes 9 bytes")
    (publish,) = bench.handle(PendingReceived(delivery=message.delivery, pending=pending))
    assert (publish.message.error, publish.message.candidates) == ("the pod takes 9 bytes", [])


def test_plugin_that_raises_is_called_once_and_gives_an_error_and_a_dead_letter(bench, monkeypatch):
    calls = []

    def fail(*_: object) -> None:
        calls.append(True)
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(Ranker, "answer", fail)
    log, letter, publish = bench.handle(bench.message(small("web")))
    assert calls == [True]
    assert (type(log), repr(log.error)) == (LogFailure, "ZeroDivisionError('by nothing')")
    assert (letter.reason, letter.in_place_of_answer) == ("ranking raised ZeroDivisionError: by nothing", False)
    assert publish.message.error == letter.reason


# --- time


def test_message_waits_for_its_positions_and_a_second_longer_than_the_view_moves(bench):
    assert bench.handle(bench.message(small("web"), after=9)) == []
    assert bench.core.due() == bench.now + 1.0
    bench.now += 1.0
    assert ranked(bench.handle()) == ["web"]


def test_message_is_ranked_as_soon_as_the_view_has_its_positions(bench):
    bench.handle(bench.message(small("web"), after=3))
    effects = bench.core.handle([MirrorRead(entries=[], position=3)], bench.now, lambda: True)
    assert ranked(effects) == ["web"]


def test_slice_that_is_over_leaves_the_rest_for_the_next_call(bench):
    messages = [bench.message(small(f"web-{number}")) for number in range(3)]
    assert ranked(bench.handle(*messages, may_continue=lambda: False)) == ["web-0"]
    assert bench.core.due() == 0.0
    assert ranked(bench.handle()) == ["web-1", "web-2"]
    assert bench.core.due() > bench.now


def test_other_pods_are_ranked_while_a_plugin_works_ahead_for_one(monkeypatch):
    left = [3]

    def prepare(_plugin, pod, _snapshot, may_continue):
        if pod.metadata.name == "slow":
            left[0] -= 1
            assert not may_continue()
        return pod.metadata.name != "slow" or not left[0]

    monkeypatch.setattr(DynamicResources, "prepare", prepare)
    monkeypatch.setattr(DynamicResources, "only_for", None)
    bench = Bench()
    bench.mirror(a_node("a", cpu="4"))
    messages = [bench.message(small(name)) for name in ("slow", "x", "y", "z")]
    named = [ranked(bench.handle(*messages, may_continue=lambda: False))]
    while bench.core.due() == 0.0:
        named.append(ranked(bench.handle(may_continue=lambda: False)))
    assert sorted(name for each in named for name in each) == ["slow", "x", "y", "z"]
    assert named.index(["x"]) < named.index(["slow"])
    assert len(named) == len(messages) + 2


def test_many_pods_for_which_a_plugin_works_ahead_for_long_keep_another_pod_for_one_of_them_at_most(monkeypatch):
    steps = []

    def prepare(_plugin, pod, _snapshot, _may_continue):
        steps.append(pod.metadata.name)
        return False

    monkeypatch.setattr(DynamicResources, "prepare", prepare)
    monkeypatch.setattr(DynamicResources, "only_for", Trait.RESOURCE_CLAIMS)
    bench = Bench()
    bench.mirror(a_node("a", cpu="4"))
    claims = [PodResourceClaim(name="gpu", resource_claim_name="gpu")]
    costly = [bench.message(a_pod(f"costly-{number}", resource_claims=claims)) for number in range(20)]
    found = bench.handle(*costly, bench.message(small("web")), may_continue=lambda: False)
    while not found:
        found = bench.handle(may_continue=lambda: False)
    assert ranked(found) == ["web"]
    assert len(steps) <= 2


def test_one_tenants_costly_pods_leave_a_pod_of_another_every_second_slice(monkeypatch):
    steps = []

    def prepare(_plugin, pod, _snapshot, _may_continue):
        steps.append(pod.metadata.namespace)
        return pod.metadata.namespace == "modest" and steps.count("modest") == 3

    monkeypatch.setattr(DynamicResources, "prepare", prepare)
    monkeypatch.setattr(DynamicResources, "only_for", Trait.RESOURCE_CLAIMS)
    bench = Bench()
    bench.mirror(a_node("a", cpu="4"))
    claims = [PodResourceClaim(name="gpu", resource_claim_name="gpu")]
    costly = [bench.message(a_pod(f"costly-{number}", resource_claims=claims)) for number in range(20)]
    modest = bench.message(a_pod("web", metadata={"namespace": "modest"}, resource_claims=claims))
    found = bench.handle(*costly, modest, may_continue=lambda: False)
    while not found:
        found = bench.handle(may_continue=lambda: False)
    assert ranked(found) == ["web"]
    assert len(steps) <= 8


def test_a_pod_for_which_a_plugin_never_has_done_is_ranked_all_the_same(monkeypatch):
    monkeypatch.setattr(DynamicResources, "prepare", lambda *_: False)
    monkeypatch.setattr(DynamicResources, "only_for", None)
    bench = Bench()
    bench.mirror(a_node("a", cpu="4"))
    found = bench.handle(bench.message(small("web")), may_continue=lambda: False)
    while not found and bench.now < 200.0:
        bench.now += 0.1
        found = bench.handle(may_continue=lambda: False)
    assert ranked(found) == ["web"]


def test_everything_held_is_kept_alive_every_second(bench):
    waiting, publishing = bench.message(small("waits"), after=9), bench.message(small("web"))
    bench.handle(waiting, publishing)
    bench.now += HEARTBEAT_SECONDS
    assert bench.core.due() <= bench.now
    (kept,) = of(KeepAlive, bench.core.handle([], bench.now, lambda: True))
    assert kept.deliveries == [waiting.delivery, publishing.delivery]
    assert of(KeepAlive, bench.core.handle([], bench.now + HEARTBEAT_SECONDS / 2, lambda: True)) == []


def test_core_that_closes_returns_what_is_not_ranked_and_settles_what_is_published(bench):
    published, waiting, asked = (
        bench.message(small("web")),
        bench.message(small("waits"), after=9),
        bench.message(extended("asked")),
    )
    bench.handle(published, waiting, asked)
    assert {each.delivery.sequence for each in bench.core.close()} == {2, 3}
    assert bench.core.due() is None
    late = bench.message(small("late"))
    assert bench.handle(late) == [NakPending(delivery=late.delivery, at_once=True)]
    assert bench.handle(ExtendersAnswered(sequence=3, extension=left("a"))) == []
    assert not bench.core.is_idle
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=published.delivery)]
    assert bench.core.is_idle


# --- suspects (docs/protocol.md, 6.4)


def test_suspect_is_ranked_once_it_is_counted_and_its_count_goes_with_its_answer(bench):
    message = bench.suspect(small("web"))
    assert [type(each) for each in bench.handle(message)] == [CountSuspect]
    assert ranked(bench.handle(SuspectCounted(tries=1))) == ["web"]
    ack, clear = bench.handle(RankedStored(sequence=1))
    assert (ack, type(clear)) == (AckPending(delivery=message.delivery), ClearSuspect)


@pytest.mark.parametrize(("delivered", "is_suspect"), [(1, False), (3, False), (4, True), (5, True)])
def test_message_is_suspect_from_its_fourth_delivery_on(bench, delivered, is_suspect):
    effects = bench.handle(bench.message(small("web"), delivered=delivered))
    assert bool(of(CountSuspect, effects)) is is_suspect


def test_pod_whose_former_attempt_stayed_in_pending_is_a_suspect_from_its_first_delivery(bench):
    message = bench.message(small("web"))
    pending = msgspec.structs.replace(message.pending, suspect=True)

    (count,) = bench.handle(PendingReceived(delivery=message.delivery, pending=pending))

    assert type(count) is CountSuspect


def test_scorer_says_which_attempts_it_has_held_for_seconds(bench):
    first = bench.message(extended("slow"))
    bench.handle(first)
    assert bench.core.held_for_long(bench.now) == []
    bench.now += LONG_SECONDS
    again = PendingReceived(delivery=FakeDelivery(sequence=1, delivered=2), pending=first.pending)
    bench.handle(bench.message(extended("new")), again)

    assert bench.core.held_for_long(bench.now) == ["uid-slow.1.1"]

    bench.core.close()
    assert bench.core.held_for_long(bench.now) == []


def test_suspect_is_counted_once_every_other_answer_is_stored(bench):
    assert of(CountSuspect, bench.handle(bench.message(small("web")), bench.suspect(small("suspect")))) == []
    assert len(of(CountSuspect, bench.handle(RankedStored(sequence=1)))) == 1


def test_nothing_is_ranked_from_the_count_of_a_suspect_until_its_answer_is_stored(bench):
    bench.handle(bench.suspect(small("suspect")))
    assert bench.handle(bench.message(small("web"))) == []
    assert ranked(bench.handle(SuspectCounted(tries=1))) == ["suspect"]
    assert ranked(bench.handle(RankedStored(sequence=1))) == ["web"]


def test_suspect_that_has_ended_three_scorers_is_given_up(bench, monkeypatch):
    monkeypatch.delattr(Ranker, "answer")  # no plugin runs for it
    bench.handle(bench.suspect(small("suspect")), bench.message(extended("other")))
    letter, publish, *others = bench.handle(SuspectCounted(tries=4))
    assert publish.message.error == letter.reason == "ranking ended 3 scorers before this one"
    assert others == []
    settled = bench.handle(RankedStored(sequence=1))
    assert [type(each) for each in settled] == [AckPending, ClearSuspect, AskExtenders]


def test_suspect_that_nats_does_not_count_is_redelivered_unranked_and_others_go_on(bench):
    message = bench.suspect(small("suspect"))
    bench.handle(message, bench.message(small("web")))
    give_back, *rest = bench.handle(SuspectNotCounted())
    assert give_back == NakPending(delivery=message.delivery)
    assert ranked(rest) == ["web"]
    assert bench.core.held == 1


def test_suspect_whose_answer_is_not_stored_has_not_ended_the_scorer(bench):
    bench.handle(bench.suspect(small("suspect")))
    bench.handle(SuspectCounted(tries=1))
    assert [type(each) for each in bench.handle(RankedNotStored(sequence=1))] == [NakPending, ClearSuspect]


def test_count_that_arrives_after_the_core_has_closed_is_taken_back(bench):
    bench.handle(bench.suspect(small("suspect")))
    bench.core.close()
    assert not bench.core.is_idle
    assert [type(each) for each in bench.handle(SuspectCounted(tries=1))] == [ClearSuspect]
    assert bench.core.is_idle


# --- extenders (ADR 25)


def left(*names: str, asked: tuple[str, ...] = ("a", "b")) -> Extension:
    return Extension(asked=frozenset(asked), left=frozenset(names))


def test_other_pods_are_ranked_while_extenders_are_asked(bench):
    effects = bench.handle(bench.message(extended("slow")), bench.message(small("web")))
    (question,) = of(AskExtenders, effects)
    assert (set(question.to_extend.nodes), question.nodes.keys()) == ({"a", "b"}, {"a", "b"})
    assert ranked(effects) == ["web"]
    (publish, _) = bench.handle(ExtendersAnswered(sequence=1, extension=left("b")))
    assert [each.node for each in publish.message.candidates] == ["b"]


def test_failure_of_an_extender_is_the_pods_error(bench):
    bench.handle(bench.message(extended("web")))
    (publish,) = bench.handle(ExtendersFailed(sequence=1, reason="code 500"))
    assert publish.message.error == "code 500"


def test_pod_that_comes_again_while_extenders_are_asked_is_asked_about_once(bench):
    message = bench.message(extended("web"))
    bench.handle(message)
    again = FakeDelivery(sequence=1, delivered=2)
    assert of(AskExtenders, bench.handle(PendingReceived(delivery=again, pending=message.pending))) == []
    assert ranked(bench.handle(ExtendersAnswered(sequence=1, extension=left("a")))) == ["web"]
    assert bench.handle(RankedStored(sequence=1)) == [AckPending(delivery=again)]


def test_extenders_are_asked_again_about_nodes_that_came_meanwhile(bench):
    bench.handle(bench.message(extended("web")))
    bench.mirror(a_node("c", cpu="4"))
    (question,) = bench.handle(ExtendersAnswered(sequence=1, extension=left()))
    assert set(question.to_extend.nodes) == {"a", "b", "c"}
    answer = bench.handle(ExtendersAnswered(sequence=1, extension=left("c", asked=("a", "b", "c"))))
    assert [each.node for each in of(PublishRanked, answer)[0].message.candidates] == ["c"]


def test_extenders_are_asked_three_times_at_most(bench):
    bench.handle(bench.message(extended("web")))
    for number in range(MOST_ROUNDS - 1):
        bench.mirror(a_node(f"new-{number}", cpu="4"))
        assert len(of(AskExtenders, bench.handle(ExtendersAnswered(sequence=1, extension=left())))) == 1
    bench.mirror(a_node("last", cpu="4"))
    assert ranked(bench.handle(ExtendersAnswered(sequence=1, extension=left()))) == ["web"]


def test_node_must_still_pass_the_filters_when_extenders_have_answered(bench):
    only = Bench()
    only.mirror(a_node("a", cpu="1"))
    only.handle(only.message(extended("web", cpu="800m")), only.message(pod_requesting("first", cpu="800m")))
    (publish, _) = only.handle(ExtendersAnswered(sequence=1, extension=left("a", asked=("a",))))
    assert publish.message.candidates == []
    assert publish.message.proposals_counted


def test_plugin_that_raises_between_questions_is_the_pods_error(bench, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Ranker, "to_extend", fail)
    log, publish = bench.handle(bench.message(extended("web")))
    assert isinstance(log, LogFailure)
    assert publish.message.error == "asking extenders raised ZeroDivisionError"


def test_suspect_does_not_count_while_extenders_are_asked(bench):
    bench.handle(bench.suspect(extended("suspect")))
    question, clear = bench.handle(SuspectCounted(tries=1))
    assert (type(question), type(clear)) == (AskExtenders, ClearSuspect)
    assert ranked(bench.handle(bench.message(small("web")))) == ["web"]
    bench.handle(RankedStored(sequence=2))
    assert [type(each) for each in bench.handle(ExtendersAnswered(sequence=1, extension=left("a")))] == [CountSuspect]
    assert ranked(bench.handle(SuspectCounted(tries=1))) == ["suspect"]


def test_suspect_that_is_given_up_between_questions_asks_nothing_more(bench):
    bench.handle(bench.suspect(extended("suspect")))
    bench.handle(SuspectCounted(tries=1))
    bench.handle(ExtendersAnswered(sequence=1, extension=left("a")))
    letter, publish = bench.handle(SuspectCounted(tries=4))
    assert isinstance(letter, WriteDeadLetter)
    assert publish.message.error == letter.reason
    assert [type(each) for each in bench.handle(RankedStored(sequence=1))] == [AckPending, ClearSuspect]
    assert bench.handle(ExtendersAnswered(sequence=1, extension=left("a"))) == []
