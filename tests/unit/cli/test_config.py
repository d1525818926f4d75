"""`berth config`: every error at once, ignored fields, and the file with its defaults."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from berth.plugins.registry import BUILT_IN
from berth.settings.presets import presets
from berth_cli.commands.config import app, configured, extenders_not_asked

ARTICLES = Path(__file__).parents[2] / "data" / "articles"
HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def typed(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "scheduler.yaml"
        path.write_text(text)
        return path

    return write


def test_errors_are_a_line_each_and_exit_code_2(written):
    path = written(
        HEAD + "parallelism: many\nextenders: [{}]\nprofiles: [{plugins: {score: {enabled: [{name: X}]}}}]\n"
    )
    done = typed("check", path)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert [line.split(": ")[2] for line in lines] == [
        "parallelism",
        "extenders[0].urlPrefix",
        "profiles[0].plugins.score.enabled[0].name",
    ]
    assert all(line.startswith(f"berth: {path}: ") for line in lines)


def test_a_valid_file_lists_ignored_fields(written):
    path = written(HEAD + "parallelism: 16\nprofiles: [{schedulerName: a}, {schedulerName: b}]\n")
    done = typed("check", path)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{path}: parallelism: ignored by berth",
        f"{path}: fine, schedules pods of a, b",
    ]


def test_a_file_taken_over_from_kube_scheduler_is_warned_about_in_one_line(written):
    path = written(HEAD + "leaderElection: {resourceName: kube-scheduler, resourceNamespace: kube-system}\n")
    done = typed("check", path)
    assert done.exit_code == 0
    (warning, fine) = done.stdout.splitlines()
    assert warning.startswith(f"{path}: warning: the Lease 'kube-system/kube-scheduler' is kube-scheduler's")
    assert fine == f"{path}: fine, schedules pods of berth"

    path = written(HEAD + "profiles: [{schedulerName: default-scheduler}]\n")
    (warning, _fine) = typed("check", path).stdout.splitlines()
    assert warning.startswith(f"{path}: warning: kube-scheduler has the profile 'default-scheduler' too")


def test_errors_of_the_services_are_reported_too(written):
    path = written(HEAD + "leaderElection: {leaseDuration: 11s}\n")
    done = typed("check", path)
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        f"berth: {path}: leaderElection.renewDeadline: want less than leaderElection.leaseDuration (11s) - 2s, got 10s"
    ]


def test_the_variables_of_the_services_are_checked_together_with_the_file(written, monkeypatch):
    path = written(HEAD + "leaderElection: {leaseDuration: 137s, renewDeadline: 107s, retryPeriod: 26s}\n")
    assert typed("check", path).exit_code == 0
    monkeypatch.setenv("BERTH_NUMBERS_PROPOSAL", "150s")
    assert typed("check", path).exit_code == 0
    monkeypatch.setenv("BERTH_NUMBERS_PROPOSAL", "100s")
    done = typed("check", path)
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "berth: BERTH_NUMBERS_PROPOSAL: want more than leaderElection.leaseDuration (137s), got 100s"
    ]


def test_every_plugin_is_shown_with_all_its_arguments_in_v1_form(written):
    path = written(HEAD + "percentageOfNodesToScore: 30\nprofiles: [{schedulerName: a}]\n")
    document = yaml.safe_load(typed("show", path).stdout)
    (profile,) = document["profiles"]
    args = {config["name"]: config["args"] for config in profile["pluginConfig"]}
    assert (document["percentageOfNodesToScore"], profile["percentageOfNodesToScore"]) == (30, 30)
    assert args["NodeResourcesFit"] == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "NodeResourcesFitArgs",
        "scoringStrategy": {
            "type": "LeastAllocated",
            "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
        },
    }
    assert args["InterPodAffinity"]["hardPodAffinityWeight"] == 1
    assert args["PodTopologySpread"]["defaultingType"] == "System"
    assert args["DefaultPreemption"]["minCandidateNodesPercentage"] == 10
    takes_args = {name for name, factory in BUILT_IN.items() if factory.args_type is not None}
    runs = {ref["name"] for point in profile["plugins"].values() for ref in point["enabled"]}
    assert args.keys() == takes_args & runs


def test_conversions_of_an_older_version_are_reported(written):
    path = written(HEAD.replace("/v1", "/v1beta3") + "profiles: [{schedulerName: a}]\n")
    first, last = typed("check", path).stdout.splitlines()
    assert first == f"{path}: apiVersion: read kubescheduler.config.k8s.io/v1beta3 as kubescheduler.config.k8s.io/v1"
    assert last.endswith("fine, schedules pods of a")


def test_a_missing_file_is_an_error():
    done = typed("check", "/nowhere.yaml")
    assert done.exit_code == 2
    assert "/nowhere.yaml: reading: No such file or directory" in done.stderr


def test_an_unknown_preset_lists_the_known_ones():
    done = typed("check", ARTICLES / "from-scratch.yaml", "--algorithm-provider", "Scratch")
    assert done.exit_code == 2
    assert f"want one of {', '.join(presets())}, got 'Scratch'" in done.stderr


def test_what_is_shown_has_every_default_and_is_the_same_as_yaml_and_json():
    path = ARTICLES / "from-scratch.yaml"
    as_yaml = yaml.safe_load(typed("show", path, "--algorithm-provider=FromScratch").stdout)
    as_json = json.loads(typed("show", path, "--algorithm-provider=FromScratch", "-o", "json").stdout)
    assert as_yaml == as_json
    assert as_yaml["leaderElection"]["retryPeriod"] == "2s"
    (profile,) = as_yaml["profiles"]
    assert profile["plugins"]["score"]["enabled"] == [{"name": "FreeCapacity", "weight": 1}]
    args = {config["name"]: config["args"] for config in profile["pluginConfig"]}
    assert args["NodeResourcesFit"]["scoringStrategy"]["type"] == "LeastAllocated"


def test_what_is_shown_can_be_checked(written):
    shown = typed("show", ARTICLES / "node-score-label.yaml").stdout
    done = typed("check", written(shown))
    assert (done.exit_code, done.stdout.splitlines()[-1].split(": ")[1]) == (
        0,
        "fine, schedules pods of nodelabelscore",
    )


@pytest.mark.parametrize("gates", ["", "ResourceLimitsPriorityFunction=true", "EvenPodsSpread=false"])
@pytest.mark.parametrize("provider", [name for name, preset in presets().items() if preset.gates])
def test_the_shown_file_of_a_provider_is_valid_with_its_flags(written, provider: str, gates: str):
    flags = [f"--algorithm-provider={provider}", *([f"--feature-gates={gates}"] if gates else [])]
    shown = typed("show", ARTICLES / "network-traffic.yaml", *flags)
    comment = shown.stdout.splitlines()[0]
    assert comment.startswith("# ")
    assert comment.endswith(f"is read with {' '.join(flags)}")
    assert comment.removeprefix("# ") in shown.stderr
    path = written(shown.stdout)
    again = typed("show", path, *flags)
    assert (again.exit_code, again.stdout) == (0, shown.stdout)
    assert typed("check", path, *flags).exit_code == 0


@pytest.mark.parametrize(
    ("filters", "flags"),
    [
        pytest.param("{enabled: [{name: EBSLimits}]}", ["--algorithm-provider=DefaultProvider"], id="added to a list"),
        pytest.param('{enabled: [{name: EBSLimits}], disabled: [{name: "*"}]}', [], id="without the provider"),
        pytest.param(
            '{enabled: [{name: EBSLimits, weight: 2}], disabled: [{name: "*"}]}',
            ["--algorithm-provider=DefaultProvider"],
            id="otherwise than the provider has it",
        ),
    ],
)
def test_a_removed_plugin_is_allowed_only_in_the_providers_whole_list(written, filters: str, flags):
    done = typed("check", written(HEAD + f"profiles: [{{plugins: {{filter: {filters}}}}}]\n"), *flags)
    assert done.exit_code == 2
    assert "enabled[0].name: 'EBSLimits' was invalid in version" in done.stderr


@pytest.mark.slow
def test_a_minus_is_standard_input():
    command = [sys.executable, "-m", "berth_cli", "config", "check", "-"]
    done = subprocess.run(command, input=HEAD, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "standard input: fine, schedules pods of berth\n")


def test_what_ranks_by_itself_says_that_it_asks_no_extender(written):
    path = written(HEAD + "extenders: [{urlPrefix: 'http://u:secret@h/x', filterVerb: f}]\n")
    (sentence,) = extenders_not_asked(configured(path, None))
    assert sentence == "extenders are not asked here: nodes and points are as without http://h/x"
    assert extenders_not_asked(configured(None, None)) == []
