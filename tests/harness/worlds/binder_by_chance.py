"""A binder's core with an API server that fails at random.

Watches are late, answers are lost before or after the request is carried out, pods are written, deleted and recreated
meanwhile, and messages are delivered twice. The same seed gives the same run.
"""

import random
from dataclasses import dataclass, field

import msgspec

from berth.api.pod import Pod, PodCondition, PodStatus
from berth.kube.listwatch import Deleted, Listed, Upserted
from berth.messages.attempts import Ranked
from berth_binder.cache import PODS
from berth_binder.events import (
    Ack,
    BindingAnswer,
    ClearNomination,
    DecisionStored,
    Effect,
    Event,
    EvictionAnswer,
    EvictPods,
    GetPod,
    PodAnswer,
    PostBinding,
    PublishDecision,
    RejectRanked,
    VoidBindings,
)
from berth_binder.settings import CoreSettings
from harness.worlds.binder_bench import BACKOFF, Bench, at_version, delivery, make_node, make_pod, on_node, ranked

NODES = 4
ROOM = 4
SETTINGS = CoreSettings(max_in_flight=4, backoff=BACKOFF)


@dataclass
class RandomBinderWorld:
    """An API server with pods, a watch that lags, requests under way, and a bus that redelivers messages."""

    chance: random.Random
    bench: Bench = field(default_factory=lambda: Bench(nodes=NODES, cpu=str(ROOM), settings=SETTINGS))
    version: int = 100
    pods: dict[str, Pod] = field(default_factory=dict)
    bound_to: dict[str, list[str]] = field(default_factory=dict)
    lag: list[object] = field(default_factory=list)
    under_way: list[Effect] = field(default_factory=list)
    late_posts: list[PostBinding] = field(default_factory=list)
    messages: dict[int, Ranked] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)
    sequence: int = 0
    evicted: list[Pod] = field(default_factory=list)

    # The API server.

    def create(self, name: str) -> None:
        self.version += 1
        uid = f"{name}-{self.version}"
        self._store(make_pod(name, uid=uid, version=self.version, spec={"priority": self.priority_of(name)}))

    def priority_of(self, name: str) -> int:
        """All are equally important."""
        return 0

    def _store(self, pod: Pod) -> None:
        self.pods[pod.metadata.name] = pod
        self.lag.append(Upserted(kind=PODS, object=pod))

    def write(self, name: str) -> None:
        pod = self.pods[name]
        self.version += 1
        self._store(at_version(pod, self.version))

    def delete(self, name: str) -> None:
        pod = self.pods.pop(name)
        self.version += 1
        self.lag.append(Deleted(kind=PODS, object=at_version(pod, self.version)))

    def bind(self, post: PostBinding) -> int:
        pod = self.pods.get(post.pod.metadata.name)
        if pod is None:
            return 404
        same = (pod.uid, pod.metadata.resource_version) == (post.pod.uid, post.pod.metadata.resource_version)
        if not same or pod.spec.node_name:
            return 409
        self.version += 1
        self.bound_to.setdefault(pod.uid, []).append(post.node)
        self._store(on_node(pod, post.node, self.version))
        return 201

    # Steps.

    def rank(self) -> None:
        waiting = [pod for pod in self.pods.values() if not pod.spec.node_name]
        if not waiting:
            return
        pod = self.chance.choice(waiting)
        self.attempts[pod.uid] = n = self.attempts.get(pod.uid, 0) + 1
        nodes = self.chance.sample([f"n{number}" for number in range(1, NODES + 1)], 3)
        self.sequence += 1
        self.messages[self.sequence] = ranked(pod, *nodes, n=n, counted=self.chance.randrange(3))
        self.deliver(self.sequence)

    def deliver(self, sequence: int) -> None:
        self.unsettled.add(sequence)
        self.handle(delivery(self.messages[sequence], sequence))

    def handle(self, *events: Event) -> None:
        self.carry_out(self.bench.core.handle(events, self.bench.now))

    def redeliver(self) -> None:
        """Redeliver one of the last messages, also one whose ack was lost."""
        if self.messages:
            self.deliver(self.chance.choice(sorted(self.messages)[-8:]))

    def cordon(self) -> None:
        self.version += 1
        name, is_cordoned = f"n{self.chance.randrange(NODES) + 1}", self.chance.random() < 0.5
        node = make_node(name, cpu=str(ROOM), version=self.version, unschedulable=is_cordoned)
        self.bench.cache.observe(Upserted(kind="node", object=node))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Ack() | RejectRanked():
                    self.unsettled.discard(effect.held.sequence)
                case PublishDecision():
                    self.bench.decisions.append(effect.decision)
                    self.handle(DecisionStored(decision=effect.decision))
                case PostBinding() | GetPod() | VoidBindings() | EvictPods() | ClearNomination():
                    self.under_way.append(effect)

    def answer(self) -> None:
        if not self.under_way:
            return
        effect = self.under_way.pop(self.chance.randrange(len(self.under_way)))
        answer = self._answer(effect)
        if answer is not None:
            self.handle(answer)

    def _answer(self, effect: Effect) -> Event | None:
        match effect:
            case PostBinding():
                return self._answer_post(effect)
            case VoidBindings():
                return self._answer_void(effect)
            case EvictPods():
                return self._answer_evict(effect)
            case ClearNomination():
                return self._clear_nomination(effect)
        return self._answer_read(effect)

    def _answer_post(self, post: PostBinding) -> BindingAnswer:
        fate = self.chance.random()
        if fate < 0.15:
            status = 0
            self.late_posts.append(post)
        elif fate < 0.3:
            self.bind(post)
            status = 0
        elif fate < 0.4:
            status = self.chance.choice([429, 500, 503, 403])
        else:
            status = self.bind(post)
        return BindingAnswer(uid=post.pod.uid, status=status)

    def _answer_void(self, effect: VoidBindings) -> PodAnswer:
        pod = self.pods.get(effect.pod.metadata.name)
        if pod is None or pod.uid != effect.pod.uid:
            return PodAnswer(uid=effect.pod.uid, status=404 if pod is None else 422)
        if self.chance.random() < 0.2:
            return PodAnswer(uid=effect.pod.uid, status=503)
        self.write(pod.metadata.name)
        return PodAnswer(uid=effect.pod.uid, status=200, pod=self.pods[pod.metadata.name])

    def _answer_evict(self, effect: EvictPods) -> EvictionAnswer:
        """Delete the victims one after another; the answer may be lost at each of them, and at the end."""
        uid = effect.pod.uid
        for victim in effect.victims:
            if self.chance.random() < 0.1:
                return EvictionAnswer(uid=uid, status=0)
            self.evict(victim)
        pod = self.pods.get(effect.pod.metadata.name)
        if pod is None or pod.uid != uid:
            return EvictionAnswer(uid=uid, status=404)
        nominated = self._nominate(pod, effect.node)
        is_lost = self.chance.random() < 0.1
        return EvictionAnswer(uid=uid, status=0) if is_lost else EvictionAnswer(uid=uid, status=200, pod=nominated)

    def evict(self, victim: Pod) -> None:
        """Delete the victim, at once or with a grace period, unless another pod has its name."""
        pod = self.pods.get(victim.metadata.name)
        if pod is None or pod.uid != victim.uid or pod.metadata.deletion_timestamp:
            return
        self.evicted.append(pod)
        if self.chance.random() < 0.5:
            self.replace(pod.metadata.name)
            return
        self.version += 1
        decision = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
        metadata = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        terminating = msgspec.structs.replace(pod, metadata=metadata, status=PodStatus(conditions=[decision]))
        self._store(at_version(terminating, self.version))

    def _nominate(self, pod: Pod, node: str) -> Pod:
        self.version += 1
        nominated = at_version(msgspec.structs.replace(pod, status=PodStatus(nominated_node_name=node)), self.version)
        self._store(nominated)
        return nominated

    def _clear_nomination(self, effect: ClearNomination) -> None:
        """The core gets no answer; now and then the request is lost."""
        pod = self.pods.get(effect.pod.metadata.name)
        if pod is not None and pod.uid == effect.pod.uid and not pod.spec.node_name and self.chance.random() < 0.9:
            self._nominate(pod, "")

    def end_one(self) -> None:
        """A kubelet ends a terminating pod."""
        terminating = sorted(name for name, pod in self.pods.items() if pod.metadata.deletion_timestamp)
        if terminating:
            self.replace(self.chance.choice(terminating))

    def replace(self, name: str) -> None:
        """A pod is deleted, and its controller makes another of the same name."""
        self.delete(name)
        self.create(name)

    def _answer_read(self, effect: GetPod) -> PodAnswer:
        pod = self.pods.get(effect.pod.metadata.name)
        if self.chance.random() < 0.2:
            return PodAnswer(uid=effect.pod.uid, status=0)
        return PodAnswer(uid=effect.pod.uid, status=404 if pod is None else 200, pod=pod)

    def land_late(self) -> None:
        if self.late_posts:
            self.bind(self.late_posts.pop(0))

    def watch(self) -> None:
        if self.lag:
            self.bench.cache.observe(self.lag.pop(0))

    def break_watch(self) -> None:
        self.lag.clear()
        self.bench.cache.observe(
            Listed(kind=PODS, objects=list(self.pods.values()), resource_version=str(self.version))
        )

    def pass_time(self) -> None:
        self.bench.now += self.chance.choice([0.1, 1.0, 12.0])
        self.handle()

    def meddle(self) -> None:
        name = self.chance.choice(sorted(self.pods))
        if self.chance.random() < 0.7:
            self.write(name)
        else:
            self.replace(name)

    def step(self) -> None:
        often = {self.rank: 5, self.answer: 10, self.watch: 8, self.redeliver: 2, self.pass_time: 2}
        seldom = {self.land_late: 1, self.meddle: 1, self.cordon: 1, self.break_watch: 0.3}
        self.chance.choices([*often, *seldom], [*often.values(), *seldom.values()])[0]()

    def come_to_rest(self) -> None:
        for _ in range(2000):
            self.watch()
            self.land_late()
            self.end_one()
            self.answer()
            if not self.under_way:
                self.pass_time()
            if not (self.lag or self.under_way or self.unsettled or self.late_posts):
                return

    # What must hold.

    def load(self, node: str) -> int:
        return sum(pod.spec.node_name == node for pod in self.pods.values())
