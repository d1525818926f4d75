"""A simulation of the way from PENDING to the Binding with N scorers, whose views lag behind each other.

Rankers and views are the scorer's, cache and core are the binder's; what lies between them is a clock and delays drawn
from a seed. A seed gives the same run every time.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final

import msgspec

from berth.api.node import Node
from berth.api.pod import Pod
from berth.framework.profile import Profile
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Decision, Outcome, Pending, Ranked
from berth.messages.livedata import NodeSample
from berth.messages.subjects import Attempt, Epoch, Term, Uid
from berth.plugins.networktraffic import NetworkTraffic
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.core import BinderCore
from berth_binder.events import BindingAnswer, DecisionStored, Effect, PostBinding, PublishDecision, RankedDelivery
from harness.builders.objects import a_container, a_node, a_pod
from harness.worlds.placements import Placements, Scenario, placements

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
PROFILE: Final = "berth"


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Milliseconds, each drawn evenly from a range. The defaults are those of the pipeline under load."""

    rank: tuple[float, float] = (0.4, 1.2)
    """How long a ranking takes: a scorer sees nothing new meanwhile."""
    to_binder: tuple[float, float] = (0.5, 3.0)
    between_scorers: tuple[float, float] = (0.5, 10.0)
    binder: tuple[float, float] = (0.3, 0.6)
    """How long the binder takes for one pod."""
    post: tuple[float, float] = (3.0, 15.0)
    watch: tuple[float, float] = (2.0, 10.0)
    """From the Binding to the binder's watch."""
    mirror: tuple[float, float] = (10.0, 60.0)
    """From the Binding to the scorers' Snapshots."""


@dataclass
class ManyScorers:
    """One run. ``window``: how many pods are in flight at most."""

    scenario: Scenario
    profile: Profile
    scorers: int
    seed: int = 1
    window: int = 64
    best: int = 32
    delays: Delays = field(default_factory=Delays)

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.scorers}")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        self._cache = Cache()
        self._core = BinderCore(cache=self._cache, profiles={PROFILE: self.profile}, epoch=Epoch(1), config="c")
        self._rankers = [
            Ranker(profiles={PROFILE: self.profile}, config="c", identity=f"s{number}", best=self.best, explained=8)
            for number in range(self.scorers)
        ]
        self._views = [View() for _ in range(self.scorers)]
        self._idle = deque(range(self.scorers))
        self._unpublished = deque(range(self.scenario.pods))
        self._pending: deque[Pending] = deque()
        self._pods = [self._pod(number) for number in range(self.scenario.pods)]
        self._numbers = {pod.uid: number for number, pod in enumerate(self._pods)}
        self._attempts: dict[int, int] = {}
        self._bound: dict[int, str] = {}
        self._in_flight = 0
        self._sequence = count(1)
        self._reached_binder = 0.0
        self._binder_free = 0.0

    def run(self) -> Placements:
        """Until every pod is bound."""
        self._add_nodes()
        for pod in self._pods:
            self._cache.observe(Upserted(kind=PODS, object=pod))
        self._publish()
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        assert len(self._bound) == self.scenario.pods, f"{len(self._bound)} of {self.scenario.pods} pods are bound"
        return placements(
            self.scenario, ((number, node, self._attempts[number]) for number, node in self._bound.items())
        )

    @property
    def seconds(self) -> float:
        """How long it took by the simulated clock."""
        return self._now

    # The cluster

    def _add_nodes(self) -> None:
        queries = {
            s.name for p in self.profile.scores if isinstance(p.plugin, NetworkTraffic) for s in p.plugin.live_sources
        }
        for kind in self.scenario.kinds:
            for name in kind.nodes():
                node = a_node(
                    name, labels={"kubernetes.io/hostname": name, **kind.labels}, cpu=kind.cpu, memory=kind.memory
                )
                self._add_node(node, queries, kind.traffic)
                for number in range(kind.present):
                    self._place(self._pod(number, f"{name}-{number}"), name)

    def _add_node(self, node: Node, queries: set[str], traffic: float | None) -> None:
        self._cache.observe(Upserted(kind=NODES, object=node))
        for view in self._views:
            view.advance_clock(START)
            view.snapshot.set_node(node)
            for query in queries if traffic is not None else ():
                sample = NodeSample(receive=traffic, transmit=traffic, sampled_at=START)
                view.snapshot.live.set_sample(query, node.metadata.name, sample)

    def _place(self, pod: Pod, node: str) -> None:
        for snapshot in (self._cache.snapshot, *(view.snapshot for view in self._views)):
            snapshot.place(pod, node, bound_at=0.0)

    def _pod(self, number: int, name: str = "") -> Pod:
        requests = a_container(cpu=self.scenario.cpu, memory=self.scenario.memory)
        return a_pod(name or f"pod-{number}", labels=self.scenario.labels_of(number), version=10, containers=[requests])

    # The watcher

    def _publish(self) -> None:
        while self._unpublished and self._in_flight < self.window:
            number = self._unpublished.popleft()
            self._in_flight += 1
            attempt = Attempt(uid=Uid(self._pods[number].uid), term=Term(1), n=self._attempts.get(number, 0) + 1)
            self._attempts[number] = attempt.n
            self._pending.append(Pending(attempt=str(attempt), profile=PROFILE, pod=self._pods[number]))
        self._give_work()

    # The scorers

    def _give_work(self) -> None:
        while self._pending and self._idle:
            scorer, pending = self._idle.popleft(), self._pending.popleft()
            ranked = self._rankers[scorer].answer(pending, self._views[scorer], self._now)
            self._in(self.delays.rank, lambda s=scorer, r=ranked: self._ranked(s, r))

    def _ranked(self, scorer: int, ranked: Ranked) -> None:
        """Stored in the stream: all messages reach the binder in that order."""
        self._idle.append(scorer)
        for peer, view in enumerate(self._views):
            if peer != scorer:
                self._in(self.delays.between_scorers, lambda v=view: v.proposals.ranked(ranked, self._now))
        attempt = Attempt.parse(ranked.attempt)
        delivery = RankedDelivery(ranked=ranked, attempt=attempt, sequence=next(self._sequence), delivery=None)
        self._reached_binder = max(self._reached_binder, self._now + self._draw(self.delays.to_binder))
        self._at(self._reached_binder, lambda: self._deliver(delivery))
        self._give_work()

    # The binder

    def _deliver(self, delivery: RankedDelivery) -> None:
        self._binder_free = max(self._binder_free, self._now) + self._draw(self.delays.binder)
        self._at(self._binder_free, lambda: self._carry_out(self._core.handle([delivery], self._now)))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, PostBinding):
                self._in(self.delays.post, lambda e=effect: self._answer(e))
            elif isinstance(effect, PublishDecision):
                self._decided(effect.decision)
                self._carry_out(self._core.handle([DecisionStored(decision=effect.decision)], self._now))

    def _answer(self, binding: PostBinding) -> None:
        pod, node = binding.pod, binding.node
        metadata = msgspec.structs.replace(pod.metadata, resource_version="20")
        on_node = msgspec.structs.replace(
            pod, metadata=metadata, spec=msgspec.structs.replace(pod.spec, node_name=node)
        )
        self._in(self.delays.watch, lambda: self._cache.observe(Upserted(kind=PODS, object=on_node)))
        for view in self._views:
            self._in(self.delays.mirror, lambda v=view: self._mirror(v, on_node))
        self._carry_out(self._core.handle([BindingAnswer(uid=pod.uid, status=201)], self._now))

    def _mirror(self, view: View, pod: Pod) -> None:
        view.snapshot.place(pod, pod.spec.node_name, bound_at=START.timestamp() + self._now)
        view.proposals.mirrored(pod.uid)

    def _decided(self, decision: Decision) -> None:
        number, stored_at = self._numbers[decision.uid], START + timedelta(seconds=self._now)
        for view in self._views:
            self._in(self.delays.between_scorers, lambda v=view: v.proposals.decided(decision, stored_at, self._now))
        self._in_flight -= 1
        if decision.outcome is Outcome.BOUND:
            self._bound[number] = decision.node
        else:
            assert decision.outcome is Outcome.CONFLICT, decision
            self._unpublished.appendleft(number)
        self._in(self.delays.between_scorers, self._publish)

    # The clock

    def _draw(self, milliseconds: tuple[float, float]) -> float:
        return self._chance.uniform(*milliseconds) / 1000

    def _in(self, milliseconds: tuple[float, float], event: Callable[[], None]) -> None:
        self._at(self._now + self._draw(milliseconds), event)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))
