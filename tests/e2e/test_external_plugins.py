"""A plugin of another distribution in the whole pipeline: when it fails, only its pod is affected."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import berth_up
from harness.worlds.plugin_site import installed_plugin

pytestmark = [pytest.mark.requires("nats-server"), pytest.mark.timeout(180)]

PLUGIN = '''
"""Fails in the way that the pod's label "how" selects."""

from berth.api.config.types import Point
from berth.framework.interface import ScorePlugin
from berth.plugins.factory import PluginFactory


class Rude(ScorePlugin):
    name = "Rude"

    def score(self, state, pod, node):
        how = (pod.metadata.labels or {}).get("how")
        while how == "hang":
            pass
        if how == "raise":
            raise LookupError("no such thing")
        return 101 if how == "exceed" else 50


FACTORY = PluginFactory(name="Rude", points=(Point.SCORE,), build=lambda _args: Rude())
'''
CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: berth, plugins: {score: {enabled: [{name: Rude}]}}}]
"""
SENTENCES = {
    "raise": 'running Score plugin "Rude": LookupError: no such thing',
    "hang": 'running Score plugin "Rude": took longer than 0.3 s',
    "exceed": 'plugin "Rude" returns an invalid score 101',
}


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with the plugin, whose package is installed for the processes that the test starts."""
    site = installed_plugin(tmp_path / "site", "Rude", PLUGIN)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
    monkeypatch.setenv("BERTH_NUMBERS_PLUGIN_DEADLINE", "300ms")
    path = tmp_path / "scheduler.yaml"
    path.write_text(CONFIGURATION)
    return path


async def test_a_failing_plugin_fails_only_its_pod_and_is_named(configuration: Path, tmp_path: Path):
    with berth_up("--nodes", 4, "--config", configuration, folder=tmp_path) as berth:
        berth.wait_until_ready()
        scorer = berth.pids["scorer-1"]
        async with cluster_user(berth.kubeconfig) as seen:
            anywhere = {"spec": {"nodeSelector": {}}}
            await seen.create(seen.pod(how, labels={"how": how}, **anywhere) for how in SENTENCES)
            for how, sentence in SENTENCES.items():
                condition = await eventually(lambda how=how: seen.condition(how), f"a condition on the pod {how}")
                assert sentence in condition["message"]
            notes = [event["note"] for event in await seen.events("FailedScheduling")]
            assert all(any(sentence in note for note in notes) for sentence in SENTENCES.values())
            await seen.create([seen.pod("fine", **anywhere)])
            await seen.all_bound(["fine"])
        assert berth.pids["scorer-1"] == scorer


@pytest.mark.parametrize("command", ["config check", "up --config"])
def test_a_plugin_that_cannot_be_made_is_named_before_anything_starts(
    configuration: Path, tmp_path: Path, command: str
):
    module = tmp_path / "site" / "rude.py"
    module.write_text(module.read_text().replace("def score(", "def scores("))
    done = subprocess.run(
        [sys.executable, "-m", "berth_cli", *command.split(), str(configuration)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"berth: {configuration}: making plugin 'Rude': TypeError: ")
    assert "score" in line
