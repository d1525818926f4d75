"""Whatever value stands in whichever field of a message of the bus: its readers leave it out or bear it, and go on.

As `fuzz.test_whole_cycle`, with every type that a service reads from the bus, and with Leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from berth.api.config.encode import ConfigurationDigests
from berth.api.workloads import Lease
from berth.bus.interface import Entry, ServiceInstance, StoredMessage
from berth.decoding import MALFORMED, decode_json
from berth.errors import DecodeError
from berth.leader.lease import held_record, is_live, observe, released_record
from berth.leader.session import number_in_control
from berth.lifecycle.peers import Announcement, Peers
from berth.messages.attempts import DeadLetter, Decision, Pending, Ranked
from berth.messages.encoding import decode, decode_versioned, encode
from berth.messages.groupattempts import GroupPending, GroupRanked
from berth.messages.livedata import NodeSample
from berth.messages.mirror import MirrorEntry, Watermark
from berth.messages.queue import PageRequest, PodRequest, decode_page_request, decode_pod_request
from berth.messages.shadow import ShadowComparison
from berth.settings.settings import LeaseSettings
from berth_cli.console.model import ConsoleModel
from berth_cli.options import PodName
from berth_cli.services import Statistics, activity, attention, missing, queue_lines, seen
from berth_metrics_collector.nodenames import MirroredNodes
from berth_metrics_collector.samplestore import SampleStore
from fuzz.fields import ANY, MISSING, NUMBERS, TEXTS, Odd, Path, at, odd_values, struct_fields, with_value
from fuzz.ordinary import (
    HONEST_NODES,
    NAMESPACE,
    NOW,
    Body,
    asking_for_the_slot,
    cluster,
    decision,
    gang,
    group_pending,
    group_ranked,
    group_ranked_without_plan,
    metadata,
    node,
    pending,
    plain_pod,
    ranked,
    report,
)
from fuzz.test_whole_cycle import EVERY, batched, check_guards, check_people
from fuzz.wholecycle import EPOCH, WholeCycle
from harness.plugins.long_runs import IS_LONG

FOUND: Final = frozenset({"capacity: 1e-320", "spec.leaseTransitions: int32", "candidates.*.pods: above int64"})
"""What broke something once."""
ELSEWHERE: Final = (("pod",), ("metadata",), ("bundle", "classes"), ("bundle", "members", ANY, "9"))
"""Parts of messages that are objects of the API server, or parts of these."""
MAY_BE_EMPTY: Final = (("candidates",), ("plan", "members"), ("plan", "devices"))
LEASE_SPEC: Final = {
    "holderIdentity": "other",
    "leaseDurationSeconds": 15,
    "acquireTime": NOW,
    "renewTime": NOW,
    "leaseTransitions": 1,
}
SERVICES_SEEN: Final = ("watcher", "binder", "scorer", "metrics-collector", "shadow")
OWN: Final = ConfigurationDigests(config="own", profiles={"berth": "own"}, settings="own")
LARGEST_INT32: Final = 2**31 - 1


def rejected(name: str) -> Body:
    return {**ranked(name), "candidates": []}


def conflict(name: str) -> Body:
    return {**decision(name), "outcome": "conflict", "reason": "no-candidate"}


def mirrored_node(name: str) -> Body:
    return {"schema": 1, "term": 1, "object": node(name), "bound_at": NOW}


def mirrored_pod(name: str) -> Body:
    body = plain_pod(name, namespace=NAMESPACE, nodeName=HONEST_NODES[1])
    return {"schema": 1, "term": 1, "object": body, "bound_at": NOW}


def _dead_letter(name: str) -> Body:
    where = {"subject": f"berth.ranked.berth.odd.{name}", "reason": "no", "service": "scorer"}
    return {"schema": 1, "config": "other", **where, "attempt": f"uid-{name}.7.1", "payload": "{}"}


def _shown(scorer: str) -> Body:
    """One ranking of a difference."""
    parts = ("evaluated", "feasible", "nodes", "candidates", "rejections", "message")
    ranking = {name: value for name, value in report("x").items() if name in parts}
    return {**ranking, "scorer": scorer, "config": "other", "preempts_on": HONEST_NODES[0], "error": ""}


def _comparison(name: str) -> Body:
    about = {
        "attempt": f"uid-{name}.7.1",
        "profile": "berth",
        "namespace": NAMESPACE,
        "pod": name,
        "uid": f"uid-{name}",
    }
    found = {"result": "node", "elsewhere": 2, "points_apart": 3, "place": 2, "refused_by": "NodeName", "reason": "no"}
    rankings = {"live": _shown("scorer-1"), "own": _shown("shadow-1")}
    decided = {"outcome": "bound", "node": HONEST_NODES[1]}
    return {"schema": 1, "config": "other", "shadow": "east", **about, **found, **rankings, **decided}


def _statistics(_: str) -> Body:
    """What a service says of itself, with a shadow's numbers."""
    shadow = {
        "name": "east",
        "compared": 7,
        "results": {"equal": 3},
        "skipped": {"busy": 1},
        "refused_by": {"NodeName": 1},
        "placed_against": {"NodeName": 1},
        "points_apart": 0.5,
    }
    return {
        "configuration": "other",
        "profiles": {"berth": "x"},
        "settings": "s",
        "readiness": "ready",
        "gone": [{"service": "scorer", "identity": "scorer-9", "seconds": 20.0}],
        "leading": {"number": 7, "seconds": 3.5},
        "queues": {"active": 3},
        "in_flight": {"berth": 3},
        "window": {"berth": 64},
        "groups": {"waiting": 2},
        "stalled": [{"profile": "berth", "waits_for": "scorer", "pods": 3}],
        "draining": False,
        "shadow": shadow,
    }


def _announcement(name: str) -> Body:
    about = {"service": "scorer", "identity": name, "config": "other", "profiles": {"berth": "x"}, "settings": "s"}
    return {"schema": 1, **about, "leaving": False, "held": ["uid-x.7.1"], "features": ["groups"]}


# --- how each is read


def _is_pending(world: WholeCycle, name: str, data: bytes) -> None:
    world.apply("pod", plain_pod(name, namespace=NAMESPACE))
    world.pending(data)


def _is_ranked(world: WholeCycle, name: str, data: bytes) -> None:
    world.apply("pod", plain_pod(name, namespace=NAMESPACE))
    world.ranked(data, is_peers=True)


def _is_pending_of_group(world: WholeCycle, name: str, data: bytes) -> None:
    for each in gang(name):
        world.apply(*each)
    world.pending(data)


def _is_ranked_of_group(world: WholeCycle, name: str, data: bytes) -> None:
    for each in gang(name):
        world.apply(*each)
    world.ranked(data, is_peers=True)


def _is_decided(world: WholeCycle, name: str, data: bytes) -> None:
    world.apply("pod", plain_pod(name, namespace=NAMESPACE))
    world.decided(data)
    _is_shown(world, name, data)


def _is_shown(_: WholeCycle, name: str, data: bytes) -> None:
    """The console, which reads Decisions and dead letters."""
    model = ConsoleModel()
    stored = StoredMessage(subject=f"berth.decision.berth.odd.{name}", sequence=1, data=data, time=EPOCH)
    model.decided([stored])
    model.dead_lettered([stored])
    msgspec.json.encode(model.whole(now=EPOCH.timestamp()))


def _is_mirrored(prefix: str) -> Callable[[WholeCycle, str, bytes], None]:
    def read(world: WholeCycle, name: str, data: bytes) -> None:
        key = f"{prefix}.{name}"
        world.mirrored(key, data)
        MirroredNodes().apply(Entry(key=key, data=data, sequence=1, time=EPOCH))

    return read


def _is_sampled(world: WholeCycle, name: str, data: bytes) -> None:
    world.apply("node", node(name))
    query = next(iter(world.sources)).name
    world.live("bandwidth", f"{query}.{name}", data)
    store = SampleStore(query)
    store.apply(Entry(key=f"{query}.{name}", data=data, sequence=1, time=EPOCH), 0.0)
    store.measured({name: NodeSample(receive=1.0, sampled_at=EPOCH)}, {name})
    store.writes({name}, 0.0)


def _is_announced(_: WholeCycle, __: str, data: bytes) -> None:
    peers = Peers(OWN, service="binder", identity="binder-1")
    try:
        announced = decode_versioned(data, Announcement, "an announcement")
    except DecodeError:
        return
    assert announced.subject
    peers.receive(announced, 1000.0)
    peers.hold("uid-x.7.1", 1000.0)
    for difference, who in peers.differences(1000.0).items():
        peers.sentence(difference, who)
    peers.pass_time(2000.0)


def _is_compared(_: WholeCycle, name: str, data: bytes) -> None:
    """The console, on the subject that the message has."""
    try:
        subject = decode(data, ShadowComparison).subject
    except DecodeError:
        subject = f"berth.shadow.east.berth.{NAMESPACE}.{name}"
    model = ConsoleModel()
    model.shadows.received(subject, data, 1000.0)
    for line in model.shadows.lines():
        pod = PodName(namespace=line.namespace, name=line.pod)
        msgspec.json.encode(model.shadows.document(line.shadow, pod))
    msgspec.json.encode(model.changes(now=1000.0, every_second=True))
    msgspec.json.encode(model.whole(now=1000.0))


def _is_said_of_itself(_: WholeCycle, name: str, data: bytes) -> None:
    """``berth top``, ``why`` and the console."""
    try:
        stats = msgspec.json.decode(data)
    except MALFORMED:
        return
    said = [ServiceInstance(service=f"berth-{one}", identity=name, version="1", stats=stats) for one in SERVICES_SEEN]
    processes = seen(said)
    for one in processes:
        activity(one)
    [*attention(processes), *queue_lines(processes), *missing(processes)]
    model = ConsoleModel()
    model.services_answered(said)
    msgspec.json.encode(model.whole(now=1000.0))


def _is_asked(kind: Callable[[bytes], Any]) -> Callable[[WholeCycle, str, bytes], None]:
    def read(world: WholeCycle, _: str, data: bytes) -> None:
        answers = world.watcher.core.answers
        try:
            asked = kind(data)
        except DecodeError:
            return
        answer = answers.page if isinstance(asked, PageRequest) else answers.pod
        encode(answer(asked, world.watcher.now))

    return read


def _is_held(_world: WholeCycle, _name: str, data: bytes) -> None:
    """A Lease: whose it is, until when, and what is written in its place."""
    try:
        lease = decode_json(msgspec.json.Decoder(Lease), data, "a lease")
    except DecodeError:
        return
    seen = observe(None, lease, 1000.0)
    is_live(seen, 1000.0)
    for spec in (held_record("me", lease.spec, LeaseSettings(), EPOCH), released_record(lease.spec, EPOCH)):
        # The API server refuses others, and then nobody can lead any more.
        assert 0 <= spec["leaseTransitions"] <= LARGEST_INT32, spec


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A type, ordinary messages of it, and what reads them."""

    kind: type[Any]
    forms: tuple[Callable[[str], Body], ...]
    read: Callable[[WholeCycle, str, bytes], None]


def _sample(_: str) -> dict[str, object]:
    used = {"average": 1.0, "deviation": 2.0, "p50": 3.0, "p90": 4.0, "p95": 5.0, "p99": 6.0, "allocatable": 7.0}
    traffic = {"receive": 1.0, "transmit": 2.0, "capacity": 1e9}
    return {"schema": 1, **traffic, "cpu": used, "memory": used, "sampled_at": NOW, "by": "5eed"}


READINGS: Final[Mapping[str, Reading]] = {
    "Pending": Reading(kind=Pending, forms=(pending,), read=_is_pending),
    "Ranked": Reading(kind=Ranked, forms=(ranked, rejected), read=_is_ranked),
    "GroupPending": Reading(kind=GroupPending, forms=(group_pending,), read=_is_pending_of_group),
    "GroupRanked": Reading(kind=GroupRanked, forms=(group_ranked, group_ranked_without_plan), read=_is_ranked_of_group),
    "Decision": Reading(kind=Decision, forms=(decision, conflict), read=_is_decided),
    "DeadLetter": Reading(kind=DeadLetter, forms=(_dead_letter,), read=_is_shown),
    "a node's MirrorEntry": Reading(kind=MirrorEntry, forms=(mirrored_node,), read=_is_mirrored("node")),
    "a pod's MirrorEntry": Reading(kind=MirrorEntry, forms=(mirrored_pod,), read=_is_mirrored("pod")),
    "Watermark": Reading(
        kind=Watermark,
        forms=(lambda _: {"schema": 1, "term": 1, "resource_version": "7", "unread": "not served"},),
        read=_is_mirrored("watermark"),
    ),
    "NodeSample": Reading(
        kind=NodeSample,
        forms=(_sample,),
        read=_is_sampled,
    ),
    "Announcement": Reading(kind=Announcement, forms=(_announcement,), read=_is_announced),
    "ShadowComparison": Reading(kind=ShadowComparison, forms=(_comparison,), read=_is_compared),
    "Statistics": Reading(kind=Statistics, forms=(_statistics,), read=_is_said_of_itself),
    "PageRequest": Reading(
        kind=PageRequest,
        forms=(lambda _: {"schema": 1, "queue": "active", "namespace": NAMESPACE, "start": 0},),
        read=_is_asked(decode_page_request),
    ),
    "PodRequest": Reading(
        kind=PodRequest,
        forms=(lambda name: {"schema": 1, "namespace": NAMESPACE, "name": name},),
        read=_is_asked(decode_pod_request),
    ),
    "Lease": Reading(
        kind=Lease,
        forms=(lambda name: {"metadata": metadata(name, namespace="berth"), "spec": LEASE_SPEC},),
        read=_is_held,
    ),
}
"""Every type that services read from the bus, and the Lease."""


def _is_elsewhere(path: Path) -> bool:
    return any(path[: len(each)] == each for each in ELSEWHERE)


@dataclass(frozen=True, kw_only=True)
class Trial:
    form: Callable[[str], Body]
    odd: Odd


def trials(reading: Reading) -> list[Trial]:
    """Each value of each field of the message, and of the pod in it."""
    fields = {path for path, _ in struct_fields(reading.kind) if not _is_elsewhere(path)}
    found: list[Trial] = []
    for form in reading.forms:
        ordinary = form("odd")
        missing = [
            ".".join(path)
            for path in fields
            if at(ordinary, path) is MISSING and not any(path[: len(each)] == each for each in MAY_BE_EMPTY)
        ]
        assert not missing, f"no ordinary {reading.kind.__name__} has {', '.join(missing)}"
        found += [Trial(form=form, odd=odd) for odd in odd_values(reading.kind, ordinary)]
    return found


def chosen(reading: Reading) -> list[Trial]:
    """A share of them. Of the pod in a message short runs try nothing: `fuzz.test_whole_cycle` does."""
    every = [each for each in trials(reading) if IS_LONG or not _is_elsewhere(each.odd.field)]
    return every[::EVERY] + [each for each in every if str(each.odd) in FOUND]


def problem_of(reading: Reading, batch: Sequence[Trial]) -> str:
    """What a world with these messages shows; empty if all is well."""
    try:
        world = WholeCycle()
        for kind, body in cluster():
            world.apply(kind, body)
        for number, trial in enumerate(batch):
            name = f"odd-{number}"
            reading.read(world, name, with_value(trial.form(name), trial.odd.path, trial.odd.value))
        world.apply("pod", plain_pod("honest-pod"))
        world.apply("pod", asking_for_the_slot("urgent", priority=1000))
        world.settle(seconds=12.0)
        assert "uid-honest-pod" in world.bound, f"an honest pod waits: {world.said_of('honest-pod')}"
        assert "victim" in world.evicted or "uid-urgent" in world.bound, f"none is evicted: {world.said_of('urgent')}"
        check_people(world)
        check_guards(world)
    except Exception as error:  # noqa: BLE001 - it becomes the sentence of the failure
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", READINGS)
def test_an_odd_message_costs_nobody_else(name: str):
    reading = READINGS[name]
    for batch in batched(chosen(reading)):
        if found := problem_of(reading, batch):
            alone = [f"{trial.odd}: {problem}" for trial in batch if (problem := problem_of(reading, [trial]))]
            pytest.fail("\n".join(alone[:20]) or f"only together: {found}")


@pytest.mark.parametrize("data", [*NUMBERS.values(), *TEXTS.values(), b"", b"\xff", b"\x00"])
def test_an_odd_number_in_control_is_an_error_that_says_what_to_do(data: bytes):
    entry = Entry(key="term.watcher", data=data, sequence=1, time=EPOCH)
    try:
        number_in_control(entry, "watcher")
    except DecodeError as error:
        said = str(error)
    else:
        return
    assert "remove it" in said
    assert len(said) < 500
