"""Digests by which services find out in which part their configurations differ."""

import pytest

from berth.api.config.encode import digests
from berth.api.config.load import load
from berth.api.config.presets import DEFAULT_NAME
from berth.plugins.registry import BUILT_IN
from berth.settings.presets import preset

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
TWO = HEAD + "profiles: [{schedulerName: a}, {schedulerName: b}]\n"


def digests_of(text):
    return digests(load(text, known=BUILT_IN, preset=preset(DEFAULT_NAME).all_plugins({})))


def test_what_means_the_same_differs_only_in_the_digest_of_the_file():
    one, other = digests_of(TWO), digests_of(TWO + "percentageOfNodesToScore: 0\n")
    assert one.config != other.config
    assert (one.profiles, one.settings) == (other.profiles, other.settings)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param("percentageOfNodesToScore: 50", id="a percentage"),
        pytest.param("plugins: {multiPoint: {enabled: [{name: NodeResourcesFit, weight: 7}]}}", id="a weight"),
        pytest.param("plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}", id="a plugin less"),
        pytest.param("pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 7}}]", id="an argument"),
    ],
)
def test_a_change_of_one_profile_changes_its_digest_only(profile):
    one, other = (
        digests_of(TWO),
        digests_of(HEAD + f"profiles: [{{schedulerName: a}}, {{schedulerName: b, {profile}}}]"),
    )
    assert one.profiles["a"] == other.profiles["a"]
    assert one.profiles["b"] != other.profiles["b"]
    assert one.settings == other.settings


def test_settings_outside_the_profiles_have_a_digest_of_their_own():
    one, other = digests_of(TWO), digests_of(TWO + "podMaxBackoffSeconds: 20\n")
    assert one.profiles == other.profiles
    assert one.settings != other.settings


def test_the_connection_may_differ_from_machine_to_machine():
    one, other = digests_of(TWO), digests_of(TWO + "clientConnection: {kubeconfig: /etc/other}\n")
    assert one.settings == other.settings
