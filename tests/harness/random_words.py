"""The few names, labels and selectors of which random clusters are made: so few that everything meets everything."""

from __future__ import annotations

from hypothesis import strategies as st

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import NodeSelectorTerm

NODE_NAMES = [f"n{i}" for i in range(6)]
UIDS = [f"u{i}" for i in range(8)]
NODE_ZONES = ["a", "b", "1"]
HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"

some_namespace = st.sampled_from(["default", "default", "other"])
_values = st.sampled_from(["a", "b", "1", "5", "x9"])
labels = st.dictionaries(st.sampled_from(["zone", "disk", "tier", HOSTNAME, ZONE]), _values)
node_labels = st.fixed_dictionaries(
    {},
    optional={"zone": st.sampled_from(NODE_ZONES), "disk": _values, "tier": _values, HOSTNAME: _values, ZONE: _values},
) | st.fixed_dictionaries({"zone": st.sampled_from(NODE_ZONES), "disk": _values, HOSTNAME: _values, ZONE: _values})
pod_labels = st.none() | labels | st.sampled_from([{"tier": "a"}, {"tier": "b"}, {"tier": "a", "disk": "1"}])
expressions = st.builds(
    SelectorRequirement,
    key=st.sampled_from(["zone", "disk", "tier", "nowhere"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    values=st.none() | st.lists(st.sampled_from(["a", "b", "1", "3", "x9"]), max_size=2),
)
fields = st.builds(
    SelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(NODE_NAMES), min_size=1, max_size=1),
)
node_selector_terms = st.builds(
    NodeSelectorTerm,
    match_expressions=st.none() | st.lists(expressions, max_size=2),
    match_fields=st.none() | st.lists(fields, max_size=1),
)
selectors = st.sampled_from([None, *[LabelSelector(match_labels={"tier": tier}) for tier in "ab"]]) | st.builds(
    LabelSelector,
    match_labels=st.none() | labels | st.just({"tier": "a"}),
    match_expressions=st.none() | st.lists(expressions, max_size=1),
)
