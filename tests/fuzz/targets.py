"""What berth reads from outside, a function each: it raises nothing but the error that its caller declares.

A found input that did more is kept in ``FOUND``, and tried in every run.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec
import requests
import yaml
from prometheus_api_client import PrometheusConnect

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT
from berth.api.config.yamlreader import check_yaml, yaml_values
from berth.api.devices import AllocationResult
from berth.api.kinds import NODE as NODES
from berth.api.kinds import POD as PODS
from berth.api.node import Node
from berth.api.pod import LabelSelector, NodeSelector, Pod
from berth.api.podgroups import CoschedulingPodGroup, Topology, UpstreamPodGroup, of_coscheduling, of_upstream
from berth.api.resources import QuantityError, milli_value, value
from berth.api.selectors import compile_label_selector, compile_node_selector
from berth.bus.interface import StoredMessage
from berth.cel.errors import CELError
from berth.cel.selector import compile_selector
from berth.cluster.buckets import LiveDataReader, MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.decoding import decode_json, number, structure_of
from berth.errors import DecodeError
from berth.extenders.wire import ExtenderError, FilterAnswer, binding_answer, filter_answer, priorities
from berth.framework.cycle import rank
from berth.framework.profile import Profile
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.kube import kubeconfig as kubeconfigs
from berth.kube.errors import KubeconfigError
from berth.kube.http1 import Answer, AnswerReader, BadAnswerError
from berth.kube.listwatch import ObjectDecoder
from berth.messages.attempts import (
    Candidate,
    DeadLetter,
    Decision,
    Outcome,
    Pending,
    Preemption,
    Ranked,
    Received,
    Victim,
    attempt_of,
)
from berth.messages.bundles import bundled
from berth.messages.encoding import decode, encode
from berth.messages.groupattempts import GroupPending, GroupRanked, decode_group, within_bounds
from berth.messages.groups import Alternate, ClassPlan, GroupPlan, PlannedMember
from berth.messages.livedata import LiveSource, NodeSample, decode_fact, decode_sample
from berth.messages.mirror import decode_entry, decode_watermark
from berth.messages.queue import WaitingPod
from berth.messages.subjects import Attempt, PodSubject, Term, Uid, parse_key, unescape
from berth.profiles.configuration import profiles_of, read_configuration
from berth.profiles.installed import known_plugins
from berth.ranking.view import View
from berth.safetext import in_json, lines, one_line, without_passwords
from berth.settings.readers import Secret
from berth_cli.console.guard import Guard, trusted_proxy
from berth_cli.console.model import ConsoleModel
from berth_cli.console.pages import safe_json
from berth_cli.options import PodName
from berth_cli.recording.cluster import objects_of_recording
from berth_cli.recording.file import Begun, Ended, RecordingError, Waiting, header, read_recording, recorded
from berth_cli.recording.replay import Replay
from berth_cli.replayed.comparison import RecordedSource, TwoClusters
from berth_cli.simulate.documents import documents
from berth_metrics_collector.devices import counted_devices
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.prometheus import SourceError, decode_rows, query_rows
from berth_metrics_collector.samples import (
    DeviceRows,
    device_facts,
    host_names,
    parse_value,
    scrape_intervals,
    values_by_device,
)
from berth_scorer.core import rank_of
from harness.builders.devices import device
from harness.builders.groups import a_group, members

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u", "labels": {"app": "web"}, "resourceVersion": "7"},
    "spec": {
        "schedulerName": "berth",
        "priority": 1,
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}],
        "containers": [
            {
                "resources": {"requests": {"cpu": "100m", "memory": "1.5Gi"}, "limits": {"cpu": 1}},
                "ports": [{"hostPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"}],
            }
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["5"]}]}]
                }
            },
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "zone", "namespaces": ["a"]}
                ]
            },
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]},
            }
        ],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    },
    "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
}
POD_GROUP = {
    "metadata": {"name": "gang", "namespace": "default", "uid": "u", "annotations": {"berth/topology": "zone"}},
    "spec": {"minMember": 3, "minResources": {"cpu": "1"}, "scheduleTimeoutSeconds": 60},
}
UPSTREAM_POD_GROUP = {
    "metadata": {"name": "gang", "namespace": "default", "uid": "u"},
    "spec": {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "schedulingConstraints": {"topology": [{"key": "zone"}]},
        "disruptionMode": "PodGroup",
        "priority": 1,
    },
}
NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a", "n": "7"}, "annotations": {"berth/bandwidth": "1G"}},
    "spec": {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "example.com/gpu": 2},
        "images": [{"names": ["nginx"], "sizeBytes": 1000}],
    },
}
CONFIGURATION = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
parallelism: 16
leaderElection: {leaderElect: true, leaseDuration: 15s, renewDeadline: 10s, retryPeriod: 2s}
profiles:
- schedulerName: berth
  plugins:
    score: {enabled: [{name: NodeResourcesFit, weight: 2}], disabled: [{name: "*"}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
  - name: PodTopologySpread
    args: {defaultConstraints: [], defaultingType: List}
"""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "https://who:secret@127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret, username: a, password: b}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
"""
VECTOR = {
    "status": "success",
    "data": {
        "resultType": "vector",
        "result": [{"metric": {"instance": "n1:9100", "job": "node", "device": "eth0"}, "value": [1.5, "12.5"]}],
    },
}


@dataclass(frozen=True)
class Target:
    """``run`` raises nothing else than ``errors``; ``seeds`` are valid inputs to start from."""

    run: Callable[[bytes], object]
    seeds: list[bytes]
    errors: tuple[type[Exception], ...] = (DecodeError,)


def json(thing: object) -> bytes:
    return msgspec.json.encode(thing)


@cache
def profile() -> Profile:
    return profiles_of(read_configuration(None))["berth"]


@cache
def plugins() -> Any:
    return known_plugins()


def message(kind: type[Any]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        read = decode(data, kind)
        if isinstance(read, Pending | Ranked):
            attempt_of(read)
        encode(read)

    return run


def group_pending(data: bytes) -> None:
    """What a scorer does with a group's message."""
    read = decode_group(data, GroupPending)
    rank_of(profile(), read)
    snapshot = Snapshot()
    snapshot.set_node(msgspec.json.decode(json(NODE), type=Node))
    question = GroupQuestion(
        group=read.group,
        attempt=Attempt.parse(read.attempt),
        members=read.bundle.pods(),
        need=max(1, read.need),
        bound=read.bound,
    )
    encode(read), plan_at_once(question, snapshot, profile())


def group_ranked(data: bytes) -> None:
    """What another scorer does with a group's plan."""
    read = decode_group(data, GroupRanked)
    view = View()
    view.apply_ranked(data, 1, 0.0)
    assert not view.undecodable
    encode(within_bounds(read))


def pod_group(data: bytes) -> None:
    for decoder, form_of in _POD_GROUPS:
        form = form_of(decode_json(decoder, data, "a PodGroup"))
        form.is_ordinary({"cpu": 1000})
        msgspec.json.encode(form)


_POD_GROUPS: Final[Any] = (
    (msgspec.json.Decoder(CoschedulingPodGroup), of_coscheduling),
    (msgspec.json.Decoder(UpstreamPodGroup), of_upstream),
)
_node_decoder, _pod_decoder = ObjectDecoder(NODES), ObjectDecoder(PODS)
_label_selector, _node_selector = msgspec.json.Decoder(LabelSelector), msgspec.json.Decoder(NodeSelector)
_MEMBERS = members(3, "m", cpu="1")
_OF_GROUP: Final[dict[str, Any]] = {
    "attempt": "uid-gang.1.1",
    "profile": "berth",
    "group": a_group(min_resources={"cpu": 1000}, topology=Topology(key="zone"), priority=1),
    "bundle": bundled(_MEMBERS, dict.fromkeys((pod.uid for pod in _MEMBERS), 1)),
    "need": 3,
}
_PLAN = GroupPlan(
    need=3,
    nodes=["n1"],
    members=[PlannedMember(pod.uid, 0, 0) for pod in _MEMBERS],
    classes=[ClassPlan(members=3, placed=3, example="m000", alternates=[Alternate(0, 7, 1, 0.5, 2)])],
)
_ATTEMPT = Attempt(uid=Uid("u"), term=Term(1), n=1)
_GUARD = Guard.of(
    "::", names=["console.example"], token=Secret("x" * 20), proxy=trusted_proxy("X-User", ["10.0.0.0/8"])
)
_DECISION = Decision(
    attempt=str(_ATTEMPT),
    profile="berth",
    epoch=1,
    outcome=Outcome.BOUND,
    namespace="default",
    pod="web",
    uid="u",
    node="n1",
    asked_at=NOW,
    ranked_at=NOW,
    candidates=[Candidate(node="n1", total=1)],
)


def pod(data: bytes) -> None:
    """From the watch through a cycle, as a pod that waits and as one on a node."""
    read = _pod_decoder.one(data)
    structure_of(data)
    if not isinstance(read, Pod):
        return
    snapshot = Snapshot()
    snapshot.set_node(decode_json(msgspec.json.Decoder(Node), json(NODE), "a node"))
    rank(read, snapshot, profile(), attempt=_ATTEMPT)
    snapshot.place(read, "n1")
    rank(decode_json(msgspec.json.Decoder(Pod), json(POD), "a pod"), snapshot, profile(), attempt=_ATTEMPT)


def console_decision(data: bytes) -> None:
    """A Decision and a dead letter as the console shows them: nothing is raised, and every frame is JSON."""
    model = ConsoleModel()
    stored = StoredMessage(subject="berth.decision.berth.default.web", sequence=1, data=data, time=NOW)
    model.decided([stored])
    model.dead_lettered([stored])
    for _ in range(2):
        json(model.changes(now=NOW.timestamp(), every_second=True))
    json(model.whole(now=NOW.timestamp()))


def console_request(data: bytes) -> None:
    """What a browser, or somebody else, says of itself."""
    text = data.decode("latin-1")
    _GUARD.knows(text)
    _GUARD.same_origin(text, "localhost")
    _GUARD.may_look({"Authorization": text, "X-User": text}, text, text, now=0.0)


def node(data: bytes) -> None:
    read = _node_decoder.one(data)
    if not isinstance(read, Node):
        return
    snapshot = Snapshot()
    snapshot.set_node(read)
    rank(decode_json(msgspec.json.Decoder(Pod), json(POD), "a pod"), snapshot, profile(), attempt=_ATTEMPT)


def mirror(data: bytes) -> None:
    name, _, content = data.partition(b"=")
    MirroredSnapshot(Snapshot()).apply(name.decode(errors="replace"), content)


def live(data: bytes) -> None:
    decode_fact(data)
    sources = [LiveSource(bucket="bandwidth", name="q"), LiveSource(bucket="facts", name="q")]
    LiveDataReader(Snapshot().live, sources).apply("facts", "q.n1", data, NOW)


def bandwidth(data: bytes) -> None:
    sources = [LiveSource(bucket="bandwidth", name="q")]
    LiveDataReader(Snapshot().live, sources).apply("bandwidth", "q.n1", data, NOW)
    decode_sample(data)


def quantity(data: bytes) -> None:
    text = data.decode(errors="replace")
    value(text)
    milli_value(text)


def device_selector(data: bytes) -> None:
    expression = data.decode(errors="replace")
    compile_selector(expression).evaluate(_DEVICE)


_DEVICE = device(model="A100", index=3, healthy=True, capacity={"memory": "80Gi"})


def selectors(data: bytes) -> None:
    try:
        compile_label_selector(decode_json(_label_selector, data, "a selector")).matches({"app": "web", "n": "7"})
    except DecodeError:
        compile_node_selector(decode_json(_node_selector, data, "a selector")).matches("n1", {"app": "web", "n": "7"})


class _Answered(requests.Session):
    """A session whose every request has this body as its answer."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self._body = body

    def request(self, *_args: object, **_kwargs: object) -> requests.Response:
        response = requests.Response()
        response.status_code, response.raw = 200, io.BytesIO(self._body)
        decode_rows(response)
        return response


def answer(data: bytes) -> None:
    rows = query_rows(PrometheusConnect(session=_Answered(data)), "up")
    values_by_device(rows, "instance")
    scrape_intervals(rows)
    facts = device_facts(DeviceRows(flags=rows, info=rows, stacked=rows, named_by=rows, bonds=rows), "instance")
    for target, host in host_names(rows, "instance").items():
        NodeNames([]).node_of(target, host)
        counted_devices(dict.fromkeys(facts.get(target, {}), 1.0), facts.get(target, {}), only_own=True)
    for row in rows:
        parse_value(row.value[1])


def configuration(data: bytes) -> None:
    text = data.decode(errors="replace")
    load(text, known=plugins(), preset=DEFAULT)


def names(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    for read in (Attempt.parse, PodSubject.parse, parse_key, unescape, lambda text: number(text, "x")):
        try:
            read(text)
        except DecodeError as error:
            _check_text(str(error))


def _check_text(text: str) -> None:
    """What becomes a line of a log."""
    assert len(text) < 2_000
    assert "secret" not in text


def shown(data: bytes) -> None:
    text = data.decode(errors="surrogateescape")
    for made in (one_line(text), lines(text), without_passwords(one_line(text)), in_json(text)):
        assert "\x1b" not in made or made is in_json(text)
        made.encode()


def manifests(data: bytes) -> None:
    problems: list[str] = []
    list(documents("f", data, problems))
    assert all(len(problem) < 2_000 for problem in problems)


def yaml_text(data: bytes) -> None:
    text = data.decode(errors="replace")
    check_yaml(text)
    list(yaml_values(text))


async def _no_plugin(_plugin: object) -> None:
    raise ValueError("exec: not in these tests")


def kubeconfig(data: bytes) -> None:
    """Without running plugins, and without a file that it names: its content alone."""
    with tempfile.NamedTemporaryFile(prefix="berth-fuzz-") as file, patch.object(kubeconfigs, "_given_by", _no_plugin):
        file.write(data)
        file.flush()
        try:
            asyncio.run(kubeconfigs.Kubeconfig(Path(file.name)).read())
        except KubeconfigError as error:
            _check_text(str(error))
            raise


def recording(data: bytes) -> None:
    """Lines of a recording: made again, shown beside another configuration, taken as a cluster."""
    with tempfile.NamedTemporaryFile(prefix="berth-fuzz-") as file:
        file.write(gzip.compress(data))
        file.flush()
        try:
            read = read_recording(Path(file.name))
        except RecordingError as error:
            _check_text(str(error))
            raise
        profiles = {"berth": profile()}
        list(Replay(read, profiles, best=4).run())
        source = RecordedSource(recording=read, profiles=profiles, config=read.header.config)
        shown = TwoClusters.of(source, profiles, title="r", other_title="other")
        safe_json(shown.document())
        names = [each.pod.partition("/")[::2] for each in shown.found.other.pods]
        names += [(pod.namespace, pod.name) for each in read.waiting for pod in each.pods]
        for namespace, name in names:
            safe_json(shown.pod_json(PodName(namespace=namespace, name=name)))
        list(objects_of_recording(file.name) or ())


REPORT = {
    "attempt": "u.1.1",
    "profile": "berth",
    "candidates": [Candidate(node="n1", total=9, scores={"Fit": 9})],
    "weights": {"Fit": 1},
    "devices": {"c": AllocationResult()},
}
_POD = msgspec.convert(POD, Pod, strict=False)


def _recorded_lines() -> Iterator[bytes]:
    """A recording of one pod from PENDING to the mirror, and of what else may be in one."""
    head = header(at=NOW, bus_id="b", config="c", release="1.36", configuration={})
    report = {**REPORT, "config": "c", "nodes": 1, "evaluated": 1, "feasible": 1}
    ranked = Ranked(**report, pod=_POD, received=Received(ranked=1, pending=1, expired=["u"]))
    bound = Decision(**report, epoch=1, outcome=Outcome.BOUND, namespace="default", pod="web", uid="u", node="n1")
    victims = Preemption(node="n1", victims=[Victim(uid="u", namespace="default", name="web")])
    of_vip = {"attempt": "v.1.1", "profile": "berth", "epoch": 1, "namespace": "default", "pod": "vip", "uid": "v"}
    evicting = Decision(**of_vip, outcome=Outcome.PREEMPTING, preemption=victims)
    entry = {"schema": 1, "term": 1, "object": {**POD, "spec": {**POD["spec"], "nodeName": "n1"}}}
    records = [
        recorded("cluster", 1, NOW, "node.n1", json({"schema": 1, "term": 1, "object": NODE})),
        Begun(positions={"cluster": 1}),
        Waiting(
            at=NOW,
            pods=[
                WaitingPod(
                    namespace="default", name="big", uid="b", profile="berth", queue="gated", stage="gated", since=NOW
                )
            ],
            decisions=[recorded("DECISIONS", 1, NOW, "s", encode(bound))],
        ),
        recorded("PENDING", 1, NOW, "s", encode(Pending(attempt="u.1.1", profile="berth", pod=_POD))),
        recorded("RANKED", 2, NOW, "s", encode(ranked)),
        recorded("DECISIONS", 1, NOW, "s", encode(bound)),
        recorded("cluster", 2, NOW, "pod.u", json(entry)),
        recorded("DECISIONS", 2, NOW, "s", encode(evicting)),
        recorded("bandwidth", 1, NOW, "q.n1", json(NodeSample(receive=1.0, sampled_at=NOW))),
        recorded("facts", 1, NOW, "f.n1", b"no JSON"),
        recorded("cluster", 3, NOW, "pod.u", None),
        Ended(messages=9, reason="it was stopped", positions={"cluster": 3}),
    ]
    yield from (json(each) + b"\n" for each in (head, *records))


def http_answer(data: bytes) -> None:
    """An answer of the API server, or of a proxy before it: the same in one piece and in two, wherever it is cut."""
    whole = _outcome(data)
    for cut in range(1, len(data), max(1, len(data) // 8)):
        assert _outcome(data[:cut], data[cut:]) == whole, cut


def _outcome(*pieces: bytes) -> object:
    reader = AnswerReader()
    answer: Answer | None = None
    try:
        for piece in pieces:
            answer = answer or reader.feed(piece)
        answer = answer or reader.end()
    except BadAnswerError:
        return BadAnswerError
    return answer and answer[:3]


EXTENDERS = [
    ExtenderConfiguration(url_prefix="", name="x", filter_verb="f", weight=7, node_cache_capable=capable)
    for capable in (False, True)
]


def extender(data: bytes) -> None:
    """Whatever an extender answers, nodes that it leaves were asked about, and its points can be counted."""
    failed: ExtenderError | None = None
    for one in EXTENDERS:
        for read in (filter_answer, priorities, lambda one, data, _: binding_answer(one, data)):
            try:
                found = read(one, data, {"a", "b"})
            except ExtenderError as error:
                failed = error
            else:
                named = found.left if isinstance(found, FilterAnswer) else found or ()
                assert {"a", "b"}.issuperset(named)
    if failed is not None:
        assert len(str(failed)) < 2000
        raise failed


TARGETS: dict[str, Target] = {
    "device selector": Target(
        device_selector,
        [
            b'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].index in [1, 3]',
            b'device.attributes["gpu.example.com"].?model.optMap(m, m.split("1", -1).sortBy(s, s.size())).hasValue()',
            b'device.capacity["gpu.example.com"].memory.add(quantity("1.5e3")).compareTo(quantity("80Gi")) == -1',
            b'cel.bind(v, semver("1.2.3-a"), [v].all(w, w.minor() > 1 || cidr("10.0.0.0/8").containsIP("10.1.1.1")))',
            b"device.attributes.transformMap(d, a, a.exists(k, v, v == 3), size(d)).size() > 0 ? true : 1/0 == 1",
            b'"a\\u00e9".replace("a", "b", 2).substring(1, 2).matches("^[a-z]+$") || lists.range(3).slice(0, 2) != []',
        ],
        (CELError,),
    ),
    "extender's answer": Target(
        extender,
        [
            json({"NodeNames": ["a"], "FailedNodes": {"b": "full"}, "FailedAndUnresolvableNodes": None, "Error": ""}),
            json({"nodes": {"metadata": {}, "items": [{"metadata": {"name": "b"}}]}, "failednodes": {"a": "x"}}),
            json([{"Host": "a", "Score": 7}, {"host": "b", "score": -3}]),
        ],
        (ExtenderError,),
    ),
    "http answer": Target(
        http_answer,
        [
            b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.0 429 Busy\r\nRetry-After: 1\r\nConnection: close\r\n\r\nbusy",
        ],
    ),
    "pending": Target(message(Pending), [encode(Pending(attempt="u.1.1", profile="berth", pod=_POD))]),
    "ranked": Target(message(Ranked), [encode(Ranked(**REPORT, pod=_POD))]),
    "group pending": Target(group_pending, [encode(GroupPending(**_OF_GROUP, bound=["b"]))]),
    "group ranked": Target(group_ranked, [encode(GroupRanked(**_OF_GROUP, plan=_PLAN))]),
    "pod group": Target(pod_group, [json(POD_GROUP), json(UPSTREAM_POD_GROUP)]),
    "decision": Target(
        message(Decision),
        [encode(Decision(**REPORT, epoch=1, outcome=Outcome.BOUND, namespace="default", pod="web", uid="u"))],
    ),
    "dead letter": Target(message(DeadLetter), [encode(DeadLetter(subject="s", reason="r", service="scorer"))]),
    "console's Decision": Target(
        console_decision, [encode(_DECISION), json({"schema": 1, "subject": "s", "reason": "r", "service": "binder"})]
    ),
    "console's request": Target(
        console_request, [b"localhost:8090", b"[::1]:80", b"https://console.example", b"1800000000.ab", b"Bearer x" * 3]
    ),
    "entry": Target(decode_entry, [json({"schema": 1, "term": 1, "object": POD, "bound_at": "2026-01-01T00:00:00Z"})]),
    "watermark": Target(decode_watermark, [json({"schema": 1, "term": 1, "resource_version": "7"})]),
    "mirror": Target(
        mirror,
        [
            b"pod.u=" + json({"schema": 1, "term": 1, "object": {**POD, "spec": {**POD["spec"], "nodeName": "n1"}}}),
            b"node.n1=" + json({"schema": 1, "term": 1, "object": NODE}),
            b"watermark.pod=" + json({"schema": 1, "term": 1, "resource_version": "7"}),
        ],
    ),
    "pod": Target(pod, [json(POD)]),
    "node": Target(node, [json(NODE)]),
    "quantity": Target(quantity, [b"100m", b"1.5Gi", b"1e3", b"-12.5E-3", b"0.000000001n"], (QuantityError,)),
    "selector": Target(
        selectors,
        [
            json(
                {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "a", "operator": "NotIn", "values": []}]}
            ),
            json({"nodeSelectorTerms": [{"matchExpressions": [{"key": "n", "operator": "Lt", "values": ["5"]}]}]}),
        ],
    ),
    "fact": Target(live, [json({"sampled_at": "2026-01-01T00:00:00Z", "value": [1, {"a": 2.5}]})]),
    "bandwidth": Target(bandwidth, [json(NodeSample(receive=1.0, transmit=2.0, capacity=3.0, sampled_at=NOW))]),
    "metrics answer": Target(answer, [json(VECTOR)], (SourceError,)),
    "configuration": Target(configuration, [CONFIGURATION.encode()], (ConfigurationError,)),
    "name": Target(names, [b"berth.ranked.berth.default.web.0", b"u.1.1", b"node.n=2E1", b"12345"]),
    "text": Target(shown, ["a\x1b[2J \u202e nats://u:p@h:1 \U000e0041".encode()]),
    "recording": Target(recording, [b"".join(_recorded_lines())], (RecordingError,)),
    "manifest": Target(
        manifests, [json({"apiVersion": "v1", "kind": "List", "items": [POD]}), yaml.safe_dump(POD).encode()]
    ),
    "yaml": Target(
        yaml_text,
        [b"a: &a {x: 1, y: [1, 2.5, true, ~]}\nb: {<<: *a}\nc: 2026-01-01\n"],
        (yaml.YAMLError, TypeError),
    ),
    "kubeconfig": Target(kubeconfig, [KUBECONFIG.encode()], (KubeconfigError,)),
}

SLOW = {"kubeconfig": 40, "configuration": 40, "pod": 4, "node": 4, "manifest": 2}
"""How much longer one input takes than a message: so many times fewer of them are tried."""

PARTS = [
    *(b"null", b"true", b"-1", b"0", b"1e308", b"1e999", b"-0.0", b"18446744073709551616", b"9" * 500, b'"\\ud800"'),
    *(b'"', b"{", b"}", b"[", b"]", b":", b",", b"\\", b"\x00", b"\xff", b"\x1b[", b"\n", b"  ", b"- ", b"? ", b"| "),
    *(b"&a ", b"*a", b"<<: ", b"!!int ", b"!!binary ", b"---\n", b"0x", b"1:1", b"2026-99-99", b".inf", b".nan", b"~"),
    *(b"[" * 100, b'{"a":' * 100, b'"9999-12-31T23:59:59-14:00"', b"Ki", b"E", b"m", b"n", b"=ED=A0=80", b"=", b"."),
    *(b'"In"', b'"Gt"', b'""', b"{}", b"[]", b"\xed\xa0\x80", "\u202e".encode(), b"x" * 300, b"@", b"://", b"%"),
]


def mutated(seeds: list[bytes], chance: random.Random) -> bytes:
    """A seed with some parts removed, repeated, replaced or added."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 1, 2, 5, 30)))
        match chance.randrange(6):
            case 0:
                del data[at:end]
            case 1:
                data[at:at] = data[at:end] * chance.choice((1, 2, 50))
            case 2:
                data[at:end] = chance.choice(PARTS)
            case 3:
                data[at:at] = chance.choice(PARTS)
            case 4 if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case _:
                _replace_a_value(data, chance)
    return bytes(data)


def _replace_a_value(data: bytearray, chance: random.Random) -> None:
    """Put another value in the place of one after a colon: the shape stays, the type does not."""
    colons = [at for at, byte in enumerate(data) if byte == ord(":")]
    if colons:
        at = chance.choice(colons) + 1
        ends = [found for sign in b",}\n" if (found := data.find(sign, at)) >= 0]
        data[at : min(ends, default=len(data))] = chance.choice(PARTS)


FOUND: list[tuple[str, bytes]] = [
    ("device selector", b"[1].all(w, null.minor() == 2)"),
    ("kubeconfig", KUBECONFIG.replace("https://", "https:/E/").encode()),  # the server was quoted with its password
    ("configuration", CONFIGURATION.replace("retryPeriod: 2s", f"retryPeriod: {'2' * 50}s").encode()),
    ("configuration", CONFIGURATION.replace("parallelism: 16", "parallelism: !!int e").encode()),
    ("configuration", CONFIGURATION.replace("parallelism: 16", f"parallelism: {'9' * 5000}").encode()),
    ("configuration", CONFIGURATION.replace("parallelism: 16", "parallelism: 2026-99-99").encode()),
    ("yaml", b"a: !!int\n"),
    ("yaml", b"a: !!bool x\n"),
]
"""Target and input of what was found."""
