"""The best nodes come in the order of their points, however many have equal ones."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.order import best_first
from harness.objects import a_node, a_pod, first_attempt


@given(totals=st.lists(st.integers(0, 6), min_size=1, max_size=20), count=st.integers(1, 12))
def test_no_node_is_left_out_that_has_more_points_than_one_of_the_best(totals, count):
    snapshot = Snapshot()
    for number in range(len(totals)):
        snapshot.set_node(a_node(f"n{number}"))
    scores = np.array(totals, dtype=np.int64)
    best = best_first(scores, Nodes(snapshot), first_attempt(a_pod()), count, fewer_pods_first=True)
    assert [totals[position] for position in best.tolist()] == sorted(totals, reverse=True)[:count]
    assert len(set(best.tolist())) == len(best)
