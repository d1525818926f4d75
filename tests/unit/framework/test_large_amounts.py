"""Amounts that float64 columns would round: simulate, scorer and binder count them alike, and exactly."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.node import Node
from berth.api.pod import Pod
from berth.bus.interface import Entry
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.interface import (
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.plugincalls import run_filter_on_all, run_score_on_all
from berth.framework.status import CycleState
from berth.kube.listwatch import Upserted
from berth.messages.attempts import Pending, Ranked
from berth.messages.encoding import decode, encode
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import known_plugins
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_binder.cache import NODES
from berth_binder.events import PostBinding
from berth_cli.remedies.rejections import remedies_of
from berth_cli.simulate.engine import Simulation
from harness.builders.objects import a_container, a_node, a_pod, first_attempt, pod_requesting
from harness.builders.plugin_arguments import arguments_of
from harness.builders.profiles import default_profile
from harness.plugins.long_runs import often
from harness.worlds.binder_bench import Bench

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
EXACT: Final = 2**53  # float64 rounds the next whole number to this one
MOST: Final = 2**63 - 1


def fits(asked: int, free: int) -> tuple[bool, bool]:
    """By all nodes at once, as a scorer ranks, and by one node, as the binder checks."""
    snapshot, profile = Snapshot(), default_profile()
    for name in ("n1", "n2"):
        snapshot.set_node(a_node(name, memory=str(free)))
    pod = pod_requesting(memory=str(asked))
    ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
    return bool(ranking.candidates), check(pod, "n1", snapshot, profile).is_success


def test_one_byte_too_much_is_too_much():
    for amount in (EXACT, EXACT + 1, 2**60, MOST - 1):
        assert fits(amount + 1, amount) == (False, False), amount
        assert fits(amount, amount) == (True, True), amount


def test_the_order_in_which_pods_come_and_go_has_no_effect():
    snapshot, profile = Snapshot(), default_profile()
    snapshot.set_node(a_node("n1", memory=str(MOST)))
    for name, amount in (("one", 1), ("large", EXACT), ("two", 2), ("huge", 2**61)):
        snapshot.place(pod_requesting(name, memory=str(amount)), "n1")
    snapshot.remove_pod("uid-huge")
    free = MOST - EXACT - 3
    for amount, expected in ((free, True), (free + 1, False)):
        assert check(pod_requesting(memory=str(amount)), "n1", snapshot, profile).is_success is expected
    for name in ("large", "one", "two"):
        snapshot.remove_pod(f"uid-{name}")
    assert check(pod_requesting(memory=str(MOST)), "n1", snapshot, profile).is_success
    snapshot.set_node(a_node("n1"))
    assert snapshot.columns.large == {}


# Written as people and the API server write them: fractions, suffixes, exponents, around 2**53 and 2**63, zero.
small = st.sampled_from(["0", "0.1m", "1n", "100m", "1u", "1", "1.5", "2", "1e3", "1E3", "0.5Gi", "1k", "3Mi", 7])
large = st.integers(-2, 2).flatmap(
    lambda off: st.sampled_from([2**46, 2**53, 2**54, 10**18, 2**60, MOST]).map(lambda whole: str(whole + off))
)
suffixed = st.sampled_from(
    ["7E", "8E", "9E", "10E", "1Ei", "7Ei", "8Ei", "9P", "9007199254740993", "9007199254740993k"]
)
quantity = small | large | suffixed
amounts = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("cpu", "memory", "ephemeral-storage", "example.com/bytes"), quantity)
)
nodes = st.lists(amounts, min_size=1, max_size=9).map(
    lambda given: [
        msgspec.convert(
            {
                "metadata": {"name": f"n{number}", "uid": f"n{number}", "resourceVersion": "1"},
                "status": {"capacity": each, "allocatable": {"pods": "110", **each}},
            },
            Node,
        )
        for number, each in enumerate(given)
    ]
)
pods = st.lists(amounts, min_size=1, max_size=6).map(
    lambda given: [pod_requesting(f"p{number}", **each) for number, each in enumerate(given)]
)


@settings(max_examples=often(60))
@given(nodes=nodes, pods=pods)
def test_simulate_and_the_pipeline_decide_alike(nodes, pods):
    assert list(simulated(nodes, pods)) == list(piped(nodes, pods))


def simulated(nodes: list[Node], pods: list[Pod]) -> Iterator[tuple[str, str | None, str]]:
    """(pod, node, message) of each pod by ``berth simulate``."""
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    simulation = Simulation(snapshot=snapshot, profiles={"berth": default_profile()})
    for one in simulation.in_queue_order(pods):
        yield one.pod, one.bound, one.message or ""


def piped(nodes: list[Node], pods: list[Pod]) -> Iterator[tuple[str, str | None, str]]:
    """The same by scorer and binder: what they read and write goes through the bytes of the bus."""
    bench, view = Bench(nodes=0), View()
    for node in nodes:
        mirror(view, f"node.{node.metadata.name}", node)
        bench.observe(Upserted(kind=NODES, object=node))
    ranker = Ranker(profiles=bench.profiles, config="test", identity="s", best=32, explained=8)
    for pod in pods:
        waiting = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version="5"))
        bench.show(waiting)
        pending = Pending(attempt=str(first_attempt(pod)), profile="berth", pod=waiting)
        ranked = ranker.answer(decode(encode(pending), Pending), view, now=0.0)
        effects = bench.take(decode(encode(ranked), Ranked))
        for effect in effects:
            if isinstance(effect, PostBinding):
                bench.answer(effect.pod, 201)
        decision = bench.decisions[-1]
        assert decision.uid == pod.uid
        if decision.node:
            spec = msgspec.structs.replace(waiting.spec, node_name=decision.node)
            placed = msgspec.structs.replace(waiting, spec=spec)
            bench.show(placed)
            mirror(view, f"pod.{pod.uid}", placed)
        yield pod.key, decision.node or None, "" if decision.node else decision.message


def mirror(view: View, key: str, thing: object) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    sequence = view.positions.cluster + 1
    view.apply_mirror([Entry(key=key, data=encode_entry(entry), sequence=sequence, time=NOW)], sequence)


def plugins() -> Iterator[Plugin]:
    for factories in (BUILT_IN, known_plugins(release="1.18")):
        for name, factory in factories.items():
            for args in arguments_of(name, factory).values():
                if not factory.validate(args, "") and (plugin := factory.build(args)).reads_amounts:
                    yield plugin


@settings(max_examples=often(30))
@given(nodes=nodes, placed=pods, pod=pods)
def test_vector_forms_answer_as_scalar_forms(nodes, placed, pod):
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    for number, each in enumerate(placed):
        snapshot.place(each, f"n{number % len(nodes)}")
    waiting = pod[0]
    for plugin in plugins():
        state = CycleState(snapshot.class_of(waiting))
        if isinstance(plugin, PreFilterPlugin):
            plugin.pre_filter(state, waiting, snapshot)
        if isinstance(plugin, PreScorePlugin):
            plugin.pre_score(state, waiting, Nodes(snapshot))
        infos = [info for info in Nodes(snapshot).infos() if info is not None]
        if isinstance(plugin, VectorFilterPlugin):
            verdicts = run_filter_on_all(plugin, state, waiting, Nodes(snapshot))
            by_node = [plugin.filter(state, waiting, info) for info in infos]
            assert [verdicts.statuses[code] for code in verdicts.codes.tolist()] == by_node, plugin.name
        if isinstance(plugin, VectorScorePlugin):
            scores = run_score_on_all(plugin, state, waiting, Nodes(snapshot))
            assert scores.tolist() == [plugin.score(state, waiting, info) for info in infos], plugin.name


@pytest.mark.parametrize(("asked", "victims"), [(EXACT + 1, ("uid-low",)), (EXACT + 2, ())])
def test_a_large_pod_is_evicted_only_where_that_makes_room(asked, victims):
    snapshot = Snapshot()
    snapshot.set_node(a_node("n1", memory=str(EXACT + 1)))
    requests = [a_container(memory=str(EXACT + 1))]
    snapshot.place(a_pod("low", priority=0, containers=requests), "n1")
    pod = a_pod("vip", priority=9, containers=[a_container(memory=str(asked))])
    ranking = rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))
    assert (ranking.nomination.victims if ranking.nomination else ()) == victims


def test_a_shortage_of_one_byte_has_a_remedy():
    snapshot = Snapshot()
    snapshot.set_node(a_node("n1", memory=str(EXACT)))
    (remedy,) = remedies_of(pod_requesting(memory=str(EXACT + 1)), snapshot, default_profile())
    assert (remedy.plugin, remedy.about) == ("NodeResourcesFit", "memory")
