"""The articles about label plugins and NetworkTraffic: their profiles in one pipeline, on the real API server."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

ARTICLES = Path(__file__).parents[1] / "data" / "articles"


@pytest.fixture(scope="module")
def articles(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """One pipeline with the profiles of three articles."""
    folder = tmp_path_factory.mktemp("articles")
    files = [ARTICLES / f"{name}.yaml" for name in ("node-score-label", "node-filter-label", "network-traffic")]
    together, *others = (yaml.safe_load(file.read_text()) for file in files)
    for other in others:
        together["profiles"] += other["profiles"]
    (folder / "config.yaml").write_text(yaml.safe_dump(together))
    flags = ("--kubeconfig", own_control_plane.kubeconfig_path, "--leader-elect=false", "-v", 10, "--scorers", 2)
    with berth_up(*flags, "--config", folder / "config.yaml", folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


async def test_the_labelled_node_gets_pods_only_when_the_others_are_full(
    articles: BerthUp, cluster_outside: ClusterUser
):
    others = await cluster_outside.add_nodes(4, cpu="1")
    (labelled,) = await cluster_outside.add_nodes(1, cpu="1", labels={"node": "hello"})
    room = await cluster_outside.add_pods(16, "room", cpu="250m", scheduler="nodelabelscore")
    placed = await cluster_outside.all_bound(room)  # 4 pods of 250m fill a node of 1 cpu: 16 fill the other four
    assert Counter(placed.values()) == dict.fromkeys(others, 4)
    more = await cluster_outside.add_pods(3, "more", cpu="250m", scheduler="nodelabelscore")
    placed = await cluster_outside.all_bound(more)
    assert {placed[name] for name in more} == {labelled}
    assert {labelled} | set(others) <= explained_nodes(articles.said, "NodeScoreLabel")


def explained_nodes(log: str, plugin: str) -> set[str]:
    """The nodes for which a log line of verbosity 10 has the plugin's score."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return {line["node"] for line in lines if line.get("plugin") == plugin and "score" in line}


async def test_only_labelled_nodes_get_pods_and_the_message_gives_the_reason(
    articles: BerthUp, cluster_outside: ClusterUser
):
    labelled = await cluster_outside.add_nodes(3, cpu="1", labels={"cpu": "true"})
    await cluster_outside.add_nodes(2, cpu="8")
    names = await cluster_outside.add_pods(6, cpu="500m", scheduler="nodelabelfilter")
    placed = await cluster_outside.all_bound(names)
    assert Counter(placed.values()) == dict.fromkeys(labelled, 2)
    await cluster_outside.add_pods(1, "late", cpu="500m", scheduler="nodelabelfilter")
    condition = await eventually(lambda: cluster_outside.condition("late-0"), "a condition on the pod")
    assert condition["reason"] == "Unschedulable"
    refusal, _, preemption = condition["message"].partition(" preemption: ")
    assert refusal == "0/5 nodes are available: 2 node(s) didn't have label cpu=true, 3 Insufficient cpu."
    assert preemption.startswith("0/5 nodes are available: ")
    (event,) = await eventually(lambda: cluster_outside.events("FailedScheduling"), "an Event on the pod")
    assert "node(s) didn't have label cpu=true" in event["note"]
    assert "node(s) didn't have label cpu=true" in articles.said
    await cluster_outside.add_nodes(1, cpu="1", labels={"cpu": "true"})
    await cluster_outside.all_bound(["late-0"])


async def test_pods_are_bound_without_prometheus_and_the_decision_says_so(
    articles: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(3)
    names = await cluster_outside.add_pods(6, scheduler="networktraffic-scheduler")
    assert len(await cluster_outside.all_bound(names)) == 6
    await eventually(lambda: details_of(articles, "NetworkTraffic"), "a Decision with details of NetworkTraffic")


async def details_of(berth: BerthUp, plugin: str) -> list[str]:
    """The plugin's details in the Decisions on the bus."""
    session = await berth.session()
    try:
        stored = [json.loads(each.data) async for each in session.scan("DECISIONS", "berth.decision.>")]
    finally:
        await session.close()
    candidates = [candidate for decision in stored for candidate in decision.get("candidates", ())]
    return [candidate["details"][plugin] for candidate in candidates if plugin in candidate.get("details", {})]
