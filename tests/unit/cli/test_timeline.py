"""The messages of one pod, as text and JSON."""

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.devices import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.stages import publish_dead_letter, publish_decision, publish_pending
from berth.messages.attempts import (
    Candidate,
    DeadLetter,
    Decision,
    Outcome,
    Pending,
    Preemption,
    Ranked,
    Reason,
    Victim,
)
from berth.messages.encoding import encode
from berth_cli.commands.run import MessageCounts
from berth_cli.commands.trace import stored_messages
from berth_cli.options import parse_pod
from berth_cli.pods.timeline import (
    TracedMessage,
    as_json,
    describe,
    last_ranking,
    node_of,
    stage_table,
    subject_table,
    with_recalled,
)
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed

POD = Pod(metadata=ObjectMeta(name="web-0", namespace="default", uid="u"))
PENDING = encode(Pending(attempt="u.1.1", profile="berth", pod=POD))
CANDIDATES = [Candidate(node="node-7", total=93, scores={"NodeResourcesFit": 93}, pods=4)]
RANKED = encode(
    Ranked(
        attempt="u.1.1",
        profile="berth",
        pod=POD,
        scorer="host_08d73f09-8861-42e0-81fd-655f5624f11e_scorer-2",
        evaluated=100,
        feasible=98,
        candidates=CANDIDATES,
    )
)


def decided(outcome=Outcome.BOUND, uid="u", node="node-7", **more):
    return Decision(
        attempt=f"{uid}.1.1",
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod="web-0",
        uid=uid,
        node=node,
        **more,
    )


def decision(outcome=Outcome.BOUND, uid="u", node="node-7"):
    return encode(decided(outcome, uid, node))


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC)


def traced(stage, data, at):
    return TracedMessage(at=at, subject=f"berth.{stage}.berth.default.web-0", data=data)


MESSAGES = [traced("pending", PENDING, 1.0), traced("ranked", RANKED, 1.002), traced("decision", decision(), 1.0105)]


def test_messages_have_the_time_since_the_first():
    assert printed(subject_table(MESSAGES), width=160) == [
        "+    0.0 ms  berth.pending.berth.default.web-0   attempt u.1.1 waits for a node",
        (
            "+    2.0 ms  berth.ranked.berth.default.web-0    scorer-2: 98 of 100 nodes are possible, "
            "best node-7 with 93"
        ),
        "+   10.5 ms  berth.decision.berth.default.web-0  bound node-7",
    ]


def test_a_nominated_node_that_was_tried_alone_is_not_called_all_nodes():
    known = msgspec.json.decode(RANKED, type=Ranked)
    alone = msgspec.structs.replace(known, nominated_first=True, feasible=1, evaluated=1, nodes=200)
    words = "the nominated node-7 is possible and was tried first, without the 199 others"
    assert describe(traced("ranked", encode(alone), 1.0)).plain == f"scorer-2: {words}"


def test_nodes_that_were_not_looked_at_are_counted():
    known = msgspec.json.decode(RANKED, type=Ranked)
    part = msgspec.structs.replace(known, nodes=5000)
    words = "98 of 100 nodes are possible, enough without the 4900 others, best node-7 with 93"
    assert describe(traced("ranked", encode(part), 1.0)).plain == f"scorer-2: {words}"


def test_a_ranking_restored_from_the_decision_has_the_same_words():
    explained = decided(
        ranked_at=moment(0.002), evaluated=1, feasible=1, nodes=200, nominated_first=True, candidates=CANDIDATES
    )
    (ranked, _) = with_recalled([traced("decision", encode(explained), 0.0105)])
    assert "tried first, without the 199 others" in describe(ranked).plain


def test_a_bound_pod_has_the_estimate_of_its_node_if_pods_came_there():
    came = [msgspec.structs.replace(CANDIDATES[0], loss=1.5, newcomers=2)]
    message = traced("decision", encode(decided(candidates=came)), 1.0)
    assert describe(message).plain == "bound node-7 with 90 (93 - 1.5 x 2 newcomers)"


def test_a_trace_has_the_time_since_the_message_before():
    times = [line.split()[1:4] for line in printed(stage_table(MESSAGES))]
    assert times[1][:2] == ["pending", "attempt"]
    assert times[2:] == [["+2.0", "ms", "ranked"], ["+8.5", "ms", "decision"]]


def test_a_narrow_terminal_wraps_only_descriptions():
    lines = printed(stage_table(MESSAGES), width=60)
    assert all(len(line) <= 60 for line in lines)
    assert len(lines) > len(printed(stage_table(MESSAGES), width=160))


def test_a_ranking_and_a_decision_have_the_devices():
    given = AllocationResult(
        devices=DeviceAllocationResult(
            results=[DeviceRequestAllocationResult(request="r", driver="d", pool="node-7", device="gpu-3")]
        )
    )
    known = msgspec.json.decode(RANKED, type=Ranked)
    ranked = describe(traced("ranked", encode(msgspec.structs.replace(known, devices={"c": given})), 1.0))
    assert ranked.plain.endswith("best node-7 with 93, devices d/node-7/gpu-3")
    assert describe(traced("decision", encode(decided(devices={"c": given})), 2.0)).plain == (
        "bound node-7, devices d/node-7/gpu-3"
    )


def test_deleted_messages_are_restored_from_the_decision():
    explained = decided(
        asked_at=moment(0),
        ranked_at=moment(0.002),
        evaluated=100,
        feasible=98,
        candidates=CANDIDATES,
        scorer="scorer-2",
    )
    alone = [traced("decision", encode(explained), 0.0105)]
    messages = with_recalled(alone)
    assert [(one.stage, one.at, one.recalled is not None) for one in messages] == [
        ("pending", 0.0, True),
        ("ranked", 0.002, True),
        ("decision", 0.0105, False),
    ]
    assert describe(messages[1]).plain == "scorer-2: 98 of 100 nodes are possible, best node-7 with 93"


def test_a_stored_message_is_not_restored_as_well():
    messages = [
        *MESSAGES[:2],
        traced("decision", encode(decided(asked_at=moment(1), ranked_at=moment(1.002))), 1.0105),
    ]
    assert with_recalled(messages) == messages


def test_json_has_the_message_unless_it_is_gone():
    gone = with_recalled([traced("decision", encode(decided(asked_at=moment(1))), 2)])[0]
    first, second = as_json(MESSAGES[1], None), as_json(gone, None)
    assert (first["stage"], first["recalled"], first["message"].feasible) == ("ranked", False, 98)
    assert (second["stage"], second["recalled"], second["message"]) == ("pending", True, None)


def test_the_nodes_are_those_of_the_last_ranking():
    found = last_ranking(MESSAGES)
    assert found is not None
    assert found.candidates == CANDIDATES
    assert last_ranking(MESSAGES[:1]) is None


def test_the_node_is_that_of_the_last_binding():
    assert node_of(MESSAGES) == "node-7"
    assert not node_of([traced("decision", decision(Outcome.CONFLICT), 1)])


def test_an_unreadable_message_is_printed_as_it_is():
    assert describe(traced("ranked", b"junk", 0)).plain == "cannot be read: b'junk'"


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        (Reason.NO_CANDIDATE, "", "none of the best nodes was feasible any more at binding"),
        (
            Reason.VOLUMES,
            "pv 'a' is b's",
            "a volume or a claim of the pod changed after the ranking: pv 'a' is b's",
        ),
        (Reason.CHANGED, "the same in the binder's words", "it was changed or gated after the ranking"),
    ],
)
def test_a_conflict_has_the_text_of_its_reason(reason: Reason, message: str, sentence: str):
    data = encode(decided(Outcome.CONFLICT, node="", reason=reason, message=message))
    assert describe(traced("decision", data, 0)).plain == f"conflict (ranked again): {sentence}"


def test_a_preemption_names_its_victims():
    victims = [Victim(uid="v", namespace="batch", name="job-1"), Victim(uid="w", namespace="batch", name="job-2")]
    made = decided(Outcome.PREEMPTING, preemption=Preemption(node="node-7", victims=victims), message="0/1 nodes")
    assert (
        describe(traced("decision", encode(made), 0)).plain
        == "preempting node-7 (evicted batch/job-1, batch/job-2) 0/1 nodes"
    )


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/]"])
def test_markup_is_printed_as_text(text):
    data = encode(msgspec.structs.replace(decided(Outcome.ERROR, node=""), message=text))
    assert printed(subject_table([traced("decision", data, 0)]))[0].endswith(f"error {text}")


async def test_stored_messages_of_a_pod_are_in_order_of_time():
    session = await MemoryBus().connect(name="test")
    await session.apply()
    await publish_decision(session, decided(Outcome.CONFLICT, node=""))
    await publish_pending(session, Pending(attempt="u.1.2", profile="berth", pod=POD))
    letter = DeadLetter(subject="berth.pending.berth.default.web-0", reason="broken", service="scorer")
    await publish_dead_letter(session, letter)
    other = Pod(metadata=ObjectMeta(name="web-00", namespace="default", uid="v"))
    await publish_pending(session, Pending(attempt="v.1.1", profile="berth", pod=other))
    found = [one for one, _ in await stored_messages(session, [parse_pod("web-0")])]
    assert [describe(one).plain for one in found] == [
        "conflict (ranked again)",
        "attempt u.1.2 waits for a node",
        "dead letter of the scorer: broken",
    ]


def test_a_bound_pod_is_counted_once():
    counts = MessageCounts()
    for data in (decision(), decision(), decision(uid="v", node="node-8"), decision(Outcome.CONFLICT, uid="w")):
        counts.add("berth.decision.berth.default.web-0", data)
    counts.add("berth.ranked.berth.default.web-0", RANKED)
    counts.add("berth.ranked.berth.default.web-0", b"junk")
    assert (len(counts.bound), counts.outcomes[Outcome.BOUND], counts.outcomes[Outcome.CONFLICT]) == (2, 3, 1)
    assert (sum(counts.scorers.values()), counts.unreadable, counts.spread()) == (1, 1, "1..1")
