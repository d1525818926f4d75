"""Loads from files: what NodeMetrics and berth's own samples become, and what NodeLoad does with them."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from berth_cli.commands import simulate as command
from berth_cli.simulate.documents import documents
from berth_cli.simulate.loads import loads_of

METRICS = """
apiVersion: metrics.k8s.io/v1beta1
kind: NodeMetricsList
items:
- {metadata: {name: a}, timestamp: "2026-11-26T10:00:00Z", window: 20s, usage: {cpu: 3500m, memory: 2Gi}}
- {metadata: {name: b}, timestamp: "2026-11-26T10:00:10Z", window: 20s, usage: {cpu: 812345678n}}
"""
SAMPLE = """
kind: NodeSample
metadata: {name: a}
cpu: {average: 1000, p95: 9000}
sampled_at: "2026-11-26T09:59:00Z"
"""


def read(*texts: str) -> tuple[dict, list[str]]:
    problems: list[str] = []
    found = [each for text in texts for each in documents("load.yaml", f"---\n{text}".encode(), problems)]
    return loads_of(found, problems), problems


def test_node_metrics_count_for_every_statistic():
    loads, problems = read(METRICS)
    assert problems == []
    cpu, memory = loads["a"].cpu, loads["a"].memory
    assert (cpu.average, cpu.p95, cpu.deviation, memory.average) == (3500, 3500, 0, 2 * 2**30)
    assert (loads["b"].cpu.average, loads["b"].memory) == (813, None)  # rounded up to millicores


def test_of_several_samples_of_a_node_the_newest_counts():
    assert read(SAMPLE)[0]["a"].cpu.p95 == 9000
    assert read(METRICS, SAMPLE)[0]["a"].cpu.average == 3500
    assert read(SAMPLE, METRICS)[0]["a"].cpu.average == 3500


def test_numbers_may_have_an_exponent():
    assert read(sample("cpu: {average: 3E3}"))[0]["a"].cpu.average == 3000


def metrics(more: str = "usage: {}") -> str:
    return f"{{kind: NodeMetrics, metadata: {{name: a}}, timestamp: '2026-11-26T10:00:00Z', {more}}}"


def sample(more: str) -> str:
    return f"{{kind: NodeSample, metadata: {{name: a}}, sampled_at: '2026-11-26T10:00:00Z', {more}}}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{kind: Pod, metadata: {name: a}}", "node a: kind: want NodeMetrics or NodeSample, got 'Pod'"),
        (metrics(), "node a: usage: want cpu or memory, got none"),
        (metrics("usage: {cpus: 1}"), "node a: usage: want cpu or memory, got cpus"),
        (metrics("usage: {cpu: much}"), "node a: usage.cpu: want a quantity such as 500m or 2Gi, got 'much'"),
        (metrics("usage: {cpu: -5m}"), "node a: usage.cpu: want 0 to a petabyte, got -5m"),
        (metrics("usages: {cpu: 1}"), "node a: usages: unknown field, did you mean 'usage'?"),
        (
            "{kind: NodeMetrics, metadata: {name: a}, usage: {cpu: 1}}",
            "node a: timestamp: want a time with its zone such as 2026-11-26T10:00:00Z, got None",
        ),
        (
            "{kind: NodeMetrics, metadata: {name: a}, timestamp: '0001-01-01T00:00:00Z', usage: {cpu: 1}}",
            "node a: timestamp: want a year of 1970 to 2286, got 0001-01-01T00:00:00+00:00",
        ),
        ("{kind: NodeSample, metadata: {}, cpu: {average: 1}}", "metadata.name: want the node's name, got None"),
        (sample("cpu: {average: -1}"), "node a: cpu.average: want millicores of 0 to 1e+15, got -1"),
        (sample("memory: {p95: 1e20}"), "node a: memory.p95: want bytes of 0 to 1e+15, got 1e+20"),
        (sample("cpu: {average: .nan}"), "node a: cpu.average: want a number, got '.nan'"),
        (sample("cpu: {average: -.inf}"), "node a: cpu.average: want a number, got '-.inf'"),
        (sample("cpu: {avg: 3200}"), "node a: cpu.avg: unknown field"),
        (sample("cpus: {average: 400}"), "node a: cpus: unknown field, did you mean 'cpu'?"),
        (
            sample("cpu: {}"),
            "node a: want cpu or memory with one of average, deviation, p50, p90, p95, p99, got none",
        ),
        (
            "{kind: NodeSample, metadata: {name: a}, cpu: {average: 1}}",
            "node a: sampled_at: want a time with its zone such as 2026-11-26T10:00:00Z, got None",
        ),
        (
            "{kind: NodeSample, metadata: {name: a}, cpu: {average: 1}, sampled_at: '2026-11-26T10:00:00'}",
            "node a: sampled_at: want a time with its zone such as 2026-11-26T10:00:00Z, got '2026-11-26T10:00:00'",
        ),
    ],
)
def test_what_cannot_be_read_is_named_with_its_file_node_and_field(text, problem):
    assert read(text) == ({}, [f"load.yaml: {problem}"])


def test_all_mistakes_of_a_sample_are_named():
    text = sample("cpu: {average: -1, p9: 3}, memory: 5").replace("2026", "0001")
    _, problems = read(text)
    assert problems == [
        "load.yaml: node a: cpu.p9: unknown field, did you mean 'p99'?",
        "load.yaml: node a: memory: want a mapping, got 5",
        "load.yaml: node a: sampled_at: want a year of 1970 to 2286, got 0001-11-26T10:00:00+00:00",
        "load.yaml: node a: cpu.average: want millicores of 0 to 1e+15, got -1",
    ]


def test_a_number_that_no_computer_holds_is_a_mistake_of_its_node():
    text = '{"kind": "NodeSample", "metadata": {"name": "a"}, "cpu": {"average": 1%s}}' % ("0" * 400)
    problems: list[str] = []
    assert loads_of(documents("load.json", text.encode(), problems), problems) == {}
    assert problems == ["load.json: node a: decoding a NodeSample: int too large to convert to float"]


CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: NodeLoad, weight: 10}]}}
  pluginConfig: [{name: NodeLoad, args: {resourceWeights: {cpu: 1}}}]
"""
NODE = """---
apiVersion: v1
kind: Node
metadata: {{name: {0}}}
status: {{allocatable: {{cpu: 10, memory: 10Gi, pods: 9}}}}
"""
POD = "---\n{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i}]}}"


def simulated(tmp_path, config: str, load: str, nodes: str = "abc") -> tuple[dict, str]:
    files = {"cluster": "".join(map(NODE.format, nodes)), "pods": POD, "load": load, "config": config}
    arguments = ["-o", "json"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        arguments += [f"--{name}", str(tmp_path / name)]
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


def test_node_load_places_by_the_loads_of_the_file(tmp_path):
    report, notes = simulated(
        tmp_path, CONFIG, METRICS + "- {metadata: {name: z}, timestamp: '2026-11-26T10:00:00Z', usage: {cpu: 1}}"
    )
    # a pod without requests is estimated at 250 millicores; a: 100 - 35 - 2.5 = 62, b: 100 - 8.13 - 2.5 = 89; c, which
    # has no sample, is the mean: 100 - (35 + 8.13) / 2 - 2.5 = 75
    assert report["scores"]["NodeLoad"] == {"a": 620, "b": 890, "c": 750}
    assert report["bound"] == "b"
    assert "--load: 1 of 3 nodes have no sample" in notes
    assert "--load: 1 of 3 samples are of nodes that the cluster does not have" in notes


def test_a_sample_that_is_older_than_the_newest_by_more_than_its_age_does_not_count(tmp_path):
    old = METRICS.replace("10:00:00Z", "09:54:00Z")  # 370 s before b's, of 300
    report, _ = simulated(tmp_path, CONFIG, old, nodes="ab")
    assert report["scores"]["NodeLoad"] == {"a": 890, "b": 890}  # the mean of b alone


def test_a_plugin_that_abstains_is_said_once(tmp_path):
    late = METRICS.replace("10:00:10Z", "10:10:00Z")  # b's; 600 s after a's
    report, notes = simulated(tmp_path, CONFIG, late)
    assert report["scores"]["NodeLoad"] == {"a": 0, "b": 0, "c": 0}
    assert notes.count("--load: NodeLoad: CPU abstains: 1 of 3 nodes have a recent sample\n") == 1


def test_a_statistic_that_no_sample_has_is_said(tmp_path):
    _, notes = simulated(tmp_path, CONFIG, "---\n" + sample("cpu: {p95: 100}"), nodes="a")
    assert "--load: NodeLoad: CPU abstains: 0 of 1 nodes have a recent sample\n" in notes


def test_a_resource_that_few_samples_have_is_said(tmp_path):
    _, notes = simulated(tmp_path, CONFIG.replace("cpu: 1", "cpu: 1, memory: 1"), METRICS)
    assert "--load: NodeLoad: memory left out: 1 of 3 nodes have a recent sample\n" in notes


def test_loads_that_no_plugin_reads_are_said(tmp_path):
    config = CONFIG.replace("NodeLoad", "NodeFailures").replace("resourceWeights: {cpu: 1}", "")
    assert "--load: no profile has a plugin that reads samples" in simulated(tmp_path, config, METRICS)[1]
