"""The time since when a pod is bound."""

from datetime import UTC, datetime

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import LONG_AGO, Pod, PodCondition, PodStatus, bound_at, unix_seconds

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def scheduled(time: str) -> PodCondition:
    return PodCondition(type="PodScheduled", status="True", last_transition_time=time)


@pytest.mark.parametrize(
    ("status", "created", "expected"),
    [
        pytest.param(
            PodStatus(conditions=[scheduled("2026-01-01T00:00:00Z")], start_time="2027-01-01T00:00:00Z"),
            None,
            T0.timestamp(),
            id="when the Binding was taken",
        ),
        pytest.param(PodStatus(start_time="2026-01-01T00:00:00Z"), None, T0.timestamp(), id="else its start"),
        pytest.param(PodStatus(), "2026-01-01T00:00:00Z", T0.timestamp(), id="else its creation"),
        pytest.param(PodStatus(), None, LONG_AGO, id="else long ago"),
    ],
)
def test_since_when_a_pod_is_bound(status, created, expected):
    assert bound_at(Pod(metadata=ObjectMeta(creation_timestamp=created), status=status)) == expected


def test_text_that_is_no_time_is_long_ago():
    assert [unix_seconds(text) for text in (None, "", "yesterday")] == [LONG_AGO] * 3
