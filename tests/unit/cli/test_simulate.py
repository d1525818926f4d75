"""The table of berth simulate: a line a pod, and a summary; and the cluster that it reads."""

import json

import msgspec
import pytest
from typer.testing import CliRunner

from berth_cli.commands import simulate as command
from berth_cli.commands.simulate import first_rows, groups_table, row_of, summary_of
from berth_cli.commands.simulate import table_of as table_of_rows
from berth_cli.simulate.engine import NodeRejection, PodReport, ReportCounts
from berth_cli.simulate.groups import PodGroupReport
from berth_cli.simulate.live import RunningCluster
from harness.worlds.printed import printed, words

FULL = NodeRejection(plugin="NodeResourcesFit", reasons=("Insufficient cpu",))
BOUND = PodReport(
    pod="default/web",
    profile="berth",
    bound="n1",
    feasible=["n1", "n2"],
    scores={"A": {"n1": 7, "n2": 9}, "B": {"n1": 100, "n2": 0}, "C": {"n1": 3, "n2": 1}, "D": {"n1": 1, "n2": 1}},
    totals={"n1": 111, "n2": 11},
    rejections={"n3": FULL},
)
ONLY = PodReport(pod="default/only", profile="berth", bound="n2", feasible=["n2"])
NOWHERE = PodReport(
    pod="default/big", profile="berth", rejections={"n1": FULL}, message="0/1 nodes are available: 1 Insufficient cpu."
)
NOMINATED = PodReport(
    pod="default/vip", profile="other", message="0/1 nodes are available.", nominated="n1", victims=["a", "b"]
)


def table_of(decided):
    return table_of_rows([row_of(one) for one in decided])


def summary(decided):
    counts = ReportCounts()
    for one in decided:
        counts.add(one)
    return summary_of(counts)


def test_a_pod_has_its_node_what_made_it_best_and_the_runner_up():
    lines = printed(table_of([BOUND]), width=160)
    assert words(lines) == [
        ["POD", "NODE", "POSSIBLE", "BECAUSE"],
        ["default/web", "n1", "2", "of", "3", "111", "(n2", "11):", "B", "100,", "A", "7,", "C", "3,", "..."],
    ]


def test_the_only_possible_node_was_not_scored():
    assert words(printed(table_of([ONLY])))[1] == [
        "default/only",
        "n2",
        "1",
        "of",
        "1",
        "the",
        "only",
        "one",
        "possible",
    ]


def test_a_nominated_node_that_was_tried_alone_is_not_called_the_only_possible_one():
    lines = printed(table_of_rows([row_of(ONLY, nominated_first=True)]))
    assert " ".join(words(lines)[1]) == "default/only n2 1 of 1 nominated for it, tried alone"


def test_a_pod_without_a_node_has_the_reason():
    assert words(printed(table_of([NOWHERE])))[1] == (
        ["default/big", "-", "0", "of", "1", "0/1", "nodes", "are", "available:", "1", "Insufficient", "cpu."]
    )


def test_a_nominated_pod_has_its_victims():
    assert words(printed(table_of([NOMINATED])))[1] == (
        ["default/vip", "(n1)", "evicting", "a,", "b:", "0/1", "nodes", "are", "available."]
    )


def test_several_profiles_have_a_column():
    assert words(
        printed(
            table_of([BOUND, NOMINATED]),
        )
    )[0] == ["POD", "PROFILE", "NODE", "POSSIBLE", "BECAUSE"]


def test_the_summary_counts_pods_with_a_node():
    assert str(summary([BOUND, ONLY, NOWHERE, NOMINATED])) == (
        "placed 2 of 4 pods, on 2 nodes; 1 would preempt pods; 1 fit nowhere"
    )
    assert str(summary([BOUND])) == "placed 1 of 1 pod, on 1 node"


def test_of_a_thousand_pods_ten_are_shown_and_those_without_a_node_first():
    rows = [row_of(one) for one in [*[BOUND] * 990, NOWHERE, *[BOUND] * 9]]
    assert [row.is_placed for row in first_rows(rows)] == [*[True] * 9, False]
    assert [row.is_placed for row in first_rows([row_of(NOWHERE)] * 3)] == [False] * 3
    assert len(printed(table_of_rows(rows), width=160)) == 1001


WHOLE = PodGroupReport(
    group="ml/first",
    dialect="scheduling.x-k8s.io",
    profile="berth",
    minimum=3,
    bound=1,
    members=2,
    placed=2,
    domain="r7",
)
SHORT = PodGroupReport(
    group="ml/second",
    dialect="scheduling.x-k8s.io",
    profile="berth",
    minimum=4,
    members=4,
    message="3 of 4 have a place",
    domain="r1",
)


def test_a_group_has_its_domain_or_what_it_would_evict_or_why_it_waits():
    going = msgspec.structs.replace(SHORT, group="ml/third", victims=["ml/a", "ml/b"])
    assert [line.split(maxsplit=6) for line in printed(groups_table([WHOLE, SHORT, going]), width=160)] == [
        ["GROUP", "MINIMUM", "PLACED", "DOMAIN", "BECAUSE"],
        ["ml/first", "3", "2", "of", "2", "r7", "1 of its pods are on nodes already"],
        ["ml/second", "4", "0", "of", "4", "3", "of 4 have a place"],
        ["ml/third", "4", "0", "of", "4", "evicting", "ml/a, ml/b: 3 of 4 have a place"],
    ]


def test_members_are_counted_as_pods_and_refer_to_their_group():
    placed = PodReport(pod="ml/a", profile="berth", bound="n1", group="ml/first")
    waits = PodReport(pod="ml/b", profile="berth", message="3 of 4 have a place", group="ml/second")
    nominated = msgspec.structs.replace(waits, nominated="n1")
    rows = words(printed(table_of([placed, waits, nominated]), width=160))[1:]
    assert rows == [
        ["ml/a", "n1", "placed", "with", "ml/first"],
        ["ml/b", "-", "waits", "with", "ml/second"],
        ["ml/b", "(n1)", "evictions", "for", "ml/second"],
    ]
    total = "1 of 2 groups whole; placed 1 of 3 pods, on 1 node; 1 would preempt pods; 1 fit nowhere"
    assert summary([WHOLE, placed, SHORT, waits, nominated]).plain == total


NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "n1"}}
NODE["status"] = {"allocatable": {"cpu": "2", "memory": "8Gi", "pods": "110"}}
WEB = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "main"}]}}


@pytest.fixture
def typed(monkeypatch):
    """Runs ``berth simulate`` with these words. The running cluster has one node."""

    async def read_cluster(kubeconfig, context):
        read.append((kubeconfig and kubeconfig.name, context))
        objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE]}).encode()
        return RunningCluster(objects=objects, summary="1 object of the cluster at https://its.example")

    def run(*words, given=""):
        done = CliRunner().invoke(command.app, words, input=given)
        return done.exit_code, done.stdout, done.stderr, read

    read = []
    monkeypatch.setattr("berth_cli.simulate.live.read_cluster", read_cluster)
    return run


@pytest.mark.parametrize("flags", [("--kubeconfig", "its.yaml"), ("--context", "prod")])
def test_a_pod_of_any_scheduler_is_placed_on_a_running_cluster(typed, flags):
    code, out, err, read = typed(*flags, "--pods", "-", given=json.dumps(WEB))
    assert (code, read) == (0, [("its.yaml", None) if "its.yaml" in flags else (None, "prod")])
    assert ["default/web", "n1", "1", "of", "1", "the", "only", "one", "possible"] in words(out.splitlines())
    assert "berth: read 1 object of the cluster at https://its.example\n" in err
    assert "1 pod of schedulerName 'default-scheduler', which no profile has: placed by the profile 'berth'" in err


@pytest.mark.parametrize("flags", [(), ("--cluster", "a.json", "--context", "prod")])
def test_there_is_one_cluster(typed, flags):
    code, _, err, read = typed(*flags, "--pods", "-")
    assert (code, read) == (2, [])
    assert err == "berth: name one cluster: files with --cluster, or a running one with --kubeconfig or --context\n"
