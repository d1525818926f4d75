"""Whatever value stands in whichever field of an object or a message: it costs its owner alone.

Every value of `fuzz.fields` in every field of every type that watcher, scorer and binder decode, each in an otherwise
ordinary object beside honest nodes and pods, goes through a whole cycle. A run in which something breaks is repeated
with one value at a time, so that the failure names the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import pytest

from berth.messages.encoding import encode
from berth.messages.queue import PageRequest, PodRequest, decode_queue_answer
from berth.messages.subjects import Uid
from berth.safetext import one_line
from berth_binder.eventrecorder.records import condition_of, event_of, events_of_victims
from berth_cli.pods.explain import decision_json, decision_lines
from berth_cli.pods.lookup import ExplainedDecision
from fuzz.fields import MANY, MISSING, Odd, at, odd_values, struct_fields, with_value
from fuzz.ordinary import FORMS, Body, asking_for_the_slot, beside, cluster, plain_pod
from fuzz.wholecycle import EPOCH, KINDS, ONE_MEGABYTE, WholeCycle
from harness.plugins.long_runs import IS_LONG

RAISED: Final = re.compile(r"running \w+ plugin|checking it for a pod|cannot be checked|\braised\b")
"""What is said where a guard has caught an exception."""
TOGETHER: Final = 64
"""Odd objects of one world: as many as fit into the window, and more do not make it faster."""
EVERY: Final = 1 if IS_LONG else 19
"""Each run of `make test` tries every so many-th value of a field, another one in each field; `make test-long` all."""
FOUND: Final = frozenset(
    {
        "node, status.allocatable.pods: above int64 as text",
        "node, metadata.name: 100,000 digits as text",
        "pod, metadata.name: 100,000 digits as text",
        "pod, spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.*.weight: least int32",
    }
)
"""What broke something once."""
SECONDS: Final = 2.0
FAILURE: Final = ("status", "failure")
OF_THE_BUS: Final = {("whole",), ("packed",), FAILURE, (*FAILURE, "reason"), (*FAILURE, "at")}
"""Only berth writes these fields, on the bus."""
NOT_ITS_SCHEDULERS: Final = ((), ("nodeName",), ("schedulerName",))
"""Fields of the spec with which the pod may be no pod of berth's."""
NAMESPACE_OF_OBJECT: Final = ("metadata", "namespace")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One odd value in one form of a kind."""

    kind: str
    form: Callable[[str], Body]
    odd: Odd

    def __str__(self) -> str:
        return f"{self.kind}, {self.odd}"


def trials(kind: str) -> list[Trial]:
    """Each value of each field, in the first form that has the field."""
    left = {path for path, _ in struct_fields(_struct(kind))} - OF_THE_BUS
    found: list[Trial] = []
    if not KINDS[kind].is_namespaced:
        left.remove(NAMESPACE_OF_OBJECT)
    for form in FORMS[kind]:
        body = form("odd")
        here = {path for path in left if at(body, path) is not MISSING}
        left -= here
        found += [
            Trial(kind=kind, form=form, odd=odd)
            for odd in odd_values(_struct(kind), body, many=MANY * 50 if IS_LONG else MANY)
            if odd.field in here
        ]
    assert not left, f"no ordinary {kind} has {', '.join('.'.join(path) for path in left)}"
    return found


def _struct(kind: str) -> type[Any]:
    return KINDS[kind].served or KINDS[kind].struct


def chosen(kind: str) -> list[Trial]:
    """A share of them that has each value, something of each field, and what was found."""
    every = trials(kind)
    return every[::EVERY] + [each for each in every if str(each) in FOUND]


T = TypeVar("T")


def batched(trials: Sequence[T]) -> Iterator[Sequence[T]]:
    return (trials[begin : begin + TOGETHER] for begin in range(0, len(trials), TOGETHER))


def problem_of(batch: Sequence[Trial]) -> str:
    """What a world with these objects shows; empty if all is well."""
    world = WholeCycle()
    try:
        for kind, body in cluster():
            world.apply(kind, body)
        odd: list[tuple[str, str, bytes]] = []
        for number, trial in enumerate(batch):
            name = f"odd-{number}"
            odd.append((trial.kind, name, with_value(trial.form(name), trial.odd.path, trial.odd.value)))
            for kind, body in beside(trial.kind, trial.form, name):
                world.apply(kind, body)
            world.apply(*odd[-1][::2])
        world.apply("pod", plain_pod("honest-pod"))
        world.apply("pod", asking_for_the_slot("urgent", priority=1000))
        world.settle(seconds=SECONDS)
        check(world, batch)
        for kind, _, raw in odd:
            world.apply(kind, raw, deleted=True)
        world.apply("pod", plain_pod("later-pod"))
        world.settle(seconds=SECONDS)
        assert "uid-later-pod" in world.bound, f"a pod after it waits: {world.said_of('later-pod')}"
    except Exception as error:  # noqa: BLE001 - it becomes the sentence of the failure
        return f"{type(error).__name__}: {error}"
    return ""


def check(world: WholeCycle, batch: Sequence[Trial]) -> None:
    assert "uid-honest-pod" in world.bound, f"an honest pod waits: {world.said_of('honest-pod')}"
    assert "victim" in world.evicted, f"an urgent pod evicts none: {world.said_of('urgent')}"
    check_people(world)
    check_guards(world)
    for number, trial in enumerate(batch):
        path = trial.odd.path
        if trial.kind == "pod" and path[0] == "spec" and path[1:2] not in NOT_ITS_SCHEDULERS:
            name = f"odd-{number}"
            spec = trial.form(name)["spec"]
            if not (spec.get("nodeName") or spec.get("schedulingGates") or f"uid-{name}" in world.bound):
                queued = world.watcher.core.find(Uid(f"uid-{name}"))  # a pod that lacks a claim
                is_gated = queued is not None and queued.message
                assert is_gated or world.said_of(name), f"nothing is said of the pod of {trial}"


def check_people(world: WholeCycle) -> None:
    """What people and the API server get is of bounded size, and is text that may be shown."""
    assert world.longest_message < ONE_MEGABYTE, f"a message of {world.longest_message} bytes"
    for decision in world.decisions:
        decided = ExplainedDecision(decision=decision, at=EPOCH, now=EPOCH)
        list(decision_lines(decided))
        msgspec.json.encode(decision_json(decided))
    for record in world.events:
        for event in (event_of(record.decision, record.pod), *events_of_victims(record.decision, record.pod)):
            if event is not None:
                assert_shown(event.note)
        if (condition := condition_of(record.decision, record.pod)) is not None:
            assert_shown(condition.message)
    answers, now = world.watcher.core.answers, world.watcher.now
    decode_queue_answer(encode(answers.page(PageRequest(), now)))
    for _, place in [key for key in world.objects if key[0] == "pod"]:
        namespace, _, name = place.partition("/")
        decode_queue_answer(encode(answers.pod(PodRequest(namespace=namespace, name=name), now)))


def check_guards(world: WholeCycle) -> None:
    """No code of berth's or of a plugin has raised, which a guard would have kept from others."""
    texts = [*(decision.message for decision in world.decisions), *world.warnings, *world.dead_letters]
    raised = [text for text in texts if RAISED.search(text)]
    assert not raised, f"code has raised: {raised[0]:.500}"


def assert_shown(text: str) -> None:
    assert text == one_line(text), f"a text reaches people as it is: {text!r:.300}"


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_value_costs_its_owner_alone(kind: str):
    for batch in batched(chosen(kind)):
        if found := problem_of(batch):
            alone = [f"{trial}: {problem}" for trial in batch if (problem := problem_of([trial]))]
            pytest.fail("\n".join(alone[:20]) or f"only together: {found}")
