"""Placed pods that plugins cannot tell apart: one namespace, one set of labels, the same pod affinities."""

from __future__ import annotations

from collections.abc import Mapping

from berth.api.meta import ObjectMeta
from berth.api.pod import Affinity
from berth.api.podterms import compile_pod_terms
from berth.cluster.tally import Tally

LabelItems = tuple[tuple[str, str], ...]
"""Labels in order."""
GroupKey = tuple[str, LabelItems, bool, bytes]


class PodGroup:
    """Placed pods of one namespace, one set of labels and the same pod affinities.

    ``counts``: row to number of pods, only rows that have any. ``terminating`` pods make a group of their own, since
    spread does not count them. ``terms`` are what the affinities compile to, ``tallies`` what the pods are counted in,
    and how often each. ``last`` is the metadata of the pod that was placed last.
    """

    __slots__ = ("affinity", "counts", "key", "labels", "last", "namespace", "tallies", "terminating", "terms")

    def __init__(self, key: GroupKey, affinity: Affinity | None) -> None:
        self.key = key
        self.namespace, labels, self.terminating, _ = key
        self.labels = dict(labels)
        self.affinity = affinity
        self.terms = compile_pod_terms(affinity, self.namespace)
        self.counts: dict[int, int] = {}
        self.last: ObjectMeta | None = None
        self.tallies: list[tuple[Tally, int]] = []


def label_items(labels: Mapping[str, str] | None) -> LabelItems:
    """Labels in order: equal for equal labels, and good as a key."""
    return tuple(sorted((labels or {}).items()))
