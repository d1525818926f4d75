"""A recording as a page: each step of both runs, the pods of a node, and why a pod is where it is in both."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from berth.api.config.nodeload.queries import LoadQuery
from berth.api.meta import ObjectMeta
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, CoschedulingSpec
from berth.exits import UsageError
from berth.messages.livedata import MeasuredUsage, NodeSample, encode_sample
from berth.messages.queue import WaitingPod
from berth.profiles.configuration import profiles_of
from berth_cli.commands.replay import app
from berth_cli.console.guard import HEADERS, Guard
from berth_cli.console.pages import serving
from berth_cli.options import NotFoundError, PodName
from berth_cli.recording.configuration import configuration_of
from berth_cli.recording.file import Recording, Waiting, read_recording
from berth_cli.recording.history import Fate, History, recorded_end
from berth_cli.rendering import clock
from berth_cli.replayed import film
from berth_cli.replayed.comparison import RecordedSource, TwoClusters
from berth_cli.replayed.decisions import RecordedDecisions
from berth_cli.replayed.film import Film, film_times
from berth_cli.replayed.server import ReplayServer
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile, packing_profiles
from harness.plugins.long_runs import often
from harness.worlds.recorded_groups import RecordedGroups
from harness.worlds.recorded_world import CONFIG, START, RecordedWorld, a_recording

KEPT = Path(__file__).parents[2] / "data/recordings/preemption-and-volumes.berth"
SAME = {"berth": default_profile()}


def small(name: str, cpu: str = "500m", **spec: object):
    return a_pod(name, containers=[a_container(cpu=cpu)], **{"priority": 0, **spec})


@pytest.fixture
def world() -> RecordedWorld:
    """Three nodes of 4 cores, one scorer, a binder that takes the best node."""
    world = RecordedWorld(0, scorers=1, nodes=0, lag=0.0, chosen_of=1, ever_away=False)
    for number in range(3):
        world.mirror(f"node.n{number}", a_node(f"n{number}", cpu="4", labels={"number": str(number)}))
    return world


def clusters(recording: Recording, profiles=SAME) -> TwoClusters:
    source = RecordedSource(recording=recording, profiles=SAME, config=CONFIG)
    return TwoClusters.of(source, profiles, title="incident.berth", other_title="other.yaml")


def pods_by_node(of: Film, until: int) -> dict[str, int]:
    """How many pods a page counts on each node after so many steps, row by row as the page does it."""
    names, pods = {}, {}
    for step in of.steps[: until + 1]:
        for row in step.gone:
            del names[row], pods[row]
        names.update((each.row, each.name) for each in step.nodes)
        pods.update((each.row, each.pods) for each in step.loads)
    return {name: pods[row] for row, name in names.items()}


@pytest.mark.parametrize("seed", range(often(2)))
def test_the_pods_of_each_node_are_those_that_it_counts_in_every_step(seed: int):
    world = RecordedWorld(seed)
    world.run(300)
    shown = clusters(world.recording, packing_profiles())
    assert len(shown.recorded.steps) == len(shown.other.steps) == len(shown.recorded.times)
    for of in (shown.recorded, shown.other):
        for step in range(0, len(of.times), 7):
            counted = pods_by_node(of, step)
            assert {name: len(of.on_node(name, step)) for name in counted} == counted


@pytest.mark.parametrize("seed", range(often(2)))
def test_both_films_end_as_the_measures_say(seed: int):
    world = RecordedWorld(seed)
    world.run(300)
    shown = clusters(world.recording, packing_profiles())
    last = len(shown.recorded.times) - 1
    assert sum(pods_by_node(shown.recorded, last).values()) == shown.found.recorded.pods
    assert sum(pods_by_node(shown.other, last).values()) == shown.found.other.measures.pods
    end = recorded_end(world.recording, History(world.recording))
    assert pods_by_node(shown.recorded, last) == {
        name: len(end.placed_on_row(end.rows.of(name) or 0)) for name in end.node_names()
    }


def test_a_step_has_what_happened_up_to_its_time(world: RecordedWorld):
    for number in range(4):
        world.one_by_one(small(f"web-{number}"))
        world.seconds += 10
    shown = clusters(world.recording)
    assert shown.recorded.times[0] == START
    assert shown.recorded.times[-1] == world.recording.last_time
    bound = [sum(pods_by_node(shown.recorded, step).values()) for step in range(len(shown.recorded.times))]
    assert (bound[0], bound[-1]) == (0, 4)
    assert bound == sorted(bound)
    (stay,) = shown.recorded.stays_of(PodName(namespace="default", name="web-1"))
    decided = next(each.time for each in world.recording.of("DECISIONS") if each.subject.endswith("web-1"))
    times = shown.recorded.times
    assert times[stay.begin - 1] < decided <= times[stay.begin]


def test_a_node_that_goes_and_comes_back_has_its_pods_again(world: RecordedWorld):
    world.one_by_one(small("web"))
    (node,) = [
        each.node for each in clusters(world.recording).recorded.stays_of(PodName(namespace="default", name="web"))
    ]
    world.seconds += 10
    world.mirror(f"node.{node}", None)
    world.seconds += 10
    world.mirror(f"node.{node}", a_node(node, cpu="4"))
    world.seconds += 10
    world.mirror("node.later", a_node("later"))
    shown = clusters(world.recording).recorded
    assert [node in pods_by_node(shown, step) for step in (100, 200)] == [False, True]
    assert [len(shown.on_node(node, step)) for step in (40, 100, 200)] == [1, 0, 1]
    assert pods_by_node(shown, 200)[node] == 1


def test_samples_are_shown_from_their_time_on(world: RecordedWorld):
    world.seconds += 10
    sample = NodeSample(receive=5.0, transmit=1.0, capacity=10.0, sampled_at=world.now)
    world.publish("bandwidth", "q.n1", encode_sample(sample))
    world.seconds += 10
    world.mirror("node.later", a_node("later"))
    steps = clusters(world.recording).recorded.steps
    (at,) = [number for number, step in enumerate(steps) if step.traffic]
    assert at == pytest.approx(len(steps) / 2, abs=2)
    assert [(each.receive, each.capacity) for each in steps[at].traffic] == [(5.0, 10.0)]


def test_steps_are_fewer_the_more_nodes_there_are(world: RecordedWorld, monkeypatch: pytest.MonkeyPatch):
    world.one_by_one(small("web"))
    assert len(film_times(world.recording)) == film.MOST_STEPS
    monkeypatch.setattr(film, "MOST_STATES", 60)
    assert len(film_times(world.recording)) == 20
    monkeypatch.setattr(film, "MOST_STATES", 1)
    assert film_times(world.recording) == [START, world.recording.last_time]
    assert film_times(a_recording()) == [START]


def test_a_pod_that_is_elsewhere_says_why_in_both_by_points(world: RecordedWorld):
    for number in range(4):
        world.one_by_one(small(f"web-{number}"))
    shown = clusters(world.recording, packing_profiles())
    elsewhere = [each for each in shown.found.other.pods if not each.is_equal]
    one = shown.pod_json(PodName(namespace="default", name=elsewhere[0].pod.partition("/")[2]))
    assert one["difference"] == "elsewhere"
    recorded, other = one["recorded"], one["other"]
    assert (recorded["node"], other["node"]) == (elsewhere[0].recorded.node, elsewhere[0].other.node)
    for side in (recorded, other):
        assert side["sentences"][0].startswith(f"{elsewhere[0].pod} is on {side['node']}")
        assert [stay["node"] for stay in side["stays"]] == [side["node"]]
    points = {each["node"]: each["scores"]["NodeResourcesFit"] for each in other["candidates"]}
    assert points[other["node"]]["score"] > points[recorded["node"]]["score"]  # the recorded one has its points too


def test_every_pod_of_a_recording_of_a_real_run_is_explained_in_both():
    recording = read_recording(KEPT)
    profiles = profiles_of(configuration_of(recording.header, "kept"))
    source = RecordedSource(recording=recording, profiles=profiles, config=recording.header.config)
    shown = TwoClusters.of(source, packing_profiles(), title="kept", other_title="packing")
    elsewhere = is_explained = 0
    for each in shown.found.other.pods:
        namespace, _, name = each.pod.partition("/")
        found = shown.pod_json(PodName(namespace=namespace, name=name))
        for side, fate in (("recorded", each.recorded), ("other", each.other)):
            chosen = [one for one in found[side]["candidates"] if one["node"] == fate.node]
            if fate.fate is Fate.PLACED and found[side]["feasible"] > 1:
                assert len(chosen) == 1
                is_explained += bool(chosen[0]["scores"])
                assert side == "recorded" or chosen[0]["scores"]["NodeResourcesFit"]["weight"] == 1
            assert found[side]["sentences"][0].startswith(each.pod)
        elsewhere += found["difference"] == "elsewhere"
    assert elsewhere > 10
    assert is_explained > len(shown.found.other.pods)


def test_a_pod_that_waits_says_what_refused_the_nodes(world: RecordedWorld):
    world.one_by_one(small("big", "5"))
    shown = clusters(world.recording).pod_json(PodName(namespace="default", name="big"))
    for side in (shown["recorded"], shown["other"]):
        assert side["outcome"] == "unschedulable"
        assert "3 Insufficient cpu" in side["sentences"][0]
        assert side["stays"] == []
    assert [(each.plugin, each.nodes) for each in shown["other"]["rejections"]] == [("NodeResourcesFit", 3)]


def test_an_evicted_pod_says_for_whom_and_its_preemptor_names_it(world: RecordedWorld):
    for number in range(3):
        world.one_by_one(small(f"web-{number}", "4"))
    world.one_by_one(small("vip", "4", priority=100))
    shown = clusters(world.recording)
    (victim,) = [each for each in shown.found.other.pods if each.other.fate == "evicted"]
    name = PodName(namespace="default", name=victim.pod.partition("/")[2])
    for side in ("recorded", "other"):
        found = shown.pod_json(name)[side]
        assert "was evicted from" in found["sentences"][0]
        assert "for default/vip" in found["sentences"][0]
    vip = shown.pod_json(PodName(namespace="default", name="vip"))["other"]
    assert [each.name for each in vip["preemption"]["victims"]] == [name.name]


def test_a_pod_of_before_the_recording_is_where_it_was(world: RecordedWorld):
    world.mirror("pod.old", a_pod("old", uid="old", node="n1"))
    world.one_by_one(small("web"))
    shown = clusters(world.recording).pod_json(PodName(namespace="default", name="old"))
    assert shown["difference"] == ""
    for side in (shown["recorded"], shown["other"]):
        assert side["sentences"][0].startswith("default/old is on n1: ")
        assert side["outcome"] == "placed"


def gated(**members: object) -> WaitingPod:
    known = {"namespace": "default", "name": "gated", "uid": "u", "profile": "berth", "plugins": ["SchedulingGates"]}
    return WaitingPod(**{**known, "queue": "gated", "stage": "gated", "since": START, **members})


def asked_who_waits(world: RecordedWorld, *pods: WaitingPod, **members: object) -> Recording:
    world.recording.waiting.append(Waiting(at=world.now, pods=list(pods), **members))
    return world.recording


def test_a_pod_that_waited_and_was_not_ranked_says_why_it_waited(world: RecordedWorld):
    world.one_by_one(small("web"))
    world.seconds += 100
    found = clusters(asked_who_waits(world, gated())).pod_json(PodName(namespace="default", name="gated"))
    why, since, whence = found["recorded"]["sentences"]
    assert why == "default/gated is gated and not scheduled: SchedulingGates"
    assert since.endswith(" for 1 min 40 s, profile berth")
    assert whence == f"according to the watcher at {clock(world.now)}"
    assert found["other"]["sentences"] == [
        "default/gated is on no node: no request to place it was recorded, so it is not placed anew"
    ]
    assert found["difference"] == ""


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        pytest.param({"queue": "backoff", "stage": "backoff"}, "backs off: no room", id="backs off"),
        pytest.param({"queue": "active", "stage": "active"}, "waits for its turn", id="active"),
        pytest.param({"queue": "in flight", "stage": "in flight"}, "is being scheduled", id="in flight"),
    ],
)
def test_what_it_waited_for_is_said_as_far_as_the_watcher_said_it(
    world: RecordedWorld, members: dict[str, str], sentence: str
):
    """On a page of its queue it does not say how often a pod failed."""
    pod = gated(**members, plugins=[], message="no room")
    found = clusters(asked_who_waits(world, pod)).pod_json(PodName(namespace="default", name="gated"))
    assert found["recorded"]["sentences"][0] == f"default/gated {sentence}"


def test_a_pod_that_was_last_decided_before_the_recording_says_what_was_decided(world: RecordedWorld):
    world.one_by_one(small("big", "5"))
    (decision,) = world.recording.messages.pop("DECISIONS")
    world.recording.messages.pop("RANKED")
    world.recording.messages.pop("PENDING")
    world.seconds += 100
    pod = gated(name="big", uid=small("big").uid, queue="backoff", stage="backoff", plugins=[], attempts=1)
    found = clusters(asked_who_waits(world, pod, decisions=[decision]))
    recorded = found.pod_json(PodName(namespace="default", name="big"))["recorded"]
    assert "3 Insufficient cpu" in recorded["sentences"][0]
    assert recorded["sentences"][-1] == f"at {clock(world.now)} it had waited for 1 min 40 s, according to the watcher"
    assert recorded["outcome"] == "unschedulable"


@pytest.mark.parametrize("shown_in", ["browse", "json", "text"])
def test_a_pod_that_was_bound_and_deleted_is_no_more(world: RecordedWorld, tmp_path: Path, shown_in: str):
    world.one_by_one(small("web"))
    world.one_by_one(small("stays"))
    node = json.loads(world.recording.of("DECISIONS")[0].payload)["node"]
    world.seconds += 10
    world.mirror("pod.uid-web", None)
    world.seconds += 10
    world.show()
    was, stands = f"default/web was on {node}; it was deleted, or has finished", "default/stays is on "
    if shown_in == "browse":
        shown = clusters(world.recording)
        for side in ("recorded", "other"):
            left, there = (shown.pod_json(PodName(namespace="default", name=name))[side] for name in ("web", "stays"))
            assert (left["sentences"][0], left["has_left"]) == (was, True)
            assert left["stays"][-1]["end"] is not None
            assert (there["sentences"][0].startswith(stands), there["has_left"]) == (True, False)
        return
    file, form = world.write(tmp_path / "r"), ["-o", "json"] if shown_in == "json" else []
    left, there = (CliRunner().invoke(app, [str(file), "--pod", name, *form]).stdout for name in ("web", "stays"))
    if shown_in == "json":
        assert (json.loads(left)["has_left"], json.loads(there)["has_left"]) == (True, False)
    else:
        assert left.startswith(f"{was}\n")
        assert there.startswith(stands)


@pytest.mark.parametrize(
    ("seconds", "left"),
    [
        pytest.param(4, [], id="not shown yet"),
        pytest.param(6, ["default/web"], id="shown and removed between two looks"),
    ],
)
def test_a_bound_pod_that_the_mirror_never_showed_is_judged_by_its_watermark(
    world: RecordedWorld, seconds: int, left: list[str]
):
    pod = small("web")
    world.ask_for(pod, f"{pod.uid}.1.1")
    world.bind(pod, "n1")
    world.seconds += seconds
    world.show()
    decisions, web = RecordedDecisions(world.recording), PodName(namespace="default", name="web")
    assert [str(pod) for pod in (web,) if decisions.last(pod).has_left] == left


def test_a_pod_whose_name_is_used_again_is_not_explained_by_the_one_before(world: RecordedWorld, tmp_path: Path):
    world.one_by_one(small("db-0", uid="first"))
    world.seconds += 10
    world.mirror("pod.first", None)
    world.seconds += 10
    recording = asked_who_waits(world, gated(name="db-0", uid="second"))
    recorded = clusters(recording).pod_json(PodName(namespace="default", name="db-0"))["recorded"]
    assert recorded["sentences"][0] == "default/db-0 is gated and not scheduled: SchedulingGates"
    done = CliRunner().invoke(app, [str(world.write(tmp_path / "r")), "--pod", "db-0"])
    assert done.stdout.startswith("default/db-0 is gated and not scheduled: SchedulingGates\n")


def test_that_a_pod_waited_is_not_said_of_the_next_one_of_its_name(world: RecordedWorld):
    asked_who_waits(world, gated(name="db-0", uid="first"))
    world.seconds += 10
    world.one_by_one(small("db-0", uid="second"))
    sentences = clusters(world.recording).pod_json(PodName(namespace="default", name="db-0"))["recorded"]["sentences"]
    assert sentences[0].startswith("default/db-0 is on ")
    assert not [each for each in sentences if "had waited" in each]


@pytest.mark.parametrize("form", ["text", "json"])
def test_replay_explains_a_pod_that_waited_and_was_not_ranked(world: RecordedWorld, tmp_path: Path, form: str):
    asked_who_waits(world, gated())
    file = world.write(tmp_path / "r")
    done = CliRunner().invoke(app, [str(file), "--pod", "default/gated", *(["-o", "json"] if form == "json" else [])])
    assert done.exit_code == 0
    if form == "json":
        found = json.loads(done.stdout)
        assert (found["outcome"], found["queued"]["pod"]["name"], found["rankings"]) == ("gated", "gated", [])
    else:
        assert done.stdout.startswith("default/gated is gated and not scheduled: SchedulingGates\n")


@pytest.mark.parametrize(
    ("has", "error"),
    [
        pytest.param("its node", "has no Decision on it; it is on n1, where it was placed before", id="placed before"),
        pytest.param("nothing", "has no Decision on it; the waiting pods were not recorded", id="no list"),
        pytest.param("a list", "has no Decision on it; the recording lacks 7 waiting pods", id="a part of a list"),
        pytest.param(
            "a message", "has no Decision on it: it waited to be ranked, published 2.0 s before", id="in PENDING"
        ),
    ],
)
def test_why_nothing_is_known_of_a_pod_is_said(world: RecordedWorld, tmp_path: Path, has: str, error: str):
    if has == "a list":
        asked_who_waits(world, gated(), more=7)
    if has == "a message":
        world.ask_for(small("web"), "u.1.1")
    if has == "its node":
        world.mirror("pod.u", a_pod("web", uid="u", node="n0"))
        world.mirror("pod.u", a_pod("web", uid="u", node="n1"))
    world.seconds += 2
    world.mirror("node.n9", a_node("n9"))
    done = CliRunner().invoke(app, [str(world.write(tmp_path / "r")), "--pod", "default/web"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert error in " ".join(done.stderr.split())


def test_what_is_not_there_is_said(world: RecordedWorld):
    world.one_by_one(small("web"))
    shown = clusters(world.recording)
    with pytest.raises(NotFoundError, match="the recording has no such pod"):
        shown.pod_json(PodName(namespace="default", name="nobody"))
    with pytest.raises(NotFoundError, match="the recording has no such node"):
        shown.node_json("nowhere", 0)
    with pytest.raises(UsageError, match="want 0 to 239"):
        shown.node_json("n1", 240)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("batch", ["the configuration has no profile for 2 pods of berth: what was recorded of them stays"]),
        ("berth", []),
    ],
    ids=["a profile is missing", "none is missing"],
)
def test_what_another_configuration_leaves_where_it_was_is_said(tmp_path: Path, other: str, said: list[str]):
    world = RecordedGroups(2, scorers=1, lag=0.0, ever_away=False, nodes=4)
    world.one_by_one(small("web-1"))
    world.one_by_one(small("web-2"))
    pods = [small(name) for name in ("gang-1", "gang-2")]
    world._ask_for_group("gang", pods, 1)
    (tmp_path / "other.yaml").write_text(
        f"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"profiles: [{{schedulerName: {other}}}]\n"
    )
    path = world.write(tmp_path / "past.berth")
    found = CliRunner().invoke(app, [str(path), "--config", str(tmp_path / "other.yaml")])
    groups = "groups are not planned again: the pods of 1 group stay where they were recorded"
    assert [line.removeprefix("berth: ") for line in found.stderr.splitlines()] == [*said, groups]


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("NodeLoad", []),
        ("NodeLoad, args: {statistic: p95}", ["no p95 of {token}, only average: plugins that read it abstain"]),
        ("NodeLoad, args: {range: 1m}", ["no bandwidth of {token}: NodeLoad scores without it"]),
    ],
    ids=["as recorded", "another statistic", "another range"],
)
def test_load_that_another_configuration_reads_and_the_recording_lacks_is_said(
    world: RecordedWorld, tmp_path: Path, plugin: str, said: list[str]
):
    recorded = LoadQuery(time_range=timedelta(minutes=5))
    sample = NodeSample(cpu=MeasuredUsage(average=100), sampled_at=world.now)
    world.publish("bandwidth", f"{recorded.token}.n1", encode_sample(sample))
    world.one_by_one(small("web"))
    (tmp_path / "other.yaml").write_text(
        f"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"
        f"- plugins: {{score: {{enabled: [{{name: NodeLoad}}]}}}}\n  pluginConfig: [{{name: {plugin}}}]\n"
    )
    found = CliRunner().invoke(app, [str(world.write(tmp_path / "r")), "--config", str(tmp_path / "other.yaml")])
    asked = LoadQuery(time_range=timedelta(minutes=1)) if "1m" in plugin else recorded
    sentences = [f"the recording has {each.format(token=asked.token)}" for each in said]
    assert [line.removeprefix("berth: ") for line in found.stderr.splitlines()] == sentences


def test_only_the_first_pods_are_listed_and_the_others_counted(world: RecordedWorld, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("berth_cli.replayed.comparison.MOST_LISTED", 1)
    for number in range(6):
        world.one_by_one(small(f"web-{number}"))
    shown = clusters(world.recording, packing_profiles())
    different = sum(not each.is_equal for each in shown.found.other.pods)
    document = shown.document()
    assert (len(document["different"]), document["more"]) == (1, different - 1)
    assert different > 1


# --- groups


class Gang:
    """A group of two in a recording, of which pods are bound, and end, a second after each other."""

    def __init__(self, world: RecordedWorld, minimum: int = 2) -> None:
        self.world = world
        metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang")
        spec = CoschedulingSpec(min_member=minimum)
        world.mirror("coschedulingpodgroup.uid-gang", CoschedulingPodGroup(metadata=metadata, spec=spec))

    def bind(self, *names: str) -> Gang:
        for name in names:
            self.world.seconds += 1
            self.world.mirror(f"pod.{name}", a_pod(name, uid=name, node="n1", labels={GROUP_LABEL: "gang"}))
        return self

    def end(self, *names: str) -> Gang:
        for name in names:
            self.world.seconds += 1
            self.world.mirror(f"pod.{name}", None)
        return self

    def row(self) -> dict[str, Any]:
        (row,) = clusters(self.world.recording).document()["groups"]
        return row


def test_a_group_is_a_row_with_what_is_bound_at_each_step(world: RecordedWorld):
    row = Gang(world).bind("a", "b", "c").row()
    assert (row["namespace"], row["name"], row["minimum"]) == ("default", "gang", 2)
    assert [count for _, count in row["bound"]] == [1, 2, 3]
    assert [step for step, _ in row["bound"]] == sorted({step for step, _ in row["bound"]})
    assert (row["partial_seconds"], row["is_partial"]) == (None, False)  # one second is no longer than a second


@pytest.mark.parametrize(
    ("happens", "seconds", "still"),
    [
        pytest.param(lambda gang: gang.bind("a", "b").end("a", "b"), None, False, id="it ends pod by pod"),
        pytest.param(lambda gang: gang.bind("a", "b").end("a").bind("b", "b", "c"), 3, False, id="a lost pod"),
        pytest.param(lambda gang: gang.bind("a", "a", "a").end("a"), 3, False, id="begun and given up"),
        pytest.param(lambda gang: gang.bind("a", "b").end("a").bind("b", "b"), 2, True, id="in part at the end"),
    ],
)
def test_a_group_that_was_bound_in_part_for_longer_than_a_second_is_marked(world, happens, seconds, still):
    row = happens(Gang(world)).row()
    assert (row["partial_seconds"], row["is_partial"]) == (seconds, still)


def test_pods_of_a_group_without_a_minimum_are_no_row(world: RecordedWorld):
    Gang(world, minimum=1).bind("a")
    assert clusters(world.recording).document()["groups"] == []


@pytest.mark.parametrize("seed", range(often(2)))
def test_what_is_recorded_of_groups_makes_rows(seed: int):
    world = RecordedGroups(seed)
    world.run(300)
    rows = clusters(world.recording).document()["groups"]
    assert any(row["whole_seconds"] is not None for row in rows)
    assert all(count >= 0 for row in rows for _, count in row["bound"])


# --- over HTTP


@asynccontextmanager
async def served(shown: TwoClusters) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    guard = Guard.of("127.0.0.1", names=(), token=None, proxy=None)
    application = ReplayServer(shown, guard).application()
    async with serving(application, "127.0.0.1", 0) as port, aiohttp.ClientSession() as session:
        yield session, f"http://127.0.0.1:{port}"


@pytest.mark.slow
async def test_the_page_and_its_answers_are_served_behind_the_consoles_guard(world: RecordedWorld):
    world.mirror("node.hostile", a_node("hostile", labels={"said": "left\u202eright"}))
    world.one_by_one(small("web"))
    shown = replace(clusters(world.recording, packing_profiles()), title="<b>\u202e.berth")
    paths = {
        "/": 200,
        "/page/replay.js": 200,
        "/api/film": 200,
        "/api/nodes/n1?step=5": 200,
        "/api/nodes/n1": 400,
        "/api/nodes/n1?step=-1": 400,
        "/api/nodes/n1?step=240": 400,
        "/api/nodes/nowhere?step=5": 404,
        "/api/pods/default/web": 200,
        "/api/pods/default/nobody": 404,
        "/api/pods/default/Web%20": 400,
        "/api/queue": 404,
        "/api/stream": 404,
    }
    async with served(shown) as (session, url):
        for path, status in paths.items():
            async with session.get(url + path) as answer:
                assert (path, answer.status) == (path, status)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS
                assert "\u202e" not in await answer.text()
        async with session.get(f"{url}/", headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421
        async with session.get(f"{url}/") as answer:
            assert "page/replay.js" in await answer.text()
        async with session.get(f"{url}/api/film") as answer:
            film_document = json.loads(await answer.text())
    assert film_document["title"] == "<b>\u202e.berth"
    assert film_document["times"][-1] - film_document["times"][0] == pytest.approx(
        (world.recording.last_time - START) / timedelta(seconds=1)
    )
    assert film_document["measures"][0][0] == "pods on nodes"
