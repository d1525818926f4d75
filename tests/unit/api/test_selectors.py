"""Selectors match as in Kubernetes."""

import pytest

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import NodeSelector, NodeSelectorTerm, PreferredNodeTerm
from berth.api.selectors import (
    compile_label_selector,
    compile_node_labels,
    compile_node_selector,
    compile_preferred,
    is_valid_term,
    named_nodes,
)


def expression(operator: str, *values: str, key: str = "k") -> SelectorRequirement:
    return SelectorRequirement(key=key, operator=operator, values=list(values) or None)


def holds(requirement: SelectorRequirement, **labels: str) -> bool:
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[requirement])])
    return compile_node_selector(selector).matches("n0", labels)


@pytest.mark.parametrize(
    ("requirement", "value", "absent"),
    [
        pytest.param(expression("In", "a", "5"), True, False, id="In"),
        pytest.param(expression("In", "a"), False, False, id="In others"),
        pytest.param(expression("NotIn", "a"), True, True, id="NotIn others"),
        pytest.param(expression("NotIn", "5"), False, True, id="NotIn"),
        pytest.param(expression("Exists"), True, False, id="Exists"),
        pytest.param(expression("DoesNotExist"), False, True, id="DoesNotExist"),
        pytest.param(expression("Gt", "4"), True, False, id="Gt"),
        pytest.param(expression("Gt", "5"), False, False, id="Gt itself"),
        pytest.param(expression("Lt", "6"), True, False, id="Lt"),
        pytest.param(expression("Lt", "-6"), False, False, id="Lt negative"),
        pytest.param(expression("Gt", "x"), False, False, id="Gt no number"),
        pytest.param(expression("Gt", "1", "2"), False, False, id="Gt two numbers"),
        pytest.param(expression("Gt", str(-(2**70))), False, False, id="Gt beyond int64"),
        pytest.param(expression("In"), False, False, id="In nothing"),
        pytest.param(expression("NotIn"), False, False, id="NotIn nothing is refused, not true"),
        pytest.param(expression("Exists", "a"), False, False, id="Exists with a value"),
        pytest.param(expression("Like", "5"), False, False, id="no such operator"),
    ],
)
def test_expressions_on_node_labels(requirement, value, absent):
    assert (holds(requirement, k="5"), holds(requirement)) == (value, absent)


def test_comparisons_do_not_hold_for_labels_that_are_no_numbers():
    assert not holds(expression("Gt", "1"), k="abc")


def test_expressions_of_a_term_hold_together_and_one_term_is_enough():
    term = NodeSelectorTerm(
        match_expressions=[expression("Exists")], match_fields=[expression("In", "n0", key="metadata.name")]
    )
    other = NodeSelectorTerm(match_expressions=[expression("Exists", key="z")])
    selector = compile_node_selector(NodeSelector(node_selector_terms=[term, other]))
    assert selector.matches("n0", {"k": "1"})
    assert not selector.matches("n1", {"k": "1"})
    assert selector.matches("n1", {"z": "1"})


@pytest.mark.parametrize("terms", [None, [], [NodeSelectorTerm()]])
def test_no_terms_and_empty_terms_select_nothing(terms):
    assert not compile_node_selector(NodeSelector(node_selector_terms=terms)).matches("n0", {})


@pytest.mark.parametrize(
    "field",
    [
        expression("In", "n0", "n1", key="metadata.name"),
        expression("Exists", key="metadata.name"),
        expression("In", "n0", key="metadata.uid"),
    ],
)
def test_fields_are_the_name_with_one_value_or_never_hold(field):
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[field])])
    assert not compile_node_selector(selector).matches("n0", {})
    assert not is_valid_term(NodeSelectorTerm(match_fields=[field]))


def test_preferences_of_no_weight_or_without_expressions_are_left_out():
    real = NodeSelectorTerm(match_expressions=[expression("Exists")])
    terms = [PreferredNodeTerm(weight=0, preference=real), PreferredNodeTerm(weight=5, preference=NodeSelectorTerm())]
    assert compile_preferred([*terms, PreferredNodeTerm(weight=7, preference=real)])[0].weight == 7
    assert compile_preferred(terms) == compile_preferred(None) == ()


def test_a_node_selector_requires_every_label():
    assert compile_node_labels({"a": "1", "b": "2"}).matches("n0", {"a": "1", "b": "2", "c": "3"})
    assert not compile_node_labels({"a": "1", "b": "2"}).matches("n0", {"a": "1"})


def test_an_absent_selector_selects_nothing_and_an_empty_one_everything():
    assert not compile_label_selector(None).matches({"a": "1"})
    assert compile_label_selector(LabelSelector()).matches({"a": "1"})


def test_a_label_selector_requires_labels_and_expressions():
    selector = LabelSelector(match_labels={"a": "1"}, match_expressions=[expression("NotIn", "x")])
    compiled = compile_label_selector(selector)
    assert compiled.matches({"a": "1"})
    assert not compiled.matches({"a": "1", "k": "x"})
    assert not compile_label_selector(LabelSelector(match_expressions=[expression("Gt", "1")])).matches({"k": "5"})


def test_nodes_are_named_when_every_term_names_some():
    def names(*values: str) -> SelectorRequirement:
        return expression("In", *values, key="metadata.name")

    def selector(*terms: list[SelectorRequirement]) -> NodeSelector:
        return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=fields) for fields in terms])

    assert named_nodes(selector([names("n0")], [names("n1")])) == {"n0", "n1"}
    assert named_nodes(selector([names("n0"), names("n1")])) == frozenset()
    assert named_nodes(selector([names("n0")], [])) is None
    assert named_nodes(None) is None
