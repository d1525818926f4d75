"""The dry run that the binder hands to PostFilter plugins."""

from __future__ import annotations

import numpy as np

from berth.cluster.nodes import RemovedPods
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.interface import FilterPlugin, Nomination, PostFilterPlugin, PostFilterResult, Reads
from berth.framework.preemption import best_eviction, confirm
from berth.framework.status import SUCCESS, Diagnosis, Status
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import profile_of


class Labelled(FilterPlugin):
    """Rejects nodes without the label ``ready``; row-local, so its verdicts are cached."""

    name = "Labelled"
    reads = Reads.NODE

    def filter(self, state, pod, node):
        return SUCCESS if "ready" in (node.node.metadata.labels or {}) else Status.unschedulable("not ready")


class Confirming(PostFilterPlugin):
    """Confirms a node unless the dry run says that it is certainly rejected."""

    name = "Confirming"

    def post_filter(self, state, pod, snapshot, diagnosis, dry_run):
        return PostFilterResult()

    def confirm(self, pod, node, dry_run):
        none = np.zeros(1)
        removed = RemovedPods(pods=none, requested=lambda _: none, count=lambda _: none)
        rejected, _ = dry_run.rejected_without(np.array([dry_run.snapshot.rows.of(node)]), removed, Diagnosis(1))
        return None if rejected.any() else Nomination(node)


def test_node_that_fits_since_the_last_cycle_of_the_class_is_not_rejected():
    snapshot, profile, pod = Snapshot(), profile_of(Labelled(), Confirming()), a_pod()
    snapshot.set_node(a_node("n"))
    assert rank(pod, snapshot, profile, attempt=first_attempt(pod)).message == "0/1 nodes are available: 1 not ready."

    snapshot.set_node(a_node("n", labels={"ready": ""}))

    assert confirm(pod, "n", snapshot, profile) == Nomination("n")


def test_plugin_without_a_search_of_its_own_confirms_the_proposed_node():
    snapshot, profile = Snapshot(), profile_of(Labelled(), Confirming())
    snapshot.set_node(a_node("n", labels={"ready": ""}))
    snapshot.set_node(a_node("m"))
    assert best_eviction(a_pod(), "n", snapshot, profile) == Nomination("n")
    assert best_eviction(a_pod(), "m", snapshot, profile) is None


def test_node_that_was_added_since_the_last_cycle_of_the_class_is_not_rejected():
    snapshot, profile, pod = Snapshot(), profile_of(Labelled(), Confirming()), a_pod()
    snapshot.set_node(a_node("first"))
    rank(pod, snapshot, profile, attempt=first_attempt(pod))

    for number in range(snapshot.columns.capacity):
        snapshot.set_node(a_node(f"n{number}", labels={"ready": ""}))

    assert confirm(pod, f"n{number}", snapshot, profile) == Nomination(f"n{number}")
