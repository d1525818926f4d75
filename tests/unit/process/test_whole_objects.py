"""Which objects the watcher keeps whole: those that an extender is sent, and no others."""

import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.kinds import NODE, POD, SERVICE
from berth.leader.clients import as_extenders_read
from harness.builders.objects import a_node, a_pod


def kept(*extenders: ExtenderConfiguration) -> set[str]:
    objects = {NODE: a_node("n1"), POD: a_pod("waits"), SERVICE: None}
    kinds = {kind: as_extenders_read(kind, extenders) for kind in objects}
    return {kind.name for kind, seen in kinds.items() if seen.keeps_whole and seen.keeps_whole(objects[kind])}


def one(**fields: object) -> ExtenderConfiguration:
    return ExtenderConfiguration(**{"url_prefix": "", "name": "", **fields})


@pytest.mark.parametrize(
    ("extenders", "names"),
    [
        pytest.param([], set(), id="no extender"),
        pytest.param([one(bind_verb="b")], set(), id="it binds only, which takes names"),
        pytest.param([one(filter_verb="f", node_cache_capable=True)], {"pod"}, id="it knows the nodes"),
        pytest.param([one(prioritize_verb="p")], {"pod", "node"}, id="it does not"),
        pytest.param([one(preempt_verb="p")], set(), id="the binder asks it about evictions only"),
    ],
)
def test_pods_that_wait_and_nodes_for_those_that_do_not_know_them(extenders, names):
    assert kept(*extenders) == names


def test_pods_on_a_node_are_sent_to_nobody():
    seen = as_extenders_read(POD, [one(filter_verb="f")])
    assert seen.keeps_whole is not None
    assert not seen.keeps_whole(a_pod("placed", node="n1"))
