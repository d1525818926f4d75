import pytest

from berth_sim.apiserver.kinds import EVENTS, NODES, PODS
from berth_sim.apiserver.listing import parse, parse_labels
from berth_sim.apiserver.status import StatusError

WEB = {
    "metadata": {"name": "web", "namespace": "default", "labels": {"tier": "front", "empty": ""}},
    "spec": {"nodeName": "node-1"},
    "status": {},
}


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("", True),
        ("tier=front", True),
        ("tier == front", True),
        ("tier=back", False),
        ("tier!=back", True),
        ("other!=back", True),
        ("tier in (back, front)", True),
        ("tier in (back)", False),
        ("tier notin (back,front)", False),
        ("other notin (back)", True),
        ("tier", True),
        ("!tier", False),
        ("! other", True),
        ("other", False),
        ("empty=", True),
        ("other=", False),
        ("empty in ()", True),
        ("tier in (a,b),tier", False),
        ("tier in (front,b),!other,empty=", True),
        ("example.com/a-b_c.d=e", False),
    ],
)
def test_label_selector_matches_an_object_or_not(text: str, *, is_meant: bool):
    assert parse(PODS, text, "").matches(WEB) is is_meant


@pytest.mark.parametrize("text", ["a in b", "a b", "a=b=c", "a in (b", "=b", "a notin", "!!a"])
def test_invalid_label_selector_is_a_bad_request(text: str):
    with pytest.raises(StatusError, match="unable to parse requirement"):
        parse_labels(text)


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("metadata.name=web", True),
        ("metadata.namespace!=default", False),
        ("spec.nodeName=node-1", True),
        ("spec.nodeName==node-1,status.phase=", True),
        ("spec.nodeName=", False),
        ("status.phase!=Running", True),
        ("status.nominatedNodeName=", True),
    ],
)
def test_field_selector_matches_an_object_or_not(text: str, *, is_meant: bool):
    assert parse(PODS, "", text).matches(WEB) is is_meant


def test_node_without_the_field_is_not_cordoned():
    selector = parse(NODES, "", "spec.unschedulable=false")
    assert selector.matches({"metadata": {"name": "n"}, "spec": {}})
    assert not selector.matches({"metadata": {"name": "n"}, "spec": {"unschedulable": True}})


def test_event_is_selected_by_its_object():
    event = {"metadata": {"name": "e"}, "involvedObject": {"uid": "u-1"}}
    assert parse(EVENTS, "", "involvedObject.uid=u-1").matches(event)
    assert not parse(EVENTS, "", "involvedObject.uid=u-2").matches(event)


@pytest.mark.parametrize(
    ("text", "message"),
    [("spec.colour=red", "field label not supported: spec.colour"), ("spec.nodeName", "invalid selector")],
)
def test_unsupported_field_selector_is_a_bad_request(text: str, message: str):
    with pytest.raises(StatusError, match=message) as caught:
        parse(PODS, "", text)
    assert caught.value.code == 400
