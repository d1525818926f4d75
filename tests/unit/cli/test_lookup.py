"""Preemptions, read from the Decisions on the bus."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.api.podgroups import GROUP_LABEL
from berth.bus.interface import Session
from berth.bus.stages import publish_decision, publish_pending
from berth.messages.attempts import Decision, Outcome, Pending, Preemption, Victim
from berth.messages.mirror import MirrorEntry, encode_entry
from berth_cli.options import NotFoundError, parse_pod
from berth_cli.pods.explain import decision_lines
from berth_cli.pods.finding import config_in_use
from berth_cli.pods.lookup import last_decision
from berth_cli.services import what_stops
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed


def decision(pod: str, outcome: Outcome, n: int = 1, **more: object) -> Decision:
    return Decision(
        config="c1",
        attempt=f"uid-{pod}.1.{n}",
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=pod,
        uid=f"uid-{pod}",
        **more,
    )


def evicting(*victims: str) -> Preemption:
    named = [Victim(uid=f"uid-{name}", namespace="default", name=name) for name in victims]
    return Preemption(node="node-1", victims=named)


@pytest.fixture
async def session() -> Session:
    """A bus on which low-1 and low-2 were bound, then evicted for vip, which was bound; other stayed."""
    session = await MemoryBus().connect(name="test")
    await session.apply()
    for name in ("low-1", "low-2", "other"):
        await publish_decision(session, decision(name, Outcome.BOUND, node="node-1"))
        await show(session, name)
    for n, victims in ((1, ("low-1", "low-2")), (2, ())):
        made = decision("vip", Outcome.PREEMPTING, n, node="node-1", preemption=evicting(*victims))
        await publish_decision(session, made)
    await publish_decision(session, decision("vip", Outcome.BOUND, 3, node="node-1"))
    return session


async def show(session: Session, name: str, **metadata: Any) -> None:
    """The mirror has the pod on its node."""
    pod = Pod(metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", **metadata))
    entry = MirrorEntry(term=1, object=msgspec.Raw(msgspec.json.encode(pod)))
    await session.put("cluster", f"pod.uid-{name}", encode_entry(entry))


async def test_a_bound_pod_has_its_preemption(session):
    made = (await last_decision(session, parse_pod("vip"))).preemption
    assert made is not None
    assert [victim.name for victim in made.preemption.victims] == ["low-1", "low-2"]


async def test_a_deleted_victim_was_evicted(session):
    await session.purge("cluster", "pod.uid-low-1")
    evicted = (await last_decision(session, parse_pod("low-1"))).evicted_for
    assert evicted is not None
    assert (str(evicted.pod), evicted.preemption.node) == ("default/vip", "node-1")


async def test_a_terminating_victim_was_evicted(session):
    await show(session, "low-2", deletion_timestamp="2026-01-01T00:00:00Z")
    assert (await last_decision(session, parse_pod("low-2"))).evicted_for is not None


async def test_a_pod_on_its_node_or_deleted_by_others_was_not_evicted(session):
    assert (await last_decision(session, parse_pod("other"))).evicted_for is None
    await session.purge("cluster", "pod.uid-other")
    assert (await last_decision(session, parse_pod("other"))).evicted_for is None


async def test_a_placed_pod_names_its_group(session):
    assert (await last_decision(session, parse_pod("other"))).group is None
    await show(session, "other", labels={GROUP_LABEL: "train"})
    explained = await last_decision(session, parse_pod("other"))
    assert "  `berth why --group default/train` shows its group" in printed(*decision_lines(explained))


async def test_the_configuration_in_use_is_of_the_last_decision(session):
    def pod_for(scheduler: str) -> Pod:
        return Pod(metadata=ObjectMeta(name="any", namespace="default"), spec=PodSpec(scheduler_name=scheduler))

    await publish_decision(session, msgspec.structs.replace(decision("new", Outcome.BOUND), config="c2"))
    assert await config_in_use(session, pod_for("berth")) == "c2"
    assert await config_in_use(session, pod_for("another")) == ""


@pytest.mark.parametrize(
    ("running", "sentence"),
    [
        pytest.param(("watcher", "scorer", "binder"), "", id="all run"),
        pytest.param(("watcher", "binder"), "no scorer answers: nothing is ranked", id="no scorer"),
        pytest.param(("watcher", "scorer"), "no binder answers: nothing is bound", id="no binder"),
    ],
)
async def test_what_stops_every_pod_names_the_missing_service(running, sentence):
    session = await MemoryBus().connect(name="test")
    await session.apply()
    for service in running:
        leads = {} if service == "scorer" else {"leading": {"number": 1, "seconds": 1.0}}
        await session.register(f"berth-{service}", identity=service, version="1", stats=lambda leads=leads: leads)
    assert await what_stops(session) == sentence


async def test_a_pod_that_waits_to_be_ranked_is_told_that_no_scorer_runs():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    pod = Pod(metadata=ObjectMeta(name="web-0", namespace="default", uid="uid-web-0"), spec=PodSpec())
    await publish_pending(session, Pending(attempt="uid-web-0.1.1", profile="berth", pod=pod))
    with pytest.raises(NotFoundError, match=r"waits to be ranked, published .* ago: .*no scorer answers"):
        await last_decision(session, parse_pod("web-0"))
