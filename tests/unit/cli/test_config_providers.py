"""`berth config providers`, and errors in the flags for a provider and its gates."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.lifecycle.start import start
from berth.profiles.configuration import read_configuration
from berth.settings.presets import presets
from berth_cli.app import app_with

FILE = Path(__file__).parents[2] / "data" / "articles" / "node-score-label.yaml"
DEPRECATED = (
    "--algorithm-provider: DEPRECATED: the scheduling algorithm provider to use, "
    "one of: ClusterAutoscalerProvider | DefaultProvider"
)


def typed(*words: object):
    return CliRunner().invoke(app_with(), [str(word) for word in words])


def names(refs: list[dict]) -> list[str]:
    return [ref["name"] for ref in refs]


def test_every_name_that_the_flag_takes_is_listed_before_and_after_gates():
    lists = json.loads(typed("config", "providers", "-o", "json").stdout)
    assert list(lists) == list(presets())
    provider = lists["ClusterAutoscalerProvider"]
    assert provider["release"] == "1.18"
    assert provider["gates"] == {"EvenPodsSpread": True, "ResourceLimitsPriorityFunction": False}
    assert {"name": "NodeResourcesMostAllocated", "weight": 1} in provider["beforeGates"]["score"]
    assert list(provider["beforeGates"]) == ["queueSort", "preFilter", "filter", "preScore", "score", "bind"]
    spread = [
        point
        for point in provider["afterGates"]
        if names(provider["afterGates"][point]) == [*names(provider["beforeGates"][point]), "PodTopologySpread"]
    ]
    assert spread == ["preFilter", "filter", "preScore", "score"]
    assert provider["beside"] == {
        "preEnqueue": [{"name": "SchedulingGates"}],
        "preFilter": [{"name": "DynamicResources"}],
        "filter": [{"name": "DynamicResources"}],
        "postFilter": [{"name": "DefaultPreemption"}],
        "reserve": [{"name": "VolumeBinding"}, {"name": "DynamicResources"}],
        "preBind": [{"name": "VolumeBinding"}, {"name": "DynamicResources"}],
    }


def test_lists_without_gates_are_the_same_before_and_after():
    lists = json.loads(typed("config", "providers", "-o", "json").stdout)
    assert lists["default"]["release"] == "1.36"
    assert {"name": "TaintToleration", "weight": 3} in lists["default"]["afterGates"]["score"]
    assert [name for name, each in lists.items() if each["beforeGates"] == each["afterGates"]] == [
        name for name, preset in presets().items() if not preset.gates
    ]


def test_gates_can_be_tried():
    gates = "EvenPodsSpread=false,ResourceLimitsPriorityFunction=true"
    provider = json.loads(typed("config", "providers", "-o", "json", "--feature-gates", gates).stdout)[
        "DefaultProvider"
    ]
    assert provider["gates"] == {"EvenPodsSpread": False, "ResourceLimitsPriorityFunction": True}
    assert provider["beforeGates"]["filter"] == provider["afterGates"]["filter"]
    assert provider["afterGates"]["score"][-1] == {"name": "NodeResourceLimits", "weight": 1}


def test_the_table_has_a_plugin_a_line():
    lines = [line.split() for line in typed("config", "providers").stdout.splitlines()]
    assert ["DefaultProvider", "(1.18;", "EvenPodsSpread=true,", "ResourceLimitsPriorityFunction=false)"] in lines
    assert ["preFilter", "NodeResourcesFit"] in lines
    assert ["NodePreferAvoidPods", "10000"] in lines
    assert ["PodTopologySpread", "1", "gates"] in lines
    assert ["preEnqueue", "SchedulingGates", "berth"] in lines


def test_one_preset_can_be_named():
    assert list(json.loads(typed("config", "providers", "DefaultProvider", "-o", "json").stdout)) == ["DefaultProvider"]
    done = typed("config", "providers", "Default")
    assert (done.exit_code, done.stderr) == (
        2,
        f"berth: algorithmProvider: want one of {', '.join(presets())}, got 'Default'\n",
    )


def test_an_unknown_gate_lists_the_known_ones():
    done = typed("config", "providers", "--feature-gates", "AllAlpha=true")
    assert (done.exit_code, done.stderr) == (
        2,
        "berth: featureGates: want EvenPodsSpread or ResourceLimitsPriorityFunction, got 'AllAlpha'\n",
    )


@pytest.mark.parametrize("provider", ["DefaultProvider", "ClusterAutoscalerProvider"])
def test_a_provider_of_1_18_has_one_deprecation_warning(provider):
    done = typed("config", "check", FILE, "--algorithm-provider", provider, "--feature-gates", "EvenPodsSpread=false")
    assert (done.exit_code, done.stderr) == (0, f"berth: {DEPRECATED}\n")


def test_another_preset_has_no_warning():
    assert not typed("config", "check", FILE, "--algorithm-provider=FromScratch").stderr


def test_the_shown_file_of_a_provider_has_its_plugins_and_flags():
    done = typed("config", "show", FILE, "--algorithm-provider=DefaultProvider", "-o", "json")
    (profile,) = json.loads(done.stdout)["profiles"]
    assert "EBSLimits" in names(profile["plugins"]["filter"]["enabled"])
    assert done.stderr.splitlines()[-1] == (
        "berth: these plugins are of an older release: a file with them is read with "
        "--algorithm-provider=DefaultProvider"
    )


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("up",), id="up"),
        pytest.param(("simulate", "--cluster", FILE, "--pods", FILE), id="simulate"),
        pytest.param(("why", "default/web"), id="why"),
        pytest.param(("config", "check", FILE), id="config check"),
        pytest.param(("config", "show", FILE), id="config show"),
    ],
)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--algorithm-provider=Default",), f"algorithmProvider: want one of {', '.join(presets())}, got 'Default'"),
        (
            ("--algorithm-provider=DefaultProvider", "--feature-gates=Even=true"),
            "featureGates: want EvenPodsSpread or ResourceLimitsPriorityFunction, got 'Even'",
        ),
    ],
)
def test_unknown_names_end_every_command_with_the_known_ones(words, flags, sentence):
    done = typed(*words, *flags)
    assert (done.exit_code, done.stderr) == (2, f"berth: {sentence}\n")


def test_a_service_with_unknown_gates_does_not_start(capsys):
    async def serve(*_: object) -> None:
        raise AssertionError("started")

    flags = {"algorithm_provider": "DefaultProvider", "feature_gates": "EvenPodsSpread"}
    assert start(flags, name="scorer", read=read_configuration, serve=serve, environment={}) == 2
    assert capsys.readouterr().err == (
        "berth-scorer: featureGates: want EvenPodsSpread=true or EvenPodsSpread=false, got 'EvenPodsSpread'\n"
    )
