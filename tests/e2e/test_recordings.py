"""`berth record` on a running pipeline, and what a recording answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml

from berth.bus.topology import CLUSTER, DECISIONS, RANKED
from berth.messages.attempts import Decision, Outcome
from berth_cli.recording.file import NotBegunError, Recording, read_recording
from berth_cli.recording.history import decoded
from berth_cli.recording.mask import WORDS
from berth_cli.recording.segments.folder import segments_in
from harness.servers.child_processes import free_ports, overload
from harness.servers.keeping_recorder import keeping_recorder, take
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.storage import HOSTNAME, Storage, controllers

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/recordings.md").read_text()
COMMANDS = re.findall(r"^\$ berth (.*)$", PAGE, re.MULTILINE)
SECONDS = 120.0
WEB, LOW, VIP, CLAIMS, NODES, SHOPS = 120, 56, 6, 4, 8, 24
RACK, TEAM = "acme.example/rack", {"acme.example/team": "ledger"}
APART = {"labelSelector": {"matchLabels": TEAM}, "topologyKey": HOSTNAME}
SPREAD = {
    "affinity": {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": APART}]
        },
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": RACK, "operator": "In", "values": ["upper", "under"]}]}
                ]
            }
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": RACK,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": APART["labelSelector"],
        }
    ],
}
ANYWHERE = {"nodeSelector": {}}
AT_ONCE = {"terminationGracePeriodSeconds": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecordings:
    """Recordings of one run: all of it, the same without names, from its middle on, and one that was killed.

    `kept` and `kept_masked` were taken from a recorder that keeps the last while; `segments` is the folder of another
    one, which was killed.
    """

    whole: Path
    masked: Path
    late: Path
    killed: Path
    kept: Path
    kept_masked: Path
    segments: Path
    namespace: str


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "berth_cli", *map(str, arguments)]


def environment(of: BerthUp | None = None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("BERTH_")}
    return own | ({"TMPDIR": str(of.temporary), "BERTH_NATS_URL": of.nats} if of else {})


@cache  # several tests look at one answer
def berth(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no bus."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False, env=environment(), cwd=cwd
    )


class Recorder:
    """`berth record` as a process."""

    def __init__(self, of: BerthUp, file: Path, *arguments: str, cwd: Path | None = None) -> None:
        self.file = file
        self._said = file.with_suffix(".said")
        with self._said.open("wb") as err:
            self.process = subprocess.Popen(
                command("record", "-o", file if cwd is None else file.name, *arguments),
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment(of),
                cwd=cwd,
            )
        deadline = time.monotonic() + SECONDS
        while "recording to" not in self._said.read_text():
            assert self.process.poll() is None, self._said.read_text()
            assert time.monotonic() < deadline, "the recorder has not begun"
            time.sleep(0.02)

    def end(self, number: int) -> tuple[int, str]:
        """Send it a signal; its exit code and what it printed."""
        self.process.send_signal(number)
        printed, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, printed


@contextmanager
def recorder(of: BerthUp, file: Path, *arguments: str, cwd: Path | None = None) -> Iterator[Recorder]:
    running = Recorder(of, file, *arguments, cwd=cwd)
    try:
        yield running
    finally:
        with running.process as process:
            process.kill()


async def fill(seen: ClusterUser, storage: Storage) -> None:
    """Small pods anywhere, pods with claims, and so many unimportant ones that the test's nodes are nearly full."""
    await storage.add_class("disks.example.com")
    nodes = await seen.add_nodes(NODES, cpu="8")
    labels = [{HOSTNAME: node, RACK: ("upper", "under")[number % 2]} for number, node in enumerate(nodes)]
    patches = zip(nodes, labels, strict=True)
    await asyncio.gather(
        *(seen.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": has}}) for node, has in patches)
    )
    for number in range(CLAIMS):
        await storage.add_claim(f"data-{number}")
        await storage.add_pod(f"db-{number}", f"data-{number}")
    web = await seen.add_pods(WEB, "web", cpu="50m", spec=ANYWHERE)
    low = await seen.add_pods(LOW, "low", cpu="1", spec=AT_ONCE)
    shop = await seen.add_pods(SHOPS, "shop", cpu="10m", labels=TEAM, spec=SPREAD)
    await seen.all_bound([*web, *low, *shop, *(f"db-{number}" for number in range(CLAIMS))])


async def crowd(seen: ClusterUser) -> None:
    """Pods are deleted, others come, important ones evict some, and one fits nowhere."""
    await asyncio.gather(*(seen.delete_pod(f"web-{number}") for number in range(WEB // 2)))
    await seen.add_pods(1, "huge", cpu="100")
    vip = await seen.add_pods(VIP, "vip", cpu="2", priority_class="system-cluster-critical")
    more = await seen.add_pods(WEB, "more", cpu="50m", spec=ANYWHERE)
    await seen.all_bound([*vip, *more])


async def record(of: BerthUp, folder: Path) -> RunRecordings:
    names = {name: folder / f"{name}.berth" for name in ("whole", "masked", "late", "killed", "kept", "kept_masked")}
    settings = {"TMPDIR": str(of.temporary), "BERTH_NATS_URL": of.nats}
    async with cluster_user(of.kubeconfig, cleans_up=False) as seen:
        storage = Storage(seen)
        with (
            recorder(of, names["whole"]) as whole,
            recorder(of, names["masked"], "--anonymise") as masked,
            recorder(of, names["killed"]) as killed,
            keeping_recorder(folder / "whole", keep="2m", settings=settings) as keeping,
            keeping_recorder(folder / "segments", keep="1m", settings=settings) as killed_keeping,
        ):
            for each in (keeping, killed_keeping):
                await asyncio.to_thread(each.wait_until_says, "keeping the last")
            async with controllers(storage):
                await fill(seen, storage)
                full = len(killed_keeping.segments())
                await asyncio.to_thread(
                    killed_keeping.wait_until, lambda: len(killed_keeping.segments()) > full, "another segment"
                )
                with recorder(of, names["late"]) as late:
                    await crowd(seen)
                    assert late.end(signal.SIGTERM)[0] == 0
            assert killed_keeping.end(signal.SIGKILL)[0] == -signal.SIGKILL
            await asyncio.sleep(1.5)  # a recorder writes every second
            assert killed.end(signal.SIGKILL)[0] == -signal.SIGKILL
            assert masked.end(signal.SIGTERM)[0] == 0
            await asyncio.to_thread(keeping.wait_until, lambda: len(keeping.segments()) > 2, "a third segment")
            take(keeping.folder, names["kept"])
            take(keeping.folder, names["kept_masked"], "--anonymise")
            code, printed = whole.end(signal.SIGINT)
        assert code == 0
        assert re.fullmatch(rf"recorded \d+ messages in .* to {whole.file}, .*: it was stopped\n", printed)
        return RunRecordings(**names, segments=killed_keeping.folder, namespace=seen.namespace)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecordings:
    folder = tmp_path_factory.mktemp("recordings")
    with berth_up("--nodes", 4, "--scorers", 2, folder=folder) as up:
        up.wait_until_ready()
        return asyncio.run(record(up, folder))  # and ends it: nothing runs while the tests replay


def replayed(file: Path) -> dict:
    answer = berth("replay", file, "-o", "json")
    found = json.loads(answer.stdout)
    assert (answer.returncode, found["different"]) == (0, [])
    return found


def test_variables_of_the_services_ask_nothing(run: RunRecordings):
    plain = environment() | {"BERTH_ALGORITHM_PROVIDER": "FromScratch", "BERTH_CONFIG": "no/file"}
    answer = subprocess.run(
        command("replay", run.late), capture_output=True, text=True, timeout=SECONDS, check=False, env=plain
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "made again: all are equal" in answer.stdout


def test_a_run_with_two_scorers_preemption_and_volumes_is_replayed_and_equal(run: RunRecordings):
    found = replayed(run.whole)
    assert (found["left_out"], found["unreadable"], found["is_whole"]) == ({}, 0, True)
    assert found["equal"] == found["rankings"] == found["messages"][RANKED] >= 2 * WEB + LOW + VIP + CLAIMS + SHOPS
    assert len(found["equal_by_scorer"]) == 2
    assert min(found["equal_by_scorer"].values()) > WEB / 4


def test_the_run_has_what_it_is_to_have(run: RunRecordings):
    """Else the test above would prove less than it says."""
    recording = read_recording(run.whole)
    decisions = [decision for _, decision in decoded(recording, DECISIONS, Decision)]
    assert {each.outcome for each in decisions} >= {Outcome.BOUND, Outcome.PREEMPTING, Outcome.UNSCHEDULABLE}
    assert sum(bool(each.preemption and each.preemption.victims) for each in decisions) >= VIP / 2
    claims = [record.payload or b"" for record in recording.of(CLUSTER) if record.subject.startswith("pvc.")]
    assert sum(b'"volumeName":"made-' in payload for payload in claims) >= CLAIMS
    assert not recording.is_cut


def test_an_anonymised_recording_of_the_run_is_replayed_and_equal(run: RunRecordings):
    found = replayed(run.masked)
    assert (found["left_out"], found["unreadable"], found["is_whole"]) == ({}, 0, True)
    assert found["equal"] == found["messages"][RANKED] >= 2 * WEB + LOW + VIP + CLAIMS + SHOPS
    assert (found["anonymised"], len(found["not_compared"])) == (True, 3)
    assert "names are masked, so not compared are the order of nodes" in berth("replay", run.masked).stdout


SHORT: Final = 6
"""Characters. A random mask, of which there are thousands, may have so few of a name in it by chance."""


def test_an_anonymised_recording_has_none_of_the_names(run: RunRecordings):
    """Those of the recording with names, and each longer word of them."""
    written = gzip.decompress(run.masked.read_bytes()).decode()
    names = set(names_in(read_recording(run.whole)))
    assert {run.namespace, "shop-0", "data-0", "ledger", "upper", RACK, f"{run.namespace}-0"} <= names
    masked = [name for name in names if not WORDS.issuperset(re.findall(r"[^\W\d_]+", name.lower()))]
    assert [name for name in masked if len(name) > SHORT and name in written] == []
    words = {word.lower() for name in names for word in re.findall(r"[^\W_]{5,}", name)} - WORDS
    assert {"ledger", "upper"} <= words
    found = words & {word.lower() for word in re.findall(r"[^\W_]+", written)}
    assert {word for word in found if not word.isdecimal()} == set()
    assert run.namespace not in run.masked.with_suffix(".said").read_text().replace(str(run.masked), "")


def test_an_anonymised_recording_answers_what_one_with_names_does(run: RunRecordings):
    packing = ROOT / "docs/recordings/packing.yaml"
    whole, masked = (
        json.loads(berth("replay", file, "--config", packing, "-o", "json").stdout) for file in (run.whole, run.masked)
    )
    assert masked["recorded"] == whole["recorded"]
    assert len(masked["other"]["pods"]) == len(whole["other"]["pods"])


def names_in(recording: Recording) -> Iterator[str]:
    """What objects of the mirror are known by."""
    for record in recording.of(CLUSTER):
        thing = json.loads(record.payload or b"{}").get("object") or {}
        meta = thing.get("metadata", {})
        yield from (meta[name] for name in ("name", "namespace", "uid") if meta.get(name))
        labels = meta.get("labels") or {}
        yield from (*labels, *labels.values())
        spec = thing.get("spec", {})
        yield from (container["image"] for container in spec.get("containers") or () if container.get("image"))
        yield from (spec[name] for name in ("nodeName", "volumeName", "storageClassName") if spec.get(name))


def test_a_recording_that_begins_in_the_middle_of_a_run_is_replayed_and_equal(run: RunRecordings):
    found = replayed(run.late)
    assert found["equal"] > WEB
    assert set(found["left_out"]) <= {"ranked before everything that counted then was recorded"}


def test_a_file_of_several_segments_is_replayed_and_equal_and_answers_as_one_that_was_recorded(run: RunRecordings):
    found, whole = replayed(run.kept), replayed(run.whole)
    assert (found["left_out"], found["unreadable"], found["is_whole"]) == ({}, 0, True)
    assert found["equal"] == found["rankings"] == whole["rankings"]
    assert found["equal_by_scorer"] == whole["equal_by_scorer"]
    assert berth("replay", run.kept, "--pod", f"{run.namespace}/vip-0").returncode == 0
    packing = ROOT / "docs/recordings/packing.yaml"
    tables = (berth("replay", file, "--config", packing, "-o", "json").stdout for file in (run.kept, run.whole))
    kept, recorded = map(json.loads, tables)
    assert kept["recorded"] == recorded["recorded"]
    assert len(kept["other"]["pods"]) == len(recorded["other"]["pods"])
    waiting = berth("simulate", "--cluster", run.kept, "--pending")
    assert f"{run.namespace}/huge-0" in waiting.stdout


def has_begun(segment: Path) -> bool:
    """Whether the recorder lived to write something of it."""
    try:
        return bool(read_recording(segment))
    except NotBegunError:
        return False


def test_whichever_segment_is_the_first_they_are_replayed_and_equal(run: RunRecordings):
    """Each begins at another moment, at which pods are between the queues; the recorder was killed at last."""
    files = [each.path for each in segments_in(run.segments) if has_begun(each.path)]
    made_again = []
    for number in range(len(files)):
        found = json.loads(berth("replay", *files[number:], "-o", "json").stdout)
        assert found["different"] == []
        assert set(found["left_out"]) <= {"ranked before everything that counted then was recorded"}
        made_again.append(found["equal"])
    assert made_again == sorted(made_again, reverse=True)
    assert made_again[0] > WEB + LOW + SHOPS
    assert made_again[-1] < made_again[0]  # how many each has depends on the moment at which its segment began
    assert json.loads(berth("replay", run.segments, "-o", "json").stdout)["equal"] == made_again[0]


def test_names_are_masked_in_a_file_of_segments(run: RunRecordings):
    found = replayed(run.kept_masked)
    assert (found["anonymised"], found["left_out"], found["equal"]) == (True, {}, replayed(run.whole)["rankings"])
    written = gzip.decompress(run.kept_masked.read_bytes()).decode()
    for name in (run.namespace, "shop-0", "data-0", "ledger", RACK):
        assert name not in written


def test_what_a_killed_recorder_has_written_is_replayed_and_equal(run: RunRecordings):
    answer = berth("replay", run.killed)
    assert answer.returncode == 0, answer.stdout
    assert "it has no end: the recorder was killed, or the file was copied in part" in answer.stderr
    assert replayed(run.killed)["equal"] >= 2 * WEB


def test_a_pod_is_explained_as_why_does(run: RunRecordings):
    answer = berth("replay", run.whole, "--pod", f"{run.namespace}/vip-0")
    assert answer.returncode == 0
    assert answer.stdout.startswith(f"{run.namespace}/vip-0 is on {run.namespace}-")
    assert re.search(r"preempted pods on \S+ .* before the end of the recording: ", answer.stdout)
    assert "attempt 1 at" in answer.stdout
    assert "made again, and equal" in answer.stdout
    document = json.loads(berth("replay", run.whole, "--pod", "huge-0", "-n", run.namespace, "-o", "json").stdout)
    assert (document["outcome"], document["blockers"]) == ("unschedulable", ["NodeAffinity", "NodeResourcesFit"])
    assert all(ranking["is_equal"] for ranking in document["rankings"])


def test_the_recording_says_how_many_waited(run: RunRecordings):
    """`huge` waits at its end, and fits nowhere."""
    found = read_recording(run.whole)
    waited = [pod.name for each in found.waiting for pod in each.pods]
    assert "huge-0" in waited
    assert replayed(run.whole)["waited"] >= 1
    huge = json.loads(berth("replay", run.whole, "--pod", "huge-0", "-n", run.namespace, "-o", "json").stdout)
    assert huge["waited"]["queue"] in {"backoff", "unschedulable", "in flight"}
    assert [each.more for each in found.waiting] == [0] * len(found.waiting)


def test_a_pod_that_is_not_in_it_is_an_answer_of_no(run: RunRecordings):
    answer = berth("replay", run.whole, "--pod", "default/nobody")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "berth: looking for pod 'default/nobody': the recording has no Decision on it\n"


def test_another_configuration_is_asked_what_it_would_have_done(run: RunRecordings):
    packing = ROOT / "docs/recordings/packing.yaml"
    answer = berth("replay", run.whole, "--config", packing, "-o", "json")
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert found["other"]["measures"]["nodes_used"] < found["recorded"]["nodes_used"]
    assert found["other"]["counts"]["elsewhere"] > found["again"]["counts"].get("elsewhere", 0)
    assert found["again"]["measures"]["pods"] == found["recorded"]["pods"]
    pods = {each["pod"]: each for each in found["other"]["pods"]}
    assert pods[f"{run.namespace}/huge-0"]["other"]["fate"] == "waits"
    assert len(pods) >= 2 * WEB + LOW + VIP + CLAIMS
    table = berth("replay", run.whole, "--config", packing).stdout
    assert re.search(r"AT THE END +RECORDED +AGAIN +OTHER", table)


def test_simulate_takes_a_recording_as_its_cluster(run: RunRecordings, tmp_path: Path):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "next"}, "spec": {"schedulerName": "berth"}}
    pod["spec"]["containers"] = [{"name": "c", "image": "c", "resources": {"requests": {"cpu": "10m"}}}]
    (tmp_path / "next.yaml").write_text(yaml.safe_dump(pod))
    answer = berth("simulate", "--cluster", run.whole, "--pods", tmp_path / "next.yaml", "-o", "json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert len(found["feasible"]) == NODES + 4
    waiting = berth("simulate", "--cluster", run.whole, "--pending")
    assert waiting.returncode == 0
    assert f"{run.namespace}/huge-0" in waiting.stdout
    assert "placed 0 of 1 pod" in waiting.stdout


def test_a_difference_ends_with_1_and_is_named(run: RunRecordings, tmp_path: Path):
    """A recording in which one total is another."""
    lines = gzip.decompress(run.whole.read_bytes()).splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if b'"source":"RANKED"' in line and line.count(b'"total":') > 2)
    lines[at] = re.sub(rb'"total":(\d+)', b'"total":9\\1', lines[at], count=1)
    (tmp_path / "changed").write_bytes(gzip.compress(b"".join(lines)))
    answer = berth("replay", tmp_path / "changed")
    assert answer.returncode == 1
    assert "1 differ, " in answer.stdout
    assert re.search(r" attempt 1 at .* by scorer-\d: \S+: recorded 9\d+ with ", answer.stdout)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        pytest.param(["replay", "README.md"], "want a recording of `berth record`, got another file", id="a page"),
        pytest.param(["replay", "no/file"], "no/file: reading: No such file or directory", id="no file"),
        pytest.param(["record", "-o", "x", "--for", "soon"], "--for: want a duration such as", id="no duration"),
        pytest.param(
            ["replay", "x", "--pod", "a/b", "--algorithm-provider", "default"], "name one of them", id="two questions"
        ),
        pytest.param(["record", "-o", "README.md"], "exists already", id="a file that exists"),
    ],
)
def test_wrong_usage_is_one_line(run: RunRecordings, arguments: list[str], error: str):
    answer = berth(*arguments, cwd=ROOT)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert error in answer.stderr
    del run


def test_without_nats_nothing_is_written(tmp_path: Path):
    url = f"nats://127.0.0.1:{free_ports(1)[0]}"
    answer = berth("record", "-o", tmp_path / "r", "--nats", url)
    assert answer.returncode == 3
    assert "start `berth up`, or name the server with --nats" in answer.stderr
    assert not (tmp_path / "r").exists()


SHOWS = {
    "record -o incident.berth --for 10s": r"recorded \d+ messages in .+ s to incident.berth, .*: its time",
    "record --keep 1h -o kept": r"keeping the last 1 h 0 min in \S*kept, 1\.1 GB at most",
    "replay kept": r"\d+ rankings, \d+ made again: all are equal \(scorer-\d \d+",
    "record --from kept --since 30m -o past.berth": (
        r"it begins at \S+: nothing before that is kept\n"
        r"took .+ s, \d+ messages, [\d.]+ kB to past.berth\n"
    ),
    "replay incident.berth": r"\d+ rankings, \d+ made again: all are equal \(scorer-\d \d+",
    "replay incident.berth --pod default/vip": r"(?s)default/vip is on node-00\n.*preempted pods on .*made again, ",
    "replay incident.berth --pod default/gated": (
        r"default/gated is gated and not scheduled: SchedulingGates.*\n"
        r"  \w[\w ]+ for \d.* s, profile berth\n  according to the watcher at \d"
    ),
    "replay incident.berth --config docs/recordings/packing.yaml": r"(?s)default/shop-\d +node-\d\d +node-\d\d.*AGAIN",
    "simulate --cluster incident.berth --pending": r"default/big +- +0 of 12 ",
}
"""What each command of the page prints, in their order."""


async def create(seen: ClusterUser, page: str) -> None:
    for pod in yaml.safe_load_all((ROOT / page).read_text()):
        assert (await seen.api.post("/api/v1/namespaces/default/pods", pod)).code == 201


async def create_pods(of: BerthUp) -> None:
    """As the page says; `vip` comes when `low` is placed."""
    async with cluster_user(of.kubeconfig) as seen:
        await create(seen, "docs/tracing/pods.yaml")
        await eventually(lambda: is_placed(seen, "low"), "low to be placed")
        await create(seen, "docs/tracing/important.yaml")
        await eventually(lambda: is_placed(seen, "vip"), "vip to be placed")
        await create(seen, "docs/recordings/pods.yaml")
        await eventually(lambda: is_placed(seen, "shop-7"), "shop-7 to be placed")


async def is_placed(seen: ClusterUser, name: str) -> bool:
    return bool((await seen.api.get(f"/api/v1/namespaces/default/pods/{name}")).body["spec"].get("nodeName"))


def test_the_commands_of_the_page_print_what_it_says(tmp_path: Path):
    assert list(SHOWS) == COMMANDS
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    with berth_up("--nodes", 12, "--scorers", 2, folder=tmp_path / "up") as up:
        up.wait_until_ready()
        first, keep, again, since, *others = COMMANDS
        arguments = first.replace("10s", f"{10 * overload():.0f}s").split()[3:]
        settings = {"TMPDIR": str(up.temporary), "BERTH_NATS_URL": up.nats}
        with (
            recorder(up, tmp_path / "incident.berth", *arguments, cwd=tmp_path) as recording,
            keeping_recorder(tmp_path / keep.split()[4], keep=keep.split()[2], settings=settings) as keeping,
        ):
            keeping.wait_until_says("keeping the last")
            asyncio.run(create_pods(up))
            printed, _ = recording.process.communicate(timeout=SECONDS)
            replayed_again, answer = (berth(*line.split(), cwd=tmp_path) for line in (again, since))
    assert re.search(SHOWS[first], printed), printed
    assert re.search(SHOWS[keep], keeping.said), keeping.said
    assert re.search(SHOWS[again], replayed_again.stdout), replayed_again
    assert re.search(SHOWS[since], answer.stderr + answer.stdout), answer
    for line in others:
        answer = berth(*line.split(), cwd=tmp_path)
        assert (answer.returncode, answer.stderr) == (0, ""), line
        assert re.search(SHOWS[line], answer.stdout), answer.stdout
