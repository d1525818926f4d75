"""An anonymised recording: no name is left, what was equal is equal, and every ranking is made again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint
from random import Random
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.load import load
from berth.api.config.networktraffic import EGRESS_ANNOTATION, INGRESS_ANNOTATION, LINK_CAPACITY_ANNOTATION
from berth.api.config.types import API_VERSION, KIND, Point
from berth.api.devices import (
    CelSelector,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClass,
    DeviceClassSpec,
    ExpressionSelector,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, PodCondition
from berth.api.podgroups import (
    GROUP_LABEL,
    SCHEDULED,
    TOPOLOGY_ANNOTATION,
    CoschedulingPodGroup,
    CoschedulingSpec,
    GangPolicy,
    SchedulingPolicy,
    UpstreamPodGroup,
    UpstreamSpec,
    UpstreamStatus,
    group_of,
    is_scheduled,
    of_coscheduling,
    of_upstream,
)
from berth.api.volumes import BETA_STORAGE_CLASS, BIND_COMPLETED, MIGRATED_PLUGINS
from berth.cel.selector import compile_selector
from berth.cluster.nodes import NodeInfo
from berth.framework.interface import ScorePlugin
from berth.framework.profile import Profile
from berth.framework.status import CycleState
from berth.messages.attempts import Decision, Outcome, Ranked
from berth.messages.encoding import decode, encode
from berth.messages.mirror import MirrorEntry, decode_entry, encode_entry
from berth.messages.queue import IN_FLIGHT, INCOMPLETE, QUEUES, UNUSABLE, WaitingPod
from berth.messages.subjects import Attempt, Term
from berth.plugins.factory import Args, PluginFactory, with_args
from berth.profiles.configuration import profiles_of
from berth.profiles.installed import GROUP, known_plugins
from berth.settings.presets import presets
from berth_cli.recording.anonymised import Anonymiser
from berth_cli.recording.configuration import configuration_of, recorded_configuration
from berth_cli.recording.file import Recorded, Source, Waiting, header, recorded
from berth_cli.recording.mask import Mask, without_names
from berth_cli.recording.replay import Replay, ReplayCounts
from berth_watcher.queue.queuedpod import Stage
from harness.builders.devices import device_of, matches
from harness.builders.objects import a_pod
from harness.plugins.long_runs import often
from harness.worlds.recorded_claims import RecordedClaims
from harness.worlds.recorded_earmarks import RecordedEarmarks
from harness.worlds.recorded_groups import RecordedGroups
from harness.worlds.recorded_world import CONFIG, RecordedWorld

D = TypeVar("D", ResourceSlice, DeviceClass)
T = TypeVar("T", CoschedulingPodGroup, Pod, Node)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRAFFIC = """\
  plugins: {score: {enabled: [{name: NetworkTraffic, weight: 3}]}}
  pluginConfig:
  - name: NetworkTraffic
    args: {url: "http://metrics.acme.example:9090", maximumAge: 60s, devices: ['eth\\d+'], podBandwidth: 20M}
"""
LOAD = """\
  plugins: {score: {enabled: [{name: NodeLoad, weight: 3}]}}
  pluginConfig:
  - name: NodeLoad
    args: {url: "http://metrics.acme.example:9090", maximumAge: 60s, labels: {cluster: acme-east}}
"""
TRIMARAN = """\
  plugins: {score: {enabled: [{name: LoadVariationRiskBalancing, weight: 3}]}}
  pluginConfig:
  - name: LoadVariationRiskBalancing
    args: {metricProvider: {type: Prometheus, address: "http://metrics.acme.example:9090"}}
"""
KOORDINATOR = """\
  plugins: {score: {enabled: [{name: LoadAwareScheduling, weight: 3}]}}
"""
HISTORIES = [(seed, lag) for lag in (0.0, 0.05, 0.5) for seed in range(often(2))]


def configuration(more: str = "", scheduler: str = "berth", preset: str = "default") -> KubeSchedulerConfiguration:
    text = f"apiVersion: {API_VERSION}\nkind: {KIND}\nprofiles:\n- schedulerName: {scheduler}\n{more}"
    chosen = presets()[preset]
    loaded = load(text, known=known_plugins(release=chosen.release), preset=chosen.plugins)
    return replace(loaded, release=chosen.release)


def anonymised(world: RecordedWorld, used: KubeSchedulerConfiguration) -> Mapping[str, Profile]:
    """Mask the recording of a world; the profiles of its masked configuration."""
    anonymiser, recording = Anonymiser(used), world.recording
    plain = msgspec.structs.replace(
        recording.header, configuration=recorded_configuration(used), config=used.digest or CONFIG
    )
    recording.header = msgspec.structs.replace(
        anonymiser.header(plain), config=anonymiser.header(recording.header).config
    )
    recording.messages = {source: list(map(anonymiser.of, there)) for source, there in recording.messages.items()}
    return profiles_of(configuration_of(recording.header, "a recording"))


def counts(world: RecordedWorld, profiles: Mapping[str, Profile]) -> ReplayCounts:
    found = ReplayCounts()
    for one in Replay(world.recording, profiles, best=32).run():
        found.add(one)
    return found


@pytest.mark.parametrize(("seed", "lag"), HISTORIES)
def test_every_ranking_of_a_masked_history_is_equal(seed: int, lag: float):
    world = RecordedWorld(seed, scorers=1 + seed % 3, lag=lag)
    world.run(300)
    found = counts(world, anonymised(world, configuration()))
    assert (found.different, found.left_out) == (0, Counter())
    assert found.equal.total() == len(world.recording.of("RANKED")) > 50


@pytest.mark.parametrize("seed", range(often(2)))
def test_masked_plans_of_groups_are_equal(seed: int):
    world = RecordedGroups(seed, lag=0.2)
    world.run(300)
    found = counts(world, anonymised(world, configuration()))
    assert (found.different, found.left_out) == (0, Counter())
    assert found.equal.total() == len(world.recording.of("RANKED"))
    assert sum(b'"schema":2' in (record.payload or b"") for record in world.recording.of("RANKED")) > 10
    assert "gang" not in repr(world.recording)


@pytest.mark.parametrize("seed", range(often(2)))
def test_masked_rankings_beside_earmarks_are_equal(seed: int):
    world = RecordedEarmarks(seed, lag=0.2)
    world.run(300)
    found = counts(world, anonymised(world, configuration()))
    assert (found.different, found.left_out) == (0, Counter())
    assert any(record.subject.startswith("earmark.") for record in world.recording.of("cluster"))
    assert "gang" not in repr(world.recording)


@pytest.mark.parametrize("seed", range(often(2)))
def test_masked_rankings_with_devices_are_equal(seed: int):
    world = RecordedClaims(seed, lag=0.2)
    world.run(300)
    found = counts(world, anonymised(world, configuration()))
    assert (found.different, found.left_out) == (0, Counter())
    assert world.bound > 10
    assert "acme" not in repr(world.recording)


@pytest.mark.parametrize("more", [TRAFFIC, LOAD, TRIMARAN], ids=["traffic", "load", "trimaran"])
@pytest.mark.parametrize("seed", range(often(1)))
def test_masked_rankings_on_live_data_are_equal(seed: int, more: str):
    used = configuration(more)
    world = RecordedWorld(seed, lag=0.2, profiles=profiles_of(used))
    world.run(300)
    text = repr(world.recording.messages)
    profiles = anonymised(world, used)
    found = counts(world, profiles)
    assert (found.different, found.left_out) == (0, Counter())
    (source,) = profiles["berth"].live_sources
    assert f"{source.name}." in repr(world.recording.of("bandwidth"))
    assert f"{source.name}." not in text
    assert "acme" not in repr(world.recording)


def test_a_changed_masked_ranking_is_named():
    world = RecordedWorld(1, scorers=2)
    world.run(300)
    profiles, there = anonymised(world, configuration()), world.recording.messages["RANKED"]
    index, message = next(
        (index, message)
        for index, message in enumerate(decode(each.payload or b"", Ranked) for each in there)
        if len(message.candidates) > 2
    )
    first, *others = message.candidates
    candidates = [msgspec.structs.replace(first, total=first.total + 7), *others]
    other = msgspec.json.encode(msgspec.structs.replace(message, candidates=candidates))
    there[index] = recorded("RANKED", there[index].sequence, NOW, there[index].subject, other)
    (one,) = [one for one in Replay(world.recording, profiles, best=32).run() if one.differences]
    assert one.differences[0].startswith(f"{first.node}: recorded {first.total + 7} with ")


def test_a_worse_node_in_front_is_named_although_the_order_of_equals_is_the_recorded_one():
    world = RecordedWorld(1, scorers=2)
    world.run(300)
    profiles, there = anonymised(world, configuration()), world.recording.messages["RANKED"]
    index, message = next(
        (index, message)
        for index, message in enumerate(decode(each.payload or b"", Ranked) for each in there)
        if len(message.candidates) > 2 and message.candidates[0].total > message.candidates[1].total
    )
    first, second, *others = message.candidates
    other = msgspec.json.encode(msgspec.structs.replace(message, candidates=[second, first, *others]))
    there[index] = recorded("RANKED", there[index].sequence, there[index].time, there[index].subject, other)
    one, *_ = [one for one in Replay(world.recording, profiles, best=32).run() if one.differences]
    assert one.differences[0].startswith(f"nodes: recorded {second.node}, {first.node}")


def test_the_recorded_order_of_equals_is_needed():
    """Without it masked names would put other nodes first."""
    different = 0
    for seed in range(4):
        world = RecordedWorld(seed, scorers=2)
        world.run(300)
        profiles = anonymised(world, configuration())
        world.recording.header = msgspec.structs.replace(world.recording.header, anonymised=False)
        different += counts(world, profiles).different
    assert different > 0


def test_masked_rankings_on_the_clusters_own_metrics_are_equal():
    used = configuration(KOORDINATOR)
    world = RecordedWorld(1, lag=0.2, profiles=profiles_of(used))
    world.run(300)
    found = counts(world, anonymised(world, used))
    assert (found.different, found.left_out) == (0, Counter())


@pytest.mark.parametrize("preset", presets())
def test_a_masked_configuration_loads_with_the_same_plugins(preset: str):
    used = configuration(scheduler="acme-scheduler", preset=preset)
    head = header(at=NOW, bus_id="bus", config="d", release=used.release, configuration=recorded_configuration(used))
    masked = Anonymiser(used).header(head)
    loaded = configuration_of(masked, "a recording")
    (before,), (after,) = used.profiles, loaded.profiles
    assert "acme" not in repr(masked)
    assert {
        point: [(ref.name, point is Point.SCORE and (ref.weight or 1)) for ref in refs]
        for point, refs in after.plugins.items()
        if refs
    } == {
        point: [(ref.name, point is Point.SCORE and (ref.weight or 1)) for ref in refs]
        for point, refs in before.plugins.items()
        if refs
    }
    assert after.args == before.args


def test_extenders_are_masked_and_load():
    used = configuration(
        "extenders:\n- {urlPrefix: 'https://extender.acme.example/api', filterVerb: filter, weight: 2,"
        " managedResources: [{name: acme.example/fpga}]}\n"
    )
    head = header(at=NOW, bus_id="bus", config="d", release=used.release, configuration=recorded_configuration(used))
    masked = Anonymiser(used).header(head)
    assert "acme" not in repr(masked)
    (extender,) = configuration_of(masked, "a recording").extenders
    (resource,) = extender.managed_resources
    assert re.fullmatch(r"\w{4}\.\w{7}/fpga", resource)


class PoolArgs(Args, frozen=True, kw_only=True):
    weights: dict[str, int] = msgspec.field(default_factory=dict)
    range: str = ""
    devices: dict[str, object] = msgspec.field(default_factory=dict)
    pause: timedelta = timedelta(seconds=1)


class Pools(ScorePlugin):
    """A plugin from elsewhere: it has points for each node."""

    name = "Pools"

    def __init__(self, args: PoolArgs) -> None:
        self._weights = args.weights

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return self._weights.get(node.name, 0)


FACTORY = PluginFactory(name="Pools", points=(Point.SCORE,), build=with_args(Pools, PoolArgs), args_type=PoolArgs)
POOLS = """\
  plugins: {score: {enabled: [{name: Pools, weight: 3}]}}
  pluginConfig:
  - name: Pools
    args:
      weights: {n1: 50, n2: 7, acme-pool: 5, 'n3': 100}
      range: acme-range
      devices: {acme: [{kind: acme-kind, acme-field: 7}, acme.example/deviceName], nodes: 12}
      pause: 1m30s
"""


@pytest.fixture
def foreign_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="Pools", value=f"{__name__}:FACTORY", group=GROUP)
    monkeypatch.setattr("berth.profiles.installed.entry_points", lambda group: [point])


@pytest.mark.usefixtures("foreign_plugin")
def test_arguments_of_a_plugin_from_elsewhere_keep_the_names_of_its_fields_only():
    used = configuration(POOLS)
    head = header(at=NOW, bus_id="bus", config="d", release=used.release, configuration=recorded_configuration(used))
    masked = Anonymiser(used).header(head)
    assert "acme" not in repr(masked)
    (args,) = (each["args"] for each in masked.configuration["profiles"][0]["pluginConfig"] if each["name"] == "Pools")
    assert list(args) == ["apiVersion", "kind", "weights", "range", "devices", "pause"]
    assert (args["kind"], args["pause"], list(args["weights"].values())) == ("PoolsArgs", "1m30s", [50, 7, 5, 100])
    first, second = args["devices"]
    assert second == "nodes"
    assert list(args["devices"][first][0].values())[1] == 7
    assert configuration_of(masked, "a recording").profiles[0].args["Pools"].pause == timedelta(seconds=90)


@pytest.mark.usefixtures("foreign_plugin")
@pytest.mark.parametrize("seed", range(often(1)))
def test_masked_rankings_of_a_plugin_from_elsewhere_that_looks_up_names_are_equal(seed: int):
    used = configuration(POOLS)
    world = RecordedWorld(seed, lag=0.2, profiles=profiles_of(used))
    world.run(300)
    found = counts(world, anonymised(world, used))
    assert (found.different, found.left_out) == (0, Counter())
    assert any(
        each.scores.get("Pools")
        for record in world.recording.of("RANKED")
        for each in decode(record.payload or b"", Ranked).candidates
    )


class TestMask:
    """What a mask keeps, and what it does not."""

    def test_the_same_word_has_the_same_mask_everywhere(self):
        mask = Mask()
        namespace, pod = mask.name("ledger"), mask.name("payments-7d9f8")
        assert mask.name("ledger/payments-7d9f8") == f"{namespace}/{pod}"
        assert mask.name("payments-7d9f8-data") == f"{pod}-{mask.name('zz-data').split('-')[1]}"
        assert mask.text("evicted ledger/payments-7d9f8, 3 of 12.") == mask.text(
            f"evicted {'ledger'}/payments-7d9f8, 3 of 12."
        )
        assert "payments" not in mask.text("no room for payments-7d9f8.")

    def test_two_recordings_have_other_masks(self):
        assert Mask().name("payments-of-everybody") != Mask().name("payments-of-everybody")

    def test_masks_are_as_long_as_their_words_and_never_twice(self):
        mask = Mask(random=Random(1))
        words = [f"{one}{other}" for one in "abcdefgh" for other in "abcdefghijkl"]
        masks = [mask.name(word) for word in words]
        assert len(set(masks)) == len(words)
        assert {len(each) for each in masks} == {2}
        numbers = [mask.name(f"x-{number}") for number in range(100)]
        assert len(set(numbers)) == 100
        assert all(re.fullmatch(r"[a-z]{1,2}-\d{1,2}", each) for each in numbers)

    def test_when_all_masks_of_a_length_are_in_use_the_next_is_longer(self):
        mask = Mask(random=Random(1))
        masks = [mask.name(chr(code)) for code in range(0x410, 0x450)]  # 64 letters
        assert len(set(masks)) == len(masks)
        assert all(each.isascii() for each in masks)

    @pytest.mark.parametrize(
        "text",
        [
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
            "node.kubernetes.io/instance-type",
            "node.kubernetes.io/not-ready",
            "node-role.kubernetes.io/control-plane",
            "failure-domain.beta.kubernetes.io/region",
            "ephemeral-storage",
            "hugepages-2Mi",
            "nvidia.com/gpu",
            "ebs.csi.aws.com",
            "kubernetes.io/aws-ebs",
            "kubernetes.io/no-provisioner",
            "volume.kubernetes.io/selected-node",
            "scheduler.alpha.kubernetes.io/preferAvoidPods",
            "system-cluster-critical",
            "NoSchedule",
            "DoesNotExist",
            "WaitForFirstConsumer",
            "ReadWriteOncePod",
            "PreemptLowerPriority",
            "default-scheduler",
            "0/12 nodes are available: 12 Insufficient cpu. preemption: 0/12 nodes are available: 12 No helpful.",
            BETA_STORAGE_CLASS,
            BIND_COMPLETED,
            MIGRATED_PLUGINS,
            INGRESS_ANNOTATION,
            EGRESS_ANNOTATION,
            LINK_CAPACITY_ANNOTATION,
        ],
    )
    def test_words_of_kubernetes_are_kept(self, text: str):
        assert Mask().text(text) == text

    @pytest.mark.parametrize(
        ("masked", "kept", "other"),
        [
            pytest.param(Mask.value, "17", "1234567", id="a number, by which Gt and Lt select; no account"),
            pytest.param(Mask.time, "2026-01-01T10:00:00Z", "at ten in Berlin", id="a time"),
            pytest.param(Mask.quantity, "500m", "50 Berliner", id="a quantity"),
            pytest.param(Mask.version, "123456789", "acme9", id="a resourceVersion"),
            pytest.param(Mask.address, "0.0.0.0", "10.20.30.40", id="an address"),  # noqa: S104 - a text
            pytest.param(Mask.text, "5.1 s", "10.20.30.40", id="an amount"),
        ],
    )
    def test_what_is_no_name_is_kept(self, masked: Callable[[Mask, str], str], kept: str, other: str):
        assert masked(Mask(), kept) == kept
        assert masked(Mask(), other) != other

    def test_uids_keep_their_order_and_are_others(self):
        random, mask = Random(1), Mask()
        uids = sorted(str(UUID(int=random.getrandbits(128))) for _ in range(500))
        masks = [mask.name(uid) for uid in uids]
        assert masks == sorted(set(masks))
        assert not set(masks) & set(uids)
        assert mask.name(f"pvc-{uids[3]}").endswith(f"-{masks[3]}")
        assert mask.attempt(f"{uids[3]}.1234567.2") == f"{masks[3]}.1234567.2"

    @pytest.mark.parametrize("text", ["हिन्दी", "Zoe\u0308-Acme", "acme🦄", "acme→b"])
    def test_nothing_that_is_not_ascii_is_left(self, text: str):
        masked = Mask().text(text)
        assert masked.isascii()
        assert "acme" not in masked

    def test_an_attempt_that_is_none_is_a_name(self):
        assert "acme" not in Mask().attempt("acme")


def test_sentences_are_equal_without_names_and_order():
    mask = Mask()
    one, other = "0/2 nodes are available: 1 Insufficient acme.example/b, 1 Insufficient acme.example/a.", Mask()
    assert without_names(mask.text(one)) == without_names(other.text(one)) == without_names(one)
    assert without_names(one) != without_names(one.replace("0/2", "0/3"))
    assert without_names("1 taint {pool: blue}") == without_names(mask.text("1 taint {pool: blue}"))


def of(source: Source, subject: str, data: bytes | None) -> Recorded:
    return Anonymiser(configuration()).of(recorded(source, 5, NOW, subject, data))


@pytest.mark.parametrize(
    ("source", "subject", "data"),
    [
        pytest.param("cluster", "secretkind.acme-web", b'{"schema":1,"term":1,"object":{}}', id="an unknown kind"),
        pytest.param("cluster", "acme", b"{}", id="a key that is none"),
        pytest.param("cluster", "node.acme-web", b'{"acme": "acme"}', id="no entry"),
        pytest.param("cluster", "node.acme-web", b"\xff acme", id="no JSON"),
        pytest.param("cluster", "node.acme-web", b'{"schema":1,"term":1,"object":{"spec":"acme"}}', id="no node"),
        pytest.param("cluster", "watermark.acme", b'"acme"', id="no watermark"),
        pytest.param("PENDING", "acme.acme", b"acme", id="a foreign subject"),
        pytest.param("RANKED", "berth.ranked.acme.acme.acme", b'{"schema":99,"acme":1}', id="a newer schema"),
        pytest.param("bandwidth", "acme.acme", b'{"acme":1}', id="no sample"),
        pytest.param("facts", "acme.acme", b'{"acme":"acme"}', id="a fact of any shape"),
    ],
)
def test_what_cannot_be_decoded_has_no_name_either(source: Source, subject: str, data: bytes):
    found = of(source, subject, data)
    assert (found.source, found.sequence, found.time, found.payload) == (source, 5, NOW, b"{}")
    assert "acme" not in found.subject


def test_who_waits_has_no_names_and_what_it_waits_for_is_kept():
    pod = WaitingPod(
        namespace="acme-shop",
        name="acme-web",
        uid="4f1e2d3c-0000-4000-8000-000000000001",
        profile="acme",
        queue="active",
        stage="awaiting versions",
        since=NOW,
        attempts=3,
        plugins=["NodeResourcesFit"],
        message="0/3 nodes are available: 3 Insufficient acme.example/thing.",
    )
    decision = Decision(
        attempt=f"{pod.uid}.1.3",
        profile="acme",
        epoch=1,
        outcome=Outcome.UNSCHEDULABLE,
        namespace="acme-shop",
        pod="acme-web",
        uid=pod.uid,
    )
    record = recorded("DECISIONS", 5, NOW, "berth.decision.acme.acme-shop.acme-web", encode(decision))
    found = Anonymiser(configuration()).of(Waiting(at=NOW, pods=[pod], decisions=[record], more=2))
    assert b"acme" not in msgspec.json.encode(found)
    (masked,), (about,) = found.pods, found.decisions
    kept = ("queue", "stage", "since", "attempts", "plugins")
    assert [getattr(masked, name) for name in kept] == [getattr(pod, name) for name in kept]
    assert masked.message.startswith("0/3 nodes are available: 3 Insufficient ")
    assert about.subject == f"berth.decision.{masked.profile}.{masked.namespace}.{masked.name}"
    assert decode(about.payload or b"", Decision).uid == masked.uid
    assert found.more == 2


def test_every_stage_of_a_pod_that_waits_is_kept():
    mask = Mask()
    for stage in (*Stage, *QUEUES, IN_FLIGHT, INCOMPLETE, UNUSABLE):
        assert mask.text(stage) == stage


@pytest.mark.parametrize(
    "said",
    [
        "0 of 4 have a place in the best domain, 4 do not fit: 0/2 nodes are available: 2 Insufficient cpu",
        "there is no room for all of them: 4 more ask for at least 8 cpu and 3.51 GiB memory",
        "3 of 6 have a place, 4 are needed; there is no room for so many: 1 more asks for 1.5 cpu",
        "1 is bound, 1 like 2 does not fit where the group runs",
        "minResources asks for 9 cpu beyond its bound members, 8.5 is free in all (a sum of 2 nodes)",
        "no placement found in 4 orders, nor by packing nodes tightly",
    ],
)
def test_why_a_group_has_no_place_is_kept(said: str):
    assert Mask().text(said) == said


def test_a_removal_stays_one():
    found = of("cluster", "node.acme-web", None)
    assert found.payload is None
    assert re.fullmatch(r"node\.[a-z][a-z0-9]{3}-[a-z][a-z0-9]{2}", found.subject)


@pytest.mark.parametrize("name", ["acme-train-7", "2024"])
def test_masked_pods_name_the_same_masked_group(name: str):
    anonymiser = Anonymiser(configuration())

    def masked(kind: str, thing: T) -> T:
        entry = encode_entry(MirrorEntry(term=Term(7), object=msgspec.Raw(msgspec.json.encode(thing))))
        found = anonymiser.of(recorded("cluster", 5, NOW, f"{kind}.{thing.metadata.name}", entry)).payload or b""
        assert b"acme" not in found
        return msgspec.json.decode(decode_entry(found).object, type=type(thing))

    group = CoschedulingPodGroup(
        metadata=ObjectMeta(name=name, namespace="acme", annotations={TOPOLOGY_ANNOTATION: "acme.com/rack"}),
        spec=CoschedulingSpec(min_member=3, min_resources={"cpu": "36", "acme.com/gpu": 4, "memory": "80Gi"}),
    )
    found = of_coscheduling(masked("coschedulingpodgroup", group))
    pod = masked("pod", Pod(metadata=ObjectMeta(name="acme-web", namespace="acme", labels={GROUP_LABEL: name})))
    node = masked("node", Node(metadata=ObjectMeta(name="acme-n", labels={"acme.com/rack": "acme-r7"})))
    assert group_of(pod) == found.key != of_coscheduling(group).key
    assert found.topology is not None
    assert found.topology.key in (node.metadata.labels or {})
    assert found.minimum == 3
    assert sorted(found.min_resources.values()) == sorted(of_coscheduling(group).min_resources.values())
    assert found.problems == ()


@pytest.mark.parametrize("version", SCHEDULED)
def test_a_masked_group_of_upstream_is_what_it_was(version: str):
    group = UpstreamPodGroup(
        metadata=ObjectMeta(name="acme", namespace="acme"),
        spec=UpstreamSpec(
            scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=3)),
            disruption_mode="PodGroup",
            preemption_policy="Never",
        ),
        status=UpstreamStatus(conditions=[PodCondition(type=SCHEDULED[version], status="True")]),
    )
    entry = encode_entry(MirrorEntry(term=Term(7), object=msgspec.Raw(msgspec.json.encode(group))))
    record = Anonymiser(configuration()).of(recorded("cluster", 5, NOW, "podgroup.acme", entry))
    masked = msgspec.json.decode(decode_entry(record.payload or b"").object, type=UpstreamPodGroup)
    named = {"name": "", "namespace": ""}
    assert b"acme" not in (record.payload or b"")
    assert msgspec.structs.replace(of_upstream(masked), **named) == msgspec.structs.replace(of_upstream(group), **named)
    assert is_scheduled(masked)


def test_a_masked_selector_matches_the_same_masked_devices():
    anonymiser = Anonymiser(configuration())

    def masked(kind: str, thing: D) -> D:
        entry = encode_entry(MirrorEntry(term=Term(7), object=msgspec.Raw(msgspec.json.encode(thing))))
        found = anonymiser.of(recorded("cluster", 5, NOW, f"{kind}.{thing.metadata.name}", entry)).payload or b""
        assert b"acme" not in found
        assert b"A100" not in found
        return msgspec.json.decode(decode_entry(found).object, type=type(thing))

    def matching(of: ResourceSlice, expression: str) -> list[bool]:
        pool = [device_of(msgspec.to_builtins(one) | {"driver": of.spec.driver}) for one in of.spec.devices or ()]
        return [matches(compile_selector(expression), one) for one in pool]

    attributes = {
        "model": DeviceAttribute(string_value="A100-acme"),
        "gpu.acme.com/acmeSlot": DeviceAttribute(string_value="12"),
        "address": DeviceAttribute(string_value="0000:1a"),
        "driverVersion": DeviceAttribute(version_value="1.12.3"),
        "acmeIndex": DeviceAttribute(int_value=3),
    }
    large = SliceDevice(name="acme-0", attributes=attributes, capacity={"memory": DeviceCapacity(value="80Gi")})
    small = SliceDevice(name="acme-1", attributes=attributes, capacity={"memory": DeviceCapacity(value="8Gi")})
    spec = ResourceSliceSpec(driver="gpu.acme.com", node_name="acme-n", devices=[large, small])
    pool = ResourceSlice(metadata=ObjectMeta(name="acme-pool"), spec=spec)
    expression = (
        'device.driver == \'gpu.acme.com\' && device.attributes["gpu.acme.com"].model.endsWith("acme") && '
        'device.attributes["gpu.acme.com"].acmeSlot == "12" && '
        'device.attributes["gpu.acme.com"].address == "0000:1a" && '
        'device.attributes["gpu.acme.com"].driverVersion.isGreaterThan(semver("1.2.0")) && '
        'device.attributes["gpu.acme.com"].acmeIndex < 4 && '
        'device.capacity["gpu.acme.com"].memory.compareTo(quantity("40Gi")) >= 0'
    )
    selector = ExpressionSelector(cel=CelSelector(expression=expression))
    wanted = DeviceClass(metadata=ObjectMeta(name="acme-large"), spec=DeviceClassSpec(selectors=[selector]))
    [found] = masked("deviceclass", wanted).spec.selectors or ()
    assert matching(pool, expression) == [True, False]
    assert found.cel
    assert matching(masked("resourceslice", pool), found.cel.expression) == [True, False]


def test_fields_that_berth_does_not_know_and_the_whole_object_are_left_out():
    pod = a_pod("acme-web", uid="4f1e2d3c-0000-4000-8000-000000000001")
    raw = msgspec.json.decode(msgspec.json.encode(pod)) | {"whole": {"acme": 1}, "acme": {"acme": ["acme"]}}
    entry = MirrorEntry(term=Term(7), object=msgspec.Raw(msgspec.json.encode(raw)), bound_at="2026-01-01T10:00:00Z")
    found = of("cluster", f"pod.{pod.uid}", encode_entry(entry))
    assert b"acme" not in (found.payload or b"")
    masked = decode_entry(found.payload or b"")
    assert (masked.term, masked.bound_at) == (7, entry.bound_at)
    thing = msgspec.json.decode(masked.object, type=Pod)
    assert found.subject == f"pod.{thing.uid}"
    assert not thing.whole
    assert Attempt.parse(f"{thing.uid}.1.1").uid == thing.uid
