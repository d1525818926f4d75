"""What would help one pod, or one of each group: the pod where it can be found, and what is said where it cannot."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.pod import Pod
from berth.bus.interface import Endpoint, Session
from berth.bus.stages import publish_decision, publish_pending
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import Decision, Outcome, Pending, Rejection
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.queue import QueueAnswer, QueuedPodDetail, WaitingPod
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.configflags import ConfigurationFlags
from berth_cli.console.answers import pod_queue_json
from berth_cli.options import OutputFormat, PodName
from berth_cli.pods.waiting import print_detail
from berth_cli.remedies.asking import ANOTHER_POD, NO_POD, OTHER_CONFIGURATION, Advisory, advice_on
from berth_cli.remedies.groups import advise_groups, group_lines, grouped
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed

CONFIGURATION = read_configuration(None)
FLAGS = ConfigurationFlags(file=None, provider=None, gates=None)
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WEB = PodName(namespace="default", name="web")
ASKS = "asks for 8 CPU; the largest node has 4, and the freest 4 of 4 free (n1)"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch, tmp_path):
    """No kubeconfig is found."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
async def session() -> Session:
    """A bus whose mirror has one node of four cores."""
    session = await MemoryBus().connect(name="test")
    await session.apply()
    entry = MirrorEntry(term=1, object=msgspec.Raw(msgspec.json.encode(a_node("n1"))))
    await session.put("cluster", "node.n1", encode_entry(entry))
    return session


async def refuse(session: Session, pod: Pod, **changed: object) -> None:
    """A Decision says that the pod fits nowhere."""
    known = {
        "config": CONFIGURATION.digest,
        "outcome": Outcome.UNSCHEDULABLE,
        "rejections": [Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=1)],
        "blockers": ["NodeResourcesFit"],
    }
    names = {"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "uid": pod.uid}
    attempt = str(first_attempt(pod))
    await publish_decision(
        session, Decision(attempt=attempt, epoch=1, profile="berth", **names, **{**known, **changed})
    )


async def publish(session: Session, pod: Pod) -> None:
    """The pod is on its way again."""
    await publish_pending(session, Pending(attempt=str(first_attempt(pod)), profile="berth", pod=pod))


async def test_a_pod_on_the_bus_is_compared_with_the_nodes(session):
    await refuse(session, a_pod(cpu="8"))
    await publish(session, a_pod(cpu="8"))
    advice = await advice_on(session, WEB, CONFIGURATION)
    assert ([each.text for each in advice.remedies], advice.missing) == ([ASKS], "")


async def test_of_a_pod_that_is_nowhere_only_the_nodes_are_told_and_who_has_it(session):
    await refuse(session, a_pod(cpu="8"))
    advice = await advice_on(session, WEB, CONFIGURATION)
    assert [each.text for each in advice.remedies] == ["CPU: the largest node has 4, and the freest 4 of 4 free (n1)"]
    assert advice.missing == NO_POD
    assert printed(*advice.lines(), width=200)[-1] == f"  {NO_POD}"


async def test_a_pod_that_was_made_anew_is_another_one(session):
    await refuse(session, a_pod(cpu="8"))
    later = a_pod(uid="later", cpu="100m")
    await publish(session, later)
    for pod in (None, later):
        advice = await advice_on(session, WEB, CONFIGURATION, pod)
        assert (advice.remedies, advice.missing) == ([], ANOTHER_POD)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        pytest.param({"outcome": Outcome.BOUND, "node": "n1"}, "", id="bound"),
        pytest.param({"config": "another"}, OTHER_CONFIGURATION, id="another configuration"),
    ],
)
async def test_nothing_is_told_of_other_decisions(session, changed, missing):
    await refuse(session, a_pod(cpu="8"), **changed)
    await publish(session, a_pod(cpu="8"))
    advice = await advice_on(session, WEB, CONFIGURATION)
    assert (advice.remedies, advice.missing) == ([], missing)


async def test_nothing_is_told_of_a_pod_without_a_decision(session):
    assert (await advice_on(session, WEB, CONFIGURATION)).as_json() == {"remedies": []}


def waiting(name: str, *plugins: str, queue: str = "unschedulable", message: str = "") -> WaitingPod:
    names = {"namespace": "default", "name": name, "uid": f"uid-{name}", "profile": "berth"}
    return WaitingPod(**names, queue=queue, stage=queue, since=NOW, plugins=list(plugins), message=message)


def test_groups_are_by_plugins_and_the_largest_is_first():
    pods = [waiting("a", "A"), waiting("b", "B"), waiting("c", "B"), waiting("d", "C", queue="gated"), waiting("e")]
    assert [(plugins, len(of)) for plugins, of in grouped(pods)] == [(("B",), 2), (("A",), 1)]


def test_pods_are_in_one_group_if_their_reasons_differ_in_names_and_numbers_alone():
    """By name: the first letter of the pods that have the same reason."""
    lacks_claim = 'could not find ResourceClaim "default/{}". preemption: 0/3 nodes'
    messages = {
        "a1": lacks_claim.format("mine"),
        "a2": lacks_claim.format("yours"),
        "b1": "0/3 nodes are available: 1 Insufficient cpu, 2 cannot allocate all claims.",
        "b2": "0/4 nodes are available: 1 cannot allocate all claims, 3 Insufficient cpu.",
        "c1": "ResourceClaim default/c1-gpu was not created for Pod default/c1 (Pod is not owner)",
        "c2": "ResourceClaim default/c2-gpu was not created for Pod default/c2 (Pod is not owner)",
        "d1": "request r: device class gpu does not exist",
        "e1": "request r: device class nic does not exist",
    }
    pods = [waiting(name, "DynamicResources", message=message) for name, message in messages.items()]
    groups = [[pod.name for pod in of] for _, of in grouped(pods)]
    assert groups == [["a1", "a2"], ["b1", "b2"], ["c1", "c2"], ["d1"], ["e1"]]


def test_pods_that_ask_for_unlike_devices_are_in_groups_of_their_own():
    pods = [
        msgspec.structs.replace(
            waiting(name, "DynamicResources", message="cannot allocate all claims"), devices=devices
        )
        for name, devices in (("a", "gpu"), ("b", "nic"), ("c", "gpu"))
    ]
    assert [[pod.name for pod in of] for _, of in grouped(pods)] == [["a", "c"], ["b"]]


async def test_one_pod_of_each_group_stands_for_it(session):
    pods = [waiting("web", "NodeResourcesFit"), waiting("web-2", "NodeResourcesFit"), waiting("own", "Own")]
    await refuse(session, a_pod(cpu="8"))
    await publish(session, a_pod(cpu="8"))
    groups = await advise_groups(session, pods, FLAGS)
    assert printed(*group_lines(groups), width=200) == [
        "",
        "2 pods, such as default/web, refused by NodeResourcesFit: what would help",
        f"  NodeResourcesFit: {ASKS}",
    ]
    first, second = [group.as_json() for group in groups]
    assert (first["plugins"], first["pods"], first["example"]) == (("NodeResourcesFit",), 2, "default/web")
    assert (second["plugins"], second["remedies"]) == (("Own",), [])


async def test_no_mirror_is_read_where_nobody_was_refused():
    assert await advise_groups(await MemoryBus().connect(name="no streams"), [], FLAGS) == []


async def test_the_console_tells_what_would_help_a_pod_that_the_watcher_has(session):
    detail = QueuedPodDetail(pod=waiting("web", "NodeResourcesFit"), object=a_pod(cpu="8"))
    stats = {"leading": {"number": 1, "seconds": 1.0}}
    endpoint = Endpoint(name="pod", answer=lambda _: QueueAnswer(now=NOW, detail=detail))
    await session.register("berth-watcher", identity="one", version="1", stats=lambda: stats, endpoints=[endpoint])
    await refuse(session, a_pod(cpu="8"))
    snapshot = Snapshot()
    snapshot.set_node(a_node("n1"))

    advisory = Advisory(
        session=session, snapshot=snapshot, digest=CONFIGURATION.digest, profiles=profiles_of(CONFIGURATION)
    )
    found = await pod_queue_json(advisory, WEB)
    assert [each.text for each in found["remedies"]] == [ASKS]
    assert found["queued"] == detail


async def test_queue_why_has_it_in_its_text_and_its_document(session, capsys):
    await refuse(session, a_pod(cpu="8"))
    await publish(session, a_pod(cpu="8"))
    advice = await advice_on(session, WEB, CONFIGURATION)
    detail = QueuedPodDetail(pod=waiting("web", "NodeResourcesFit"))
    print_detail(QueueAnswer(now=NOW), detail, "", advice, OutputFormat.TABLE)
    assert f"  NodeResourcesFit: {ASKS}" in capsys.readouterr().out.splitlines()
    print_detail(QueueAnswer(now=NOW), detail, "", advice, OutputFormat.JSON)
    assert msgspec.json.decode(capsys.readouterr().out)["remedies"][0]["text"] == ASKS
