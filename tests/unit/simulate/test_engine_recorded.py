"""berth simulate decides as a real kube-scheduler 1.36.3 decided (tests/data/oracle)."""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from berth.api.pod import Pod
from berth.framework.profile import Profile
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.simulate.engine import Simulation
from berth_cli.simulate.inputs import read_inputs
from harness.worlds.oracle import (
    PROFILES,
    RESIZE,
    clusters,
    decision_of,
    message_of,
    objects_of,
    pods_of,
    preemptions,
    simulated_of,
    written,
)

SIX_NODES = Path(__file__).parents[2] / "data" / "cases" / "resize-in-place"
CASES, RESIZE_CASES, PREEMPTIONS = 1_901, 240, 80
TIES = {26, 59}
"""Seeds of preemptions with two nodes that are equal by every criterion: kube-scheduler chose by chance."""


@cache
def profiles() -> dict[str, Profile]:
    return dict(profiles_of(read_configuration(PROFILES)))


def simulation_of(folder, objects, pods) -> tuple[Simulation, tuple[Pod, ...]]:
    files = [str(written(folder / "cluster.json", objects))], [str(written(folder / "pods.json", pods))]
    question = read_inputs(*files, profiles())
    assert question.notes == ()
    return Simulation(snapshot=question.snapshot, profiles=profiles()), question.pods


def lines_of(decided) -> list[dict]:
    return [msgspec.json.decode(msgspec.json.encode(one)) for one in decided]


@pytest.mark.slow
def test_each_pod_alone_is_decided_as_kube_scheduler_decided(tmp_path):
    wrong, count = {}, 0
    for cluster in clusters():
        simulation, pods = simulation_of(tmp_path, objects_of(cluster), pods_of(cluster))
        for case, line in zip(cluster["cases"], lines_of(simulation.independently(pods)), strict=True):
            count += 1
            if decision_of(case) != simulated_of(line):
                wrong[cluster["seed"], line["pod"]] = line
    assert (count, wrong) == (CASES, {})


def test_the_chosen_node_has_the_best_total_and_every_node_is_accounted_for(tmp_path):
    for cluster in clusters(20):
        simulation, pods = simulation_of(tmp_path, objects_of(cluster), pods_of(cluster))
        names = {node["metadata"]["name"] for node in cluster["objects"]["nodes"]}
        for line in simulation.independently(pods):
            if line.totals:
                assert line.bound is not None
                assert line.totals[line.bound] == max(line.totals.values())
            if line.rejections or line.feasible:
                assert {*line.feasible} | line.rejections.keys() == names
                assert not {*line.feasible} & line.rejections.keys()


def test_preemption_has_the_recorded_victims_and_message(tmp_path):
    wrong, count = set(), 0
    for recorded in preemptions():
        simulation, pods = simulation_of(tmp_path, objects_of(recorded), [recorded["pod"]])
        (line,) = lines_of(simulation.independently(pods))
        count += 1
        simulated = bool(line["bound"]), line["nominated"], line["victims"], line["message"] or ""
        if simulated != (bool(recorded["bound"]), recorded["nominated"], recorded["victims"], message_of(recorded)):
            wrong.add(recorded["seed"])
    assert (count, wrong) == (PREEMPTIONS, TIES)


def test_pods_beside_pods_in_the_middle_of_a_resize_are_decided_as_kube_scheduler_decided(tmp_path):
    wrong, count = {}, 0
    for cluster in clusters(file=RESIZE):
        simulation, pods = simulation_of(tmp_path, objects_of(cluster), pods_of(cluster))
        for case, line in zip(cluster["cases"], lines_of(simulation.independently(pods)), strict=True):
            count += 1
            if decision_of(case) != simulated_of(line):
                wrong[line["pod"]] = line
    assert (count, wrong) == (RESIZE_CASES, {})


def test_a_pod_in_the_middle_of_a_resize_counts_with_the_most_that_may_be_in_use():
    """Six nodes of 4 cpu; 2 fit only beside the pod whose raise its kubelet has called infeasible."""
    default = dict(profiles_of(read_configuration(None)))
    question = read_inputs([str(SIX_NODES / "cluster.yaml")], [str(SIX_NODES / "pods.yaml")], default)
    decided = Simulation(snapshot=question.snapshot, profiles=default).independently(question.pods)
    assert {line.pod: line.bound for line in decided if line.bound} == {"default/on-infeasible": "infeasible"}
    assert (len(question.pods), question.notes) == (6, ())


@pytest.mark.slow
def test_in_queue_order_is_the_same_as_placing_one_by_one(tmp_path):
    for cluster in clusters(6):
        simulation, pods = simulation_of(tmp_path, objects_of(cluster), pods_of(cluster))
        objects, by_key = objects_of(cluster), {f"ns/{p['metadata']['uid']}": p for p in pods_of(cluster)}
        keys = {pod.key: f"ns/{pod.uid}" for pod in pods}
        for line in simulation.in_queue_order(pods):
            pod = by_key[keys[line.pod]]
            by_hand, (alone,) = simulation_of(tmp_path, objects, [pod])
            assert list(by_hand.independently([alone])) == [line]
            if line.bound is not None:
                objects = [*objects, {**pod, "spec": {**pod["spec"], "nodeName": line.bound}}]
