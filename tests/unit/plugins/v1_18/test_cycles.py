"""Whole cycles of the providers of 1.18 on random clusters."""

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.framework.cycle import RankOptions, check, rank
from berth.framework.profile import Profile
from berth.profiles.configuration import profiles_of, read_configuration
from harness.builders.objects import first_attempt
from harness.builders.random_clusters import events, pods, snapshots
from harness.plugins.long_runs import often

CONFIGURATION = read_configuration(
    None, provider="ClusterAutoscalerProvider", gates="EvenPodsSpread=true,ResourceLimitsPriorityFunction=true"
)


def profile() -> Profile:
    """Every plugin that the providers can have except one, with empty caches."""
    return profiles_of(CONFIGURATION)["berth"]


@given(snapshot=snapshots(), history=st.lists(events, max_size=15), waiting=st.lists(pods, min_size=1, max_size=3))
@settings(max_examples=often(10))
def test_cached_results_equal_computed_ones(snapshot, history, waiting):
    remembering = profile()
    for event in history:
        event(snapshot)
        for pod in waiting:
            attempt = first_attempt(pod)
            with_memory = rank(pod, snapshot, remembering, attempt=attempt)
            assert with_memory == rank(pod, snapshot, profile(), attempt=attempt)


@given(snapshot=snapshots(), pod=pods)
def test_a_node_is_a_candidate_when_its_check_succeeds(snapshot, pod):
    made = profile()
    snapshot.remove_pod(pod.uid)
    ranking = rank(pod, snapshot, made, attempt=first_attempt(pod), options=RankOptions(best=100))
    passing = {name for name in snapshot.node_names() if check(pod, name, snapshot, made).is_success}
    assert {candidate.node for candidate in ranking.candidates} == passing
