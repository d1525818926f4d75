"""What the mirror holds of a pod that is being evicted."""

from __future__ import annotations

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition, PodSpec, PodStatus
from berth_watcher.mirror import trimmed

EVICTED = PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler")
SCHEDULED = PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:05Z")


def bound(*conditions: PodCondition, deleted: str | None = None) -> Pod:
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", deletion_timestamp=deleted),
        spec=PodSpec(node_name="n1"),
        status=PodStatus(phase="Running", start_time="2026-01-01T00:00:09Z", conditions=[SCHEDULED, *conditions]),
    )


def test_a_pod_that_a_scheduler_has_evicted_says_so_while_it_goes():
    assert trimmed(bound(EVICTED, deleted="2026-01-01T01:00:00Z")).status.conditions == [EVICTED]


def test_other_conditions_are_nobodys_business_and_write_nothing():
    other = msgspec.structs.replace(EVICTED, reason="DeletionByTaintManager")
    for pod in (bound(), bound(EVICTED), bound(other, deleted="2026-01-01T01:00:00Z")):
        assert trimmed(pod).status.conditions is None


def test_a_pods_age_is_that_of_its_binding():
    assert trimmed(bound()).status.start_time == "2026-01-01T00:00:05Z"
