"""`berth simulate` on files: its output and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.worlds.oracle import PROFILES, clusters, decision_of, list_of, objects_of, pods_of, simulated_of, written

ROOT = Path(__file__).parents[2]
BERTH = Path(sys.executable).parent / "berth"


def simulate(*args, stdin="", cwd=None, env=None) -> subprocess.CompletedProcess[str]:
    command = [str(BERTH), "simulate", *map(str, args)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, check=False, timeout=60, cwd=cwd, env=environment
    )


def lines(done) -> list[dict]:
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def cluster():
    (first,) = clusters(1)
    return first


@pytest.fixture
def files(tmp_path, cluster):
    return written(tmp_path / "cluster.json", objects_of(cluster)), written(tmp_path / "pods.json", pods_of(cluster))


@pytest.mark.parametrize("number", [1, 23, 57])
def test_each_pod_alone_is_decided_as_kube_scheduler_decided(tmp_path, number):
    *_, cluster = clusters(number)
    there, pods = tmp_path / "cluster.json", tmp_path / "pods.json"
    written(there, objects_of(cluster)), written(pods, pods_of(cluster))
    decisions = lines(simulate("--cluster", there, "--pods", pods, "--config", PROFILES, "--independent", "-o", "json"))
    assert [line["pod"] for line in decisions] == [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in pods_of(cluster)
    ]
    assert [simulated_of(line) for line in decisions] == [decision_of(case) for case in cluster["cases"]]


def test_several_files_and_standard_input_equal_one_list(tmp_path, cluster, files):
    nodes, others = tmp_path / "nodes.yaml", tmp_path / "others.yaml"
    nodes.write_text(yaml.safe_dump(list_of(cluster["objects"]["nodes"])))
    others.write_text(yaml.safe_dump_all([one for one in objects_of(cluster) if one.get("kind") != "Node"]))
    options = "--config", PROFILES, "-o", "json"
    one_list = simulate("--cluster", files[0], "--pods", files[1], *options)
    pods = json.dumps(list_of(pods_of(cluster)))
    for given in (["--cluster", nodes, others], [f"--cluster={nodes}", "--cluster", others]):
        assert lines(simulate(*given, "--pods", "-", *options, stdin=pods)) == lines(one_list)


def test_the_default_output_is_a_table_with_a_total(cluster, files):
    count = len(pods_of(cluster))
    done = simulate("--cluster", files[0], "--pods", files[1], "--config", PROFILES, "--all")
    head, *rows, blank, sums = done.stdout.splitlines()
    assert (done.returncode, blank) == (0, "")
    assert head.split() == ["POD", "PROFILE", "NODE", "POSSIBLE", "BECAUSE"]
    assert sum(row[:1] != " " for row in rows) == count  # long reasons continue on further lines
    assert f"of {count} pods, on" in sums


def test_another_provider_gives_its_own_placement(tmp_path, files):
    config = tmp_path / "plain.yaml"
    names = ("default-scheduler", "most-allocated", "capacity-ratio", "weights", "args")
    profiles = [{"schedulerName": name} for name in names]
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config.write_text(yaml.safe_dump({**kind, "profiles": profiles}))
    options = "--cluster", files[0], "--pods", files[1], "--config", config, "--independent", "-o", "json"
    usual = lines(simulate(*options))
    packing = simulate(
        *options, "--algorithm-provider", "ClusterAutoscalerProvider", "--feature-gates", "EvenPodsSpread=false"
    )
    assert packing.returncode == 0
    plugins = {plugin for line in map(json.loads, packing.stdout.splitlines()) for plugin in line["scores"]}
    assert "NodeResourcesMostAllocated" in plugins
    assert "PodTopologySpread" not in plugins
    assert any("PodTopologySpread" in line["scores"] for line in usual)


def test_must_fit_ends_with_1_when_a_pod_gets_no_node(tmp_path, cluster, files):
    options = "--cluster", files[0], "--config", PROFILES, "--independent", "-o", "json", "--must-fit"
    everything = simulate(*options, "--pods", files[1])
    assert (everything.returncode, everything.stderr) == (1, "")
    fitting = [case["pod"] for case in cluster["cases"] if case["feasible"]]
    assert lines(simulate(*options, "--pods", written(tmp_path / "fitting.json", fitting)))


def test_must_fit_ends_with_1_when_there_is_no_pod_to_place(tmp_path, files):
    (tmp_path / "nothing.yaml").write_text("kind: ConfigMap\napiVersion: v1\nmetadata: {name: settings}\n")
    for asked in (["--pods", tmp_path / "nothing.yaml"], ["--pending"]):
        done = simulate("--cluster", files[0], *asked, "--must-fit")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.splitlines()[-1] == "berth: no pods to place"


def test_pending_simulates_the_waiting_pods_of_the_cluster(tmp_path, cluster, files):
    whole = written(tmp_path / "whole.json", [*objects_of(cluster), *pods_of(cluster)])
    options = "--config", PROFILES, "--independent", "-o", "json"
    waiting = lines(simulate("--cluster", whole, "--pending", *options))
    named = lines(simulate("--cluster", files[0], "--pods", files[1], *options))
    assert [line["pod"] for line in waiting] == [line["pod"] for line in named]
    assert [line["feasible"] for line in waiting] == [line["feasible"] for line in named]


def test_the_configuration_may_be_named_in_the_environment(files):
    asked = "--cluster", files[0], "--pods", files[1], "--independent", "-o", "json"
    assert lines(simulate(*asked, env={"BERTH_CONFIG": str(PROFILES)})) == lines(simulate(*asked, "--config", PROFILES))


def test_a_deployment_is_checked_against_the_free_resources(tmp_path):
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    node["status"] = {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}
    container = {"name": "main", "image": "web", "resources": {"limits": {"cpu": "500m"}}}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"schedulerName": "berth", "containers": [container]}}
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
    release = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    there = written(tmp_path / "cluster.json", [node])
    for replicas, code in ((4, 0), (5, 1)):
        spec["replicas"] = replicas
        done = simulate(
            "--cluster", there, "--pods", written(tmp_path / "release.json", [release]), "--must-fit", "-o", "json"
        )
        bound = [json.loads(line)["bound"] for line in done.stdout.splitlines()]
        assert (done.returncode, bound.count("n1"), done.stderr) == (code, 4, "")


def test_bad_files_end_with_2_and_a_line_each(tmp_path, files):
    (tmp_path / "bad.yaml").write_text("a: [")
    done = simulate("--cluster", "bad.yaml", "absent.json", "--pods", files[1], "--config", PROFILES, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "berth: bad.yaml: not YAML: did not find expected node content: line 2 column 1",
        "berth: absent.json: reading: No such file or directory",
    ]


def test_both_flags_are_required(files):
    assert simulate("--cluster", files[0]).returncode == 2
    assert simulate("--pods", files[1]).returncode == 2


def test_a_closed_pipe_ends_it_without_a_traceback(files):
    command = f"{BERTH} simulate --cluster {files[0]} --pods {files[1]} --config {PROFILES} -o json | head -1"
    done = subprocess.run([shutil.which("bash"), "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_the_documented_examples_print_what_the_page_shows():
    page = (ROOT / "docs" / "simulate.md").read_text()
    for example in page.split("$ berth simulate ")[1:3]:
        command, shown = example.split("\n", 1)
        done = simulate(*command.split(), cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == shown.split("```", 1)[0]


def test_the_documented_example_with_loads_prints_what_the_page_shows():
    page = (ROOT / "docs" / "simulate.md").read_text()
    *_, example = page.split("$ berth simulate ")
    command, shown = example.replace("\\\n", "").split("\n", 1)
    note, table = shown.split("```", 1)[0].split("\n", 1)
    done = simulate(*command.split(), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, f"{note}\n")
    assert done.stdout == table


def test_the_command_of_the_readme_runs_as_it_stands():
    (command,) = (line for line in (ROOT / "README.md").read_text().splitlines() if "berth simulate " in line)
    done = simulate(*command.split("berth simulate ", 1)[1].split(), cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "placed 4 of 5 pods" in done.stdout
