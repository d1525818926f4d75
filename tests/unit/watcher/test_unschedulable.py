"""The index finds exactly the pods for which a plugin's hint says yes, and asks few hints for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.config.types import Point
from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod, PodAffinity, PodAffinityTerm
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.extending import EXTENDER
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome
from berth.messages.livedata import BANDWIDTH, LiveSource, NodeSample, encode_sample
from berth.plugins.interpodaffinity import plugin
from berth.plugins.nodeaffinity import NodeAffinityArgs
from berth.plugins.noderesources.amountsindex import MAX_COLUMNS
from berth.plugins.noderesources.fit import NodeResourcesFitArgs
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import known_plugins
from berth_watcher.queue.hints import QueueingHints, UnschedulablePods
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Timestamp
from berth_watcher.queue.schedulingqueue import QueuePlugins
from berth_watcher.store import RESOURCES, ObjectChange, cluster_events
from harness.builders.objects import a_container, a_pod
from harness.builders.plugin_arguments import arguments_of
from harness.builders.profiles import profile_of
from harness.builders.random_clusters import QUERY, metadata, namespaces, nodes, pods, samples, specs
from harness.builders.random_objects import BY_KIND, NODE_NAMES
from harness.plugins.long_runs import often

pytestmark = pytest.mark.timeout(600)  # hypothesis shrinks a failure before it reports it
ADDED = NodeAffinityArgs(
    added_affinity=NodeAffinity(
        required_during_scheduling_ignored_during_execution=NodeSelector(
            node_selector_terms=[
                NodeSelectorTerm(match_expressions=[SelectorRequirement(key="disk", operator="In", values=["a", "1"])])
            ]
        )
    )
)
NODE_CHANGED = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_ALLOCATABLE)


OF_1_18 = known_plugins(release="1.18")


def made(name: str, *, of_1_18: bool = False, args: object = None):
    factory = (OF_1_18 if of_1_18 else BUILT_IN)[name]
    with_an_effect = next(iter(arguments_of(f"1.18 {name}" if of_1_18 else name, factory).values()))
    return factory.build(args or with_an_effect)


PROFILES = {
    **{
        f"{name} of {release}": (profile_of(made(name, of_1_18=release == "1.18")), [name])
        for release in ("1.36", "1.18")
        for name, factory in BUILT_IN.items()
        if {Point.PRE_FILTER, Point.FILTER} & set(factory.points)
        and (release == "1.36" or type(made(name, of_1_18=True)) is not type(made(name)))
    },
    "without the GPUs": (
        profile_of(made("NodeResourcesFit", args=NodeResourcesFitArgs(ignored_resources=["example.com/gpu"]))),
        ["NodeResourcesFit"],
    ),
    "with affinity of the profile": (profile_of(made("NodeAffinity", args=ADDED)), ["NodeAffinity"]),
    "all plugins": (profile_of(*map(made, BUILT_IN)), list(BUILT_IN)),
}
KINDS_OF = {resource: name for name, resource in RESOURCES.items()}


@st.composite
def changes(draw: st.DrawFn, kind: str) -> list[tuple[ClusterEvent, object, object]]:
    """The events of a change of an object, which is mostly an update of one part."""
    things = {"node": nodes, "pod": pods, "namespace": namespaces}.get(kind)
    things = BY_KIND[kind] if things is None else things
    old, new = (draw(st.one_of(st.none(), *[things] * 4)) for _ in range(2))
    if old is not None and new is not None:
        meta = msgspec.structs.replace(new.metadata, name=old.metadata.name, uid=old.metadata.uid)
        new = msgspec.structs.replace(new, metadata=meta)
    return list(cluster_events(ObjectChange(kind=kind, name="it", old=old, new=new)))


live_data = st.builds(
    lambda node, sample: (
        ClusterEvent(Resource.BANDWIDTH, Action.UPDATE),
        None,
        LiveDataUpdate(
            source=LiveSource(bucket=BANDWIDTH, name=QUERY.token),
            node=node,
            data=encode_sample(sample) if isinstance(sample, NodeSample) else sample,
        ),
    ),
    st.sampled_from(NODE_NAMES),
    st.none() | samples | st.just(b"odd"),
)


def events_for(profile: Profile, plugins: list[str]) -> st.SearchStrategy[list[tuple[ClusterEvent, object, object]]]:
    """Events of the resources that the plugins registered."""
    hints = [hint for name in plugins for hint in profile.event_hints.get(name) or ()]
    # Of objects in the watcher's mirror; it has no devices yet.
    resources = {hint.event.resource for hint in hints} & KINDS_OF.keys()
    kinds = [changes(KINDS_OF[each]) for each in sorted(resources or {Resource.POD})]
    return st.one_of(*kinds, *([live_data.map(lambda each: [each])] if "NetworkTraffic" in plugins else []))


full_pods = st.builds(Pod, metadata=metadata, spec=specs)
"""Pods with something for every plugin: most random pods are special in one field only."""


@st.composite
def rejected_pods(draw: st.DrawFn, names: list[str]) -> list[QueuedPod]:
    """Waiting pods: some equal but for their name, some preempting, some that no plugin rejected."""
    found = []
    for number, like in enumerate(draw(st.lists(pods | full_pods | full_pods, min_size=2, max_size=6))):
        for copy in range(draw(st.integers(1, 3))):
            uid = like.uid if copy == 0 and draw(st.booleans()) else f"w{number}-{copy}"
            meta = msgspec.structs.replace(like.metadata, uid=uid)
            pod = QueuedPod(pod=msgspec.structs.replace(like, metadata=meta), timestamp=datetime.now(UTC))
            pod.unschedulable_plugins = draw(
                st.frozensets(st.sampled_from(names), min_size=1, max_size=2)
                if number
                else st.sampled_from([frozenset(), frozenset(["Unknown"]), frozenset(names[:1])])
            )
            if draw(st.integers(0, 5)) == 0:
                pod.outcome, pod.node = Outcome.PREEMPTING, draw(st.sampled_from(["", *NODE_NAMES]))
            found.append(pod)
    return list({pod.uid: pod for pod in found}.values())


def hints_of(profile: Profile) -> QueueingHints:
    clock = EventClock(Timestamp(monotonic=0.0, wall=datetime.now(UTC)))
    profiles = {"berth": profile}
    return QueueingHints(profiles, QueuePlugins(profiles, clock), lambda _: False)


def found_by(waiting: UnschedulablePods, event: ClusterEvent, old: object, new: object) -> set[str]:
    return {pod.uid for pod in waiting.helped_by(event, old, new) if pod is not None}


@pytest.mark.parametrize("profile", PROFILES)
@settings(max_examples=often(4))
@given(data=st.data())
def test_event_wakes_exactly_the_pods_whose_hints_say_yes(data, profile):
    profile, names = PROFILES[profile]
    hints = hints_of(profile)
    waiting = UnschedulablePods({"berth": profile}, hints)
    there = data.draw(rejected_pods(names))
    for pod in there:
        waiting.add(pod)
    for gone in data.draw(st.lists(st.sampled_from(there), max_size=2)):
        waiting.discard(gone)
        there = [pod for pod in there if pod is not gone]
    for back in data.draw(st.lists(st.sampled_from(there), max_size=2, unique_by=lambda pod: pod.uid)) if there else ():
        waiting.discard(back)
        waiting.add(back)

    happened = data.draw(st.lists(events_for(profile, names), min_size=2, max_size=4))
    for event, old, new in (each for several in happened for each in several):
        one_by_one = {pod.uid for pod in there if hints.may_help(pod, event, old, new)}

        assert found_by(waiting, event, old, new) == one_by_one
        assert one_by_one <= {pod.uid for pod in waiting.waiting_for(event) if pod is not None} | {
            each.uid for each in (old, new) if hasattr(each, "uid")
        }


@given(st.data(), st.lists(nodes, min_size=2, max_size=4))
def test_requests_of_more_resources_than_the_index_has_room_for_are_found(data, changed):
    profile = profile_of(made("NodeResourcesFit"))
    hints = hints_of(profile)
    waiting = UnschedulablePods({"berth": profile}, hints)
    many = [{f"example.com/r{n}": "1", "cpu": "1"} for n in range(MAX_COLUMNS + 5)]
    there = [rejected(requesting(wanted), "NodeResourcesFit") for wanted in [*many, *data.draw(some_requests)]]
    for pod in there:
        waiting.add(pod)

    for old, new in itertools.pairwise(changed):
        one_by_one = {pod.uid for pod in there if hints.may_help(pod, NODE_CHANGED, old, new)}
        assert found_by(waiting, NODE_CHANGED, old, new) == one_by_one


some_requests = st.lists(
    st.fixed_dictionaries(
        {}, optional={"cpu": st.sampled_from(["1", "2"]), "example.com/gpu": st.sampled_from(["1", "4"])}
    ),
    max_size=4,
)


def requesting(amounts: dict[str, str]):
    return a_pod("p", containers=[a_container(**amounts)])


NUMBERS: Iterator[int] = iter(range(10**9))


def rejected(pod, *plugins: str) -> QueuedPod:
    meta = msgspec.structs.replace(pod.metadata, uid=f"waiting-{next(NUMBERS)}")
    queued = QueuedPod(pod=msgspec.structs.replace(pod, metadata=meta), timestamp=datetime.now(UTC))
    queued.unschedulable_plugins = frozenset(plugins)
    return queued


def test_any_event_may_help_a_pod_whose_nodes_an_extender_has_rejected():
    profile = profile_of(made("NodeName"))
    extended = replace(profile, extenders=(ExtenderConfiguration(url_prefix="", name="", filter_verb="filter"),))
    claim = ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.UPDATE)
    assert hints_of(extended).is_event_registered(claim)  # also while the pod is in flight
    assert not hints_of(profile).is_event_registered(claim)
    waiting = UnschedulablePods({"berth": extended}, hints_of(extended))
    helped, other = rejected(a_pod(), EXTENDER), rejected(a_pod(), "NodeName")
    waiting.add(helped)
    waiting.add(other)
    assert found_by(waiting, claim, None, None) == {helped.uid}
    assert hints_of(extended).may_help(helped, claim, None, None)


def test_event_about_a_pod_costs_nothing_for_pods_with_as_many_terms_as_allowed(monkeypatch):
    """Terms of all of them would be more than are kept compiled: every event would compile them again."""
    terms = [
        PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": f"other-{n}"}))
        for n in range(256)
    ]
    apart = PodAffinity(required_during_scheduling_ignored_during_execution=terms)
    affinity = Affinity(pod_anti_affinity=apart)
    profile = profile_of(made("InterPodAffinity"))
    waiting = UnschedulablePods({"berth": profile}, hints_of(profile))
    for number in range(200):
        waiting.add(rejected(a_pod(labels={"app": f"own-{number}"}, affinity=affinity), "InterPodAffinity"))
    compiled = []
    monkeypatch.setattr(plugin, "_terms_of", lambda pod: compiled.append(pod.uid) or plugin._compiled(pod))
    deleted = ClusterEvent(Resource.POD, Action.DELETE)

    assert found_by(waiting, deleted, a_pod(labels={"app": "stranger"}, node_name="n1"), None) == set()
    assert compiled == []
    assert len(found_by(waiting, deleted, a_pod(labels={"app": "other-7"}, node_name="n1"), None)) == 200
