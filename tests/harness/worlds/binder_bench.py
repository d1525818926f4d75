"""A test bench for the binder's core: nodes and pods in a cache, RANKED in, effects out, a clock that tests move."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod, PodStatus
from berth.clock import Backoff
from berth.decoding import version_number
from berth.kube.listwatch import Deleted, ReflectorEvent, Upserted
from berth.messages.attempts import Candidate, Decision, Ranked
from berth.messages.subjects import Attempt, Epoch, Term, Uid
from berth.profiles.configuration import profiles_of, read_configuration
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.core import BinderCore
from berth_binder.events import (
    NO_ANSWER,
    Ack,
    BindingAnswer,
    DecisionStored,
    Effect,
    Event,
    EvictionAnswer,
    GetPod,
    Nominate,
    NominationAnswer,
    PodAnswer,
    PodShown,
    PostBinding,
    PublishDecision,
    RankedDelivery,
)
from berth_binder.settings import CoreSettings
from harness.builders.objects import a_node, a_pod

PROFILE = "berth"


def make_node(name: str, *, version: int = 1, **given: Any) -> Node:
    return a_node(name, version=version, **given)


def make_pod(
    name: str, *, version: int = 10, cpu: str = "1", spec: Mapping[str, Any] | None = None, **given: Any
) -> Pod:
    """A pod at this resourceVersion; ``given`` as in ``a_pod``."""
    return a_pod(name, version=version, cpu=cpu, **given, **(spec or {}))


def at_version(pod: Pod, version: int) -> Pod:
    """The same pod at another resourceVersion."""
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=str(version)))


def on_node(pod: Pod, node: str, version: int = 20) -> Pod:
    """The same pod as the API shows it once it is bound."""
    bound = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
    return at_version(bound, version)


def nominated(pod: Pod, node: str, version: int = 50) -> Pod:
    """The same pod as the API shows it once a node is nominated for it."""
    return at_version(msgspec.structs.replace(pod, status=PodStatus(nominated_node_name=node)), version)


def gated(pod: Pod) -> Pod:
    """The same pod with a scheduling gate."""
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=[{"name": "wait"}])
    return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(pod, spec=spec)), Pod)


def labelled(pod: Pod, version: int) -> Pod:
    """The same pod with a label that it did not have."""
    metadata = msgspec.structs.replace(pod.metadata, labels={"new": "label"}, resource_version=str(version))
    return msgspec.structs.replace(pod, metadata=metadata)


def ranked(pod: Pod, *nodes: str, n: int = 1, term: int = 1, counted: int = 0, **parts: Any) -> Ranked:
    """RANKED for the pod with these nodes, best first, each with so many pods counted on it."""
    attempt = Attempt(uid=Uid(pod.uid), term=Term(term), n=n)
    candidates = [Candidate(node=node, total=100, pods=counted) for node in nodes]
    whole = {"candidates": candidates, "feasible": len(nodes), "evaluated": len(nodes), **parts}
    return Ranked(attempt=str(attempt), profile=PROFILE, pod=pod, **whole)


def delivery(message: Ranked, sequence: int, *, is_suspect: bool = False) -> RankedDelivery:
    """RANKED as it is delivered at this place in the stream."""
    attempt = Attempt.parse(message.attempt)
    return RankedDelivery(ranked=message, attempt=attempt, sequence=sequence, delivery=None, is_suspect=is_suspect)


class NoJitter(random.Random):
    """Back-off pauses are never cut."""

    def uniform(self, a: float, b: float) -> float:
        return b


BACKOFF = Backoff(initial=timedelta(seconds=1), maximum=timedelta(seconds=5), chance=NoJitter())


@dataclass
class Bench:
    """A core with its cache. ``decisions`` are all that it published, ``acked`` the sequences that it acknowledged."""

    nodes: int = 3
    cpu: str = "4"
    settings: CoreSettings = field(default_factory=lambda: CoreSettings(backoff=BACKOFF))
    reads_preemptors: bool = True
    """Whether a pod that is read before an eviction is answered as the watch shows it."""
    writes_nominations: bool = True
    """Whether the API server writes the nomination of a pod that waits. The watch does not show it by itself."""
    epoch: int = 7
    now: float = 1000.0
    decisions: list[Decision] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """Awaited pods that the watch has shown, of which the core does not know yet."""
    _sequence: int = 0
    _observed: list[ReflectorEvent[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cache = Cache(schedulers=[PROFILE])
        self.cache.notify(self.shown.append)
        for number in range(1, self.nodes + 1):
            self.observe(Upserted(kind=NODES, object=make_node(f"n{number}", cpu=self.cpu)))
        self.profiles = dict(profiles_of(read_configuration(None)))
        self.core = self.new_epoch(self.epoch)

    def new_epoch(self, epoch: int) -> BinderCore:
        """A core of another epoch on the same cache."""
        self.core = BinderCore(
            cache=self.cache, profiles=self.profiles, epoch=Epoch(epoch), config="test", settings=self.settings
        )
        return self.core

    def succeed(self) -> BinderCore:
        """Replace the binder by a new one that has only the API server's state, as after a kill."""
        self.cache = Cache(schedulers=[PROFILE])
        self.cache.notify(self.shown.append)
        for event in self._observed:
            self.cache.observe(event)
        return self.new_epoch(self.epoch + 1)

    # Events.

    def observe(self, event: ReflectorEvent[Any]) -> None:
        """Apply an event of a watch."""
        self._observed.append(event)
        self.cache.observe(event)

    def show(self, pod: Pod) -> Pod:
        """The watch shows the pod."""
        self.observe(Upserted(kind=PODS, object=pod))
        return pod

    def show_node(self, name: str, cpu: str = "4") -> None:
        """The watch shows a new node."""
        self.observe(Upserted(kind=NODES, object=make_node(name, cpu=cpu)))

    def remove_node(self, name: str) -> None:
        """The watch shows that the node is deleted."""
        self.observe(Deleted(kind=NODES, object=make_node(name, version=99)))

    def delete(self, pod: Pod, version: int) -> None:
        """The watch shows that the pod is deleted."""
        self.observe(Deleted(kind=PODS, object=at_version(pod, version)))

    def take(self, message: Ranked, *, is_suspect: bool = False) -> list[Effect]:
        """Deliver RANKED with the next sequence of the stream."""
        self._sequence += 1
        return self.handle(delivery(message, self._sequence, is_suspect=is_suspect))

    def deliver(self, message: Ranked, sequence: int) -> list[Effect]:
        """Deliver RANKED with its own sequence."""
        return self.handle(delivery(message, sequence))

    def handle(self, event: Event) -> list[Effect]:
        """Pass the event to the core, and carry out its effects."""
        return self.run(self.core.handle([event], self.now))

    def answer(self, pod: Pod, status: int, **parts: Any) -> list[Effect]:
        """The API server answers the pod's Binding."""
        return self.handle(BindingAnswer(uid=pod.uid, status=status, **parts))

    def no_answer(self, pod: Pod) -> list[Effect]:
        """The API server does not answer the pod's Binding."""
        return self.answer(pod, NO_ANSWER)

    def reading(self, asked: Pod, pod: Pod | None, status: int | None = None) -> list[Effect]:
        """The API server shows the pod, or that there is none (404), or does not answer."""
        found = status if status is not None else (200 if pod is not None else 404)
        return self.handle(PodAnswer(uid=asked.uid, status=found, pod=pod))

    def evicted(self, asked: Pod, node: str = "", status: int = 200, *, version: int = 50) -> list[Effect]:
        """The API server answers the evictions for a pod: it shows the pod with its nominated node, or rejects."""
        shown = nominated(asked, node, version) if status == 200 else None
        return self.handle(EvictionAnswer(uid=asked.uid, status=status, pod=shown))

    def wait(self, seconds: float) -> list[Effect]:
        """Time passes."""
        self.now += seconds
        return self.run(self.core.handle([], self.now))

    def tell_of_shown(self) -> list[Effect]:
        """The core hears of the awaited pods that the watch has shown."""
        told, self.shown[:] = list(self.shown), []
        return [effect for uid in told for effect in self.handle(PodShown(uid=uid))]

    def run(self, effects: list[Effect]) -> list[Effect]:
        """Carry out what needs no API server: every Decision gets its PubAck at once. Returns all effects."""
        done: list[Effect] = []
        for effect in effects:
            done.append(effect)
            if isinstance(effect, PublishDecision):
                self.decisions.append(effect.decision)
                done += self.handle(DecisionStored(decision=effect.decision))
            elif isinstance(effect, GetPod) and self.reads_preemptors and self._is_preemptor(effect):
                shown = self.cache.pod(effect.pod.uid)
                done.remove(effect)
                done += self.reading(effect.pod, shown)
            elif isinstance(effect, Nominate) and self.writes_nominations:
                version = version_number(effect.pod.metadata.resource_version) + 1
                shown = nominated(effect.pod, effect.node, version)
                done += self.handle(NominationAnswer(uid=effect.pod.uid, status=200, pod=shown))
            elif isinstance(effect, Ack):
                self.acked.append(effect.held.sequence)
        self.effects += [effect for effect in done if effect not in self.effects]
        return done

    def _is_preemptor(self, effect: GetPod) -> bool:
        attempt = self.core._attempts[effect.pod.uid]
        return attempt.latest.ranked.preemption is not None and not attempt.is_posted

    # Results.

    @property
    def outcomes(self) -> list[str]:
        """The outcomes of the Decisions, in order."""
        return [str(decision.outcome) for decision in self.decisions]


def posts(effects: list[Effect]) -> list[tuple[str, str, str]]:
    """The Bindings among effects: pod, node, resourceVersion."""
    found = [each for each in effects if isinstance(each, PostBinding)]
    return [(each.pod.metadata.name, each.node, each.pod.metadata.resource_version) for each in found]


def reads(effects: list[Effect]) -> list[str]:
    """The pods that are to be read."""
    return [each.pod.metadata.name for each in effects if isinstance(each, GetPod)]
