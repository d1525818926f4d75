"""Recorded histories with groups, whose plans begin before other rankings of their scorer and end after them."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from berth.api.kinds import COSCHEDULING_POD_GROUP
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, TOPOLOGY_ANNOTATION, CoschedulingPodGroup
from berth.messages.attempts import Decision, Outcome, Preemption
from berth.messages.bundles import bundled
from berth.messages.encoding import encode
from berth.messages.groupattempts import GROUP_SCHEMA, GroupPending, GroupRanked, decode_group, subject_name
from berth.messages.subjects import PodSubject
from berth.ranking.groupranker import Answering, GroupRanker
from harness.builders.groups import RACK, a_group, members
from harness.builders.objects import a_node
from harness.worlds.recorded_world import CONFIG, RecordedScorer, RecordedWorld


class RecordedGroups(RecordedWorld):
    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self._last: dict[str, str] = {}  # by scorer, the attempt of its last ranking
        self._planning: dict[str, Answering] = {}
        self._groups = 0
        self.interrupted = 0  # plans in which their scorer has ranked something else

    def ask(self) -> None:
        if self.random.random() < 0.6:
            super().ask()
            return
        self._groups += 1
        name, priority = f"gang-{self._groups}", self.random.choice((0, 100))
        cpu = self.random.choice(("500m", "1"))
        pods = [
            msgspec.structs.replace(
                pod,
                metadata=msgspec.structs.replace(pod.metadata, uid=str(uuid5(NAMESPACE_DNS, pod.metadata.name))),
            )
            for pod in members(self.random.randint(2, 4), name, cpu=cpu, priority=priority)
        ]
        self._ask_for_group(name, pods, 1)

    def _ask_for_group(self, name: str, pods: list[Pod], n: int) -> None:
        group = a_group(name, uid=str(uuid5(NAMESPACE_DNS, name)), minimum=len(pods))
        pending = GroupPending(
            config=CONFIG,
            attempt=f"{group.uid}.1.{n}",
            profile="berth",
            group=group,
            bundle=bundled(pods, dict.fromkeys((pod.uid for pod in pods), n)),
            need=len(pods),
        )
        self._pending.append(self.publish("PENDING", _subject("pending", pending), encode(pending)))

    def rank(self) -> None:
        scorer = self.random.choice(self.scorers)
        planning = self._planning.get(scorer.name)
        if planning is not None and self.random.random() < 0.5:
            self._go_on(scorer, planning)
        elif self._pending and msgspec.json.decode(self._pending[0].payload or b"")["schema"] != GROUP_SCHEMA:
            before = len(self.recording.of("RANKED"))
            self.scorers, every = [scorer], self.scorers
            super().rank()
            self.scorers = every
            if len(self.recording.of("RANKED")) > before:
                message = msgspec.json.decode(self.recording.of("RANKED")[-1].payload or b"")
                self._last[scorer.name] = message["attempt"]
                self.interrupted += planning is not None
        elif self._pending and planning is None:
            asked = self._pending.pop(0)
            scorer.view.received(asked.sequence, asked.time)
            ranker = GroupRanker(
                profiles=self.profiles,
                config=CONFIG,
                identity=scorer.name,
                clock=lambda: self.seconds,
                last_ranked=lambda: self._last.get(scorer.name, ""),
            )
            pending = decode_group(asked.payload or b"", GroupPending)
            is_slow = self.random.random() < 0.5
            self._planning[scorer.name] = ranker.answer(pending, scorer.view, may_continue=lambda: not is_slow)
            self._go_on(scorer, self._planning[scorer.name])

    def _go_on(self, scorer: RecordedScorer, planning: Answering) -> None:
        try:
            next(planning)
        except StopIteration as end:
            del self._planning[scorer.name]
            message: GroupRanked = end.value
            self._last[scorer.name] = message.attempt
            self.publish("RANKED", _subject("ranked", message), encode(message))

    def decide(self) -> None:
        ranked = self.recording.of("RANKED")
        if self._ranked == len(ranked):
            return
        payload = ranked[self._ranked].payload or b""
        if msgspec.json.decode(payload)["schema"] != GROUP_SCHEMA:
            super().decide()
            return
        self._ranked += 1
        message = decode_group(payload, GroupRanked)
        if self.random.random() < self._away:
            return
        pods, nodes = {pod.uid: pod for pod in message.bundle.pods()}, message.plan.nodes
        is_bound = message.plan.is_found and self.random.random() < 0.8
        for member, attempt in zip(message.bundle.members, message.bundle.attempts(_term(message)), strict=True):
            planned = next((each for each in message.plan.members if each.uid == member.uid), None)
            if is_bound and planned is not None:
                pod, node = pods[member.uid], nodes[planned.node]
                self._say(message, Outcome.BOUND, pod.metadata.name, pod.uid, str(attempt), node)
                self._to_mirror.append((pod, node))
        outcome = Outcome.BOUND if is_bound else Outcome.PREEMPTING if message.preemption else Outcome.CONFLICT
        group = message.group
        self._say(message, outcome, subject_name(group.key), group.uid, message.attempt, "", message.preemption)
        for victim in message.preemption.victims if message.preemption is not None else ():
            if victim.uid in self._placed:
                self._remove(victim.uid)
        attempt_of_group = int(message.attempt.rpartition(".")[2])
        if not is_bound and attempt_of_group < 3:
            self._ask_for_group(group.name, list(pods.values()), attempt_of_group + 1)

    def _say(
        self,
        message: GroupRanked,
        outcome: Outcome,
        name: str,
        uid: str,
        attempt: str,
        node: str,
        preemption: Preemption | None = None,
    ) -> None:
        decision = Decision(
            config=CONFIG,
            attempt=attempt,
            profile="berth",
            epoch=1,
            outcome=outcome,
            namespace=message.group.namespace,
            pod=name,
            uid=uid,
            node=node,
            preemption=preemption,
        )
        subject = PodSubject(stage="decision", profile="berth", namespace=decision.namespace, pod=name)
        self.publish("DECISIONS", str(subject), encode(decision))


class RecordedMembers(RecordedWorld):
    """Pods, of which some come one by one to a group that must stay in one rack."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        for number in range(self._nodes):
            labels = {RACK: f"r{number % 2}"}
            self.mirror(f"node.n{number}", a_node(f"n{number}", cpu=str(self.random.randint(2, 4)), labels=labels))
        metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang", annotations={TOPOLOGY_ANNOTATION: RACK})
        self.mirror(f"{COSCHEDULING_POD_GROUP.name}.uid-gang", CoschedulingPodGroup(metadata=metadata))

    def ask_for(self, pod: Pod, attempt: str) -> None:
        if self.random.random() < 0.5:
            metadata = msgspec.structs.replace(pod.metadata, labels={GROUP_LABEL: "gang"})
            pod = msgspec.structs.replace(pod, metadata=metadata)
        super().ask_for(pod, attempt)


def _term(message: GroupRanked) -> Any:
    return int(message.attempt.split(".")[-2])


def _subject(stage: str, message: GroupPending | GroupRanked) -> str:
    key = message.group.key
    return str(PodSubject(stage=stage, profile="berth", namespace=key.namespace, pod=subject_name(key)))
