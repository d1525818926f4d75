"""Who may lead: decisions from a Lease and a clock that the test moves."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import ObjectMeta
from berth.api.workloads import Lease, LeaseSpec
from berth.leader.heldlease import LeaseDeadline
from berth.leader.lease import (
    ElectionStep,
    LeaseObservation,
    held_record,
    is_live,
    next_step,
    observe,
    released_record,
)
from berth.settings.settings import LeaseSettings, own_identity

NOON = datetime(2026, 11, 21, 12, 0, 0, 5, tzinfo=UTC)
SETTINGS = LeaseSettings()


def _lease(
    holder: str = "a", *, renewed: str = "1", uid: str = "u1", term: str | None = None, seconds: int = 15
) -> Lease:
    annotations = {"berth/term": term} if term else None
    spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=seconds, renew_time=renewed)
    return Lease(metadata=ObjectMeta(uid=uid, annotations=annotations), spec=spec)


def _seen(*looks: tuple[float, Lease]) -> LeaseObservation:
    sighting = None
    for now, lease in looks:
        sighting = observe(sighting, lease, now)
    assert sighting is not None
    return sighting


def test_lease_that_does_not_exist_is_created():
    assert next_step(None, "me", 0) is ElectionStep.CREATE


def test_lease_that_nobody_holds_is_taken():
    assert next_step(_seen((0, _lease(""))), "me", 0) is ElectionStep.TAKE


def test_lease_read_for_the_first_time_is_live_whatever_its_times():
    sighting = _seen((100, _lease(renewed="2001-01-01T00:00:00.000000Z")))
    assert next_step(sighting, "me", 100) is ElectionStep.WAIT
    assert next_step(sighting, "me", 114.9) is ElectionStep.WAIT
    assert next_step(sighting, "me", 115) is ElectionStep.TAKE


def test_lease_that_changes_is_waited_for_anew():
    sighting = _seen((0, _lease(renewed="1")), (14, _lease(renewed="2")))
    assert next_step(sighting, "me", 28) is ElectionStep.WAIT
    assert next_step(sighting, "me", 29) is ElectionStep.TAKE


def test_lease_read_again_unchanged_keeps_its_age():
    assert _seen((0, _lease()), (10, _lease())).unchanged_since == 0


def test_annotation_written_by_somebody_else_is_no_renewal():
    assert _seen((0, _lease()), (10, _lease(term="7"))).unchanged_since == 0


def test_lease_deleted_and_made_again_is_another_one():
    assert _seen((0, _lease()), (10, _lease(uid="u2"))).unchanged_since == 10


def test_own_lease_is_taken_again_at_once():
    assert next_step(_seen((0, _lease("me"))), "me", 1) is ElectionStep.TAKE


def test_lease_without_a_duration_holds_nobody_up():
    assert not is_live(_seen((0, Lease(metadata=ObjectMeta(), spec=LeaseSpec(holder_identity="a")))), 0)


def test_taking_counts_a_transition_and_renewing_does_not():
    before = LeaseSpec(holder_identity="a", lease_transitions=4, acquire_time="then")
    taken = held_record("me", before, SETTINGS, NOON)
    assert taken == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-11-21T12:00:00.000005Z",
        "renewTime": "2026-11-21T12:00:00.000005Z",
        "leaseTransitions": 5,
    }
    renewed = held_record("a", before, SETTINGS, NOON)
    assert (renewed["acquireTime"], renewed["leaseTransitions"]) == ("then", 4)


def test_released_lease_is_nobodys_and_keeps_its_transitions():
    record = released_record(LeaseSpec(holder_identity="a", lease_transitions=4), NOON)
    assert (record["holderIdentity"], record["leaseTransitions"]) == ("", 4)


def test_identity_is_another_one_each_time():
    assert own_identity() != own_identity()


def test_leadership_ends_one_renew_deadline_after_the_last_renewal():
    tenure = LeaseDeadline(renewed_at=0, deadline_seconds=10)
    assert tenure.renewed(sent_at=4, now=5)
    assert not tenure.expired(13.9)
    assert tenure.expired(14)


def test_leadership_once_over_is_not_brought_back_by_a_late_answer():
    tenure = LeaseDeadline(renewed_at=0, deadline_seconds=10)
    assert not tenure.renewed(sent_at=9, now=11)
    assert tenure.expired(9)


@given(
    renewals=st.lists(st.tuples(st.floats(0, 12), st.floats(0, 12)), max_size=20),
    look=st.floats(0, 3),
    pause=st.floats(0, 60),
)
def test_nobody_may_begin_while_the_leader_thinks_that_it_leads(
    renewals: list[tuple[float, float]], look: float, pause: float
):
    """The leader counts from sending, the other from seeing; between both lies at least the slack."""
    now = 0.0
    tenure = LeaseDeadline(renewed_at=now, deadline_seconds=SETTINGS.renew_deadline.total_seconds())
    sighting = observe(None, _lease(renewed="0"), now + look)
    for number, (wait, answer) in enumerate(renewals, start=1):
        sent, now = now + wait, now + wait + answer
        if tenure.expired(sent):
            break
        tenure.renewed(sent, now)
        sighting = observe(sighting, _lease(renewed=str(number)), max(sent, sighting.unchanged_since) + look)
    at = now + pause
    if next_step(sighting, "other", at) is ElectionStep.TAKE:
        assert tenure.expired(at - SETTINGS.clock_slack.total_seconds())


def test_settings_as_they_are_by_default_keep_their_order():
    assert list(LeaseSettings().problems()) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        pytest.param(
            LeaseSettings(duration=timedelta(seconds=12)),
            "want less than leaderElection.leaseDuration (12s) - 2s, got 10s",
            id="no slack left",
        ),
        pytest.param(
            LeaseSettings(retry_period=timedelta(seconds=9)),
            "want more than 0s and 1.2 times it less than leaderElection.renewDeadline (10s), got 9s",
            id="one try only",
        ),
        pytest.param(
            LeaseSettings(duration=timedelta(seconds=15.5)),
            "want whole seconds, 1 or more, got 15.5s",
            id="half a second",
        ),
    ],
)
def test_settings_that_would_let_two_lead_are_refused(settings: LeaseSettings, problem: str):
    assert problem in [text for _, text in settings.problems()]


def test_all_that_is_wrong_is_said_at_once():
    settings = LeaseSettings(duration=timedelta(), renew_deadline=timedelta(), retry_period=timedelta())
    assert len(list(settings.problems())) == 3
