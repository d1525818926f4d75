"""The order of the best nodes, however many have equal totals."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.scoring import best_first, seeded_hashes, unseeded_hashes
from harness.builders.objects import a_node, a_pod, first_attempt


@given(
    nodes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=24),
    left_out=st.sets(st.integers(0, 23)),
    count=st.integers(1, 12),
    fewer=st.booleans(),
)
def test_best_first_by_points_then_pods_then_hash(nodes, left_out, count, fewer):
    snapshot = Snapshot()
    for number, (_, pods) in enumerate(nodes):
        snapshot.set_node(a_node(f"n{number}"))
        for each in range(pods):
            snapshot.place(a_pod(f"p{number}-{each}"), f"n{number}")
    rows = [row for row in range(len(nodes)) if row not in left_out] or [0]
    view = Nodes(snapshot, np.array(rows)) if left_out else Nodes(snapshot)
    attempt = first_attempt(a_pod())
    chance = seeded_hashes(snapshot.columns.tie_hash, np.uint64(hash_of(str(attempt))))
    wanted = sorted(rows, key=lambda row: (-nodes[row][0], fewer * nodes[row][1], chance[row]))[:count]
    totals = np.array([nodes[row][0] for row in rows], dtype=np.int64)
    best = best_first(totals, view, attempt, count, fewer_pods_first=fewer)
    assert [rows[position] for position in best.tolist()] == wanted


def test_hashes_are_found_by_what_they_are_with_a_seed():
    wanted = np.arange(1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for seed in (np.uint64(0), np.uint64(2**64 - 1), np.uint64(hash_of("a pod"))):
        assert seeded_hashes(unseeded_hashes(wanted, seed), seed).tolist() == wanted.tolist()
