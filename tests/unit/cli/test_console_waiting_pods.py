"""The pods that fit nowhere, as RANKED had them: kept to be asked about again, within bounds."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.messages import Candidate, Ranked, encode
from berth.api.pod import Pod
from berth.cli.console import waitingpods
from berth.cli.console.waitingpods import WaitingPods
from berth.cli.options import PodName
from harness.builders.objects import a_pod, first_attempt

POD = PodName(namespace="default", name="web")


def ranked(pod: Pod, *nodes: str) -> tuple[str, bytes]:
    candidates = [Candidate(node=node, total=1) for node in nodes]
    message = Ranked(attempt=str(first_attempt(pod)), profile="berth", pod=pod, candidates=candidates)
    return f"berth.ranked.berth.default.{pod.metadata.name}", encode(message)


def test_a_pod_without_a_node_is_known_until_it_has_one():
    pods, pod = WaitingPods(), a_pod("web", cpu="100m")
    pods.ranked(*ranked(pod))
    assert msgspec.json.decode(pods.get(POD), type=Pod) == pod
    pods.ranked(*ranked(pod, "node-1"))
    assert pods.get(POD) is None
    assert len(pods) == 0


def test_the_newest_form_of_a_pod_is_known():
    pods = WaitingPods()
    for cpu in ("100m", "200m"):
        pods.ranked(*ranked(a_pod("web", cpu=cpu)))
    assert msgspec.json.decode(pods.get(POD), type=Pod) == a_pod("web", cpu="200m")


@pytest.mark.parametrize(("name", "bound"), [("MOST_PODS", 3), ("MOST_BYTES", 900)])
def test_those_that_were_ranked_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch, name: str, bound: int):
    monkeypatch.setattr(waitingpods, name, bound)
    pods = WaitingPods()
    for number in range(20):
        pods.ranked(*ranked(a_pod(f"web-{number}", cpu="100m")))
    assert 1 <= len(pods) <= 5
    assert pods.get(PodName(namespace="default", name="web-19")) is not None
    assert pods.get(PodName(namespace="default", name="web-0")) is None


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        pytest.param("berth.ranked.berth.default.web", b"rubbish", id="no JSON"),
        pytest.param("berth.ranked.berth.default.web", b'{"pod": {}, "candidates": 5}', id="another shape"),
        pytest.param("berth.ranked.berth.default.web", b"[" * 100_000, id="endless nesting"),
        pytest.param("berth.ranked", b'{"pod": {}}', id="no pod in the subject"),
    ],
)
def test_what_cannot_be_read_is_left_out(subject: str, data: bytes):
    pods = WaitingPods()
    pods.ranked(subject, data)
    assert len(pods) == 0
