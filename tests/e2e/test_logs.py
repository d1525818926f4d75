"""What `-v` has the services log about pods: the table in docs/metrics.md, counted in the logs of real processes."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (\d+) \| (\S+) \| `([^`]+)` \| (.+) \| .+ \|$", re.MULTILINE)
PODS, NODES = 10, 5
SERVICES = {"watcher", "scorer", "binder"}
ON_EVERY_LINE = {"time", "level", "msg", "service", "identity", "pod", "uid"}
SOMETIMES = ("binder", "attempt decided")
"""The line about a conflict, which nobody has here but by chance."""

Line = tuple[str, str]


def documented(level: int) -> dict[Line, set[str]]:
    """The lines of the level and below, by service and text, with the keys of each."""
    rows = [(int(at), (service, text), keys) for at, service, text, keys in ROW.findall(PAGE.read_text())]
    assert len(rows) > 10, "the table has changed its form"
    return {line: ON_EVERY_LINE | set(re.findall("`([^`]+)`", keys)) for at, line, keys in rows if at <= level}


def logged(berth: BerthUp) -> list[dict]:
    return [json.loads(line) for line in berth.said.splitlines() if line.startswith("{")]


async def lines_of_pods(level: int, folder: Path) -> list[dict]:
    """What is logged while ten pods are bound, and one fits nowhere and is deleted."""
    flags = ("-v", level, "--nodes", NODES)
    with berth_up(*flags, folder=folder, environment={"BERTH_LOG_FORMAT": "json"}) as berth:
        berth.wait_until_ready()
        async with cluster_user(berth.kubeconfig) as seen:
            anywhere = {"nodeSelector": {}}
            names = await seen.add_pods(PODS, "web", cpu="100m", spec=anywhere)
            await seen.add_pods(1, "large", cpu="1000", spec=anywhere)
            await seen.all_bound(names)
            await eventually(lambda: seen.condition("large-0"), "a condition on the pod")
        if level >= 4:
            berth.wait_for(lambda: berth.said.count('"msg":"pod left"') > PODS, "every pod to leave the queue")
        berth.interrupt()
        return logged(berth)


@pytest.mark.parametrize("level", [0, 2, 4, 6, 10])
async def test_each_level_has_the_documented_lines_with_their_keys(level: int, tmp_path: Path):
    lines = await lines_of_pods(level, tmp_path)
    of_pods = [line for line in lines if "pod" in line]
    wanted = documented(level)
    found = {(line["service"], line["msg"]): line.keys() for line in of_pods}
    assert found.keys() - {SOMETIMES} == wanted.keys() - {SOMETIMES}
    for line in of_pods:
        assert line.keys() == wanted[line["service"], line["msg"]]
    counts = Counter((line["service"], line["msg"]) for line in of_pods)
    if level >= 2:
        assert counts["binder", "pod bound"] == PODS
        assert [line["node"] != "" for line in of_pods if line["msg"] == "pod bound"] == [True] * PODS
        refused = [line for line in of_pods if line["msg"] == "pod cannot be placed"]
        assert {line["pod"].partition("/")[2] for line in refused} == {"large-0"}
        assert all("Insufficient cpu" in line["reason"] for line in refused)
    if level >= 4:
        attempts = counts["binder", "pod bound"] + len(refused) + counts[SOMETIMES]
        assert counts["watcher", "pod published"] >= attempts  # one may be under way at the end
        assert counts["scorer", "pod ranked"] >= attempts
        assert counts["binder", "request sent"] >= PODS
        left = Counter(line["pod"].partition("/")[2] for line in of_pods if line["msg"] == "pod left")
        assert left - Counter(["large-0"]) == Counter(f"web-{number}" for number in range(PODS))
        trace_ids = {line["pod"]: line["trace_id"] for line in of_pods if "trace_id" in line}
        assert all(trace_ids[line["pod"]] == line["trace_id"] for line in of_pods if "trace_id" in line)
    requests = [line for line in lines if line["msg"] == "request"]
    assert bool(requests) is (level >= 6)
    if level >= 6:
        assert {line["service"] for line in requests} == {"watcher", "binder"}
        posted = [line for line in requests if (line["method"], line["path"][-8:]) == ("POST", "/binding")]
        assert [line["status"] for line in posted] == [201] * PODS
        assert any(line["path"].startswith("/api/v1/pods?") and "watch=" in line["path"] for line in requests)
    messages = [line for line in lines if line["msg"].startswith("message ")]
    assert bool(messages) is (level >= 6)
    if level >= 6:
        assert {line["service"] for line in messages} == {*SERVICES, "metrics-collector"}
        on = Counter((line["service"], line["msg"], ".".join(line["subject"].split(".")[:2])) for line in messages)
        published = counts["watcher", "pod published"]
        assert on["watcher", "message sent", "berth.pending"] == published
        assert on["scorer", "message received", "berth.pending"] == counts["scorer", "pod received"]
        assert on["scorer", "message sent", "berth.ranked"] == counts["scorer", "pod ranked"]
        assert on["binder", "message received", "berth.ranked"] == counts["binder", "pod received"]
