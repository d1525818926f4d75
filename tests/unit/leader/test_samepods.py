"""Which Leases tell of another scheduler of the same pods, and what is said before a start."""

import pytest

from berth.leader.samepods import leases_of_others, warning_about
from berth.settings.settings import LeaderElectionSettings

KUBE_SCHEDULERS = {"resource_namespace": "kube-system", "resource_name": "kube-scheduler"}
DEFAULT = "default-scheduler"


@pytest.mark.parametrize(
    ("election", "profiles", "leases"),
    [
        pytest.param({}, ["berth"], [], id="berth's own names"),
        pytest.param({}, ["berth", DEFAULT], ["kube-system/kube-scheduler"], id="kube-scheduler's profile"),
        pytest.param(KUBE_SCHEDULERS, [DEFAULT], ["kube-system/kube-scheduler"], id="a file taken over as it is"),
        pytest.param(KUBE_SCHEDULERS, ["mine"], [], id="a profile of its own: kube-scheduler has others"),
        pytest.param({"resource_name": "kube-scheduler"}, ["mine"], [], id="the same without a namespace"),
        pytest.param({"resource_name": "gpu"}, ["gpu"], ["kube-system/gpu"], id="a second scheduler's file"),
        pytest.param(
            {"resource_name": "gpu", "resource_namespace": "ml"}, ["gpu"], ["ml/gpu"], id="in a namespace of its own"
        ),
        pytest.param(
            {"resource_name": "gpu"}, ["gpu", DEFAULT], ["kube-system/kube-scheduler", "kube-system/gpu"], id="both"
        ),
    ],
)
def test_the_leases_of_schedulers_with_the_same_pods(election: dict, profiles: list[str], leases: list[str]):
    assert [str(each) for each in leases_of_others(LeaderElectionSettings(**election), profiles)] == leases


def test_kube_schedulers_profile_is_warned_about():
    sentence = warning_about(LeaderElectionSettings(), {"berth", DEFAULT})
    assert sentence is not None
    assert f"profile '{DEFAULT}'" in sentence
    assert "stop it first (docs/moving-over.md)" in sentence


def test_the_name_of_kube_schedulers_lease_is_warned_about():
    sentence = warning_about(LeaderElectionSettings(**KUBE_SCHEDULERS), {"mine"})
    assert sentence is not None
    assert "'kube-scheduler-watcher' and 'kube-scheduler-binder'" in sentence
    assert "no profile may be in both" in sentence


def test_nothing_is_said_about_names_of_ones_own():
    assert warning_about(LeaderElectionSettings(), {"berth"}) is None
