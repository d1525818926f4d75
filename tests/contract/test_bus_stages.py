"""The messages of each stage on both buses: their subjects, message ids and headers."""

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.stages import PAYLOAD_CHARACTERS, publish_dead_letter, publish_decision, publish_pending, publish_ranked
from berth.messages.attempts import DeadLetter, Decision, Outcome, Pending, Ranked
from berth.messages.encoding import decode

POD = Pod(metadata=ObjectMeta(name="web.0", namespace="default", uid="u"))
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": TRACE, "Nats-Msg-Id": "of the message before", "Other": "x"}


def decision(outcome: Outcome, repeat: int = 0) -> Decision:
    return Decision(
        attempt="u.1.1",
        epoch=7,
        outcome=outcome,
        profile="p.q",
        namespace="default",
        pod="web.0",
        uid="u",
        repeat=repeat,
    )


async def read(session, stream: str, subject: str):
    stored = await session.last(stream, subject)
    assert stored is not None
    return stored


async def test_a_pending_pod_is_stored_once_per_attempt(on):
    session = await on.session()
    message = Pending(attempt="u.1.1", profile="p.q", pod=POD)
    first = await publish_pending(session, message, headers=HEADERS)
    assert (await publish_pending(session, message)).duplicate
    stored = await read(session, "PENDING", "berth.pending.p=2Eq.default.web.0")
    assert stored.sequence == first.sequence
    assert decode(stored.data, Pending) == message
    assert dict(stored.headers) == {"Nats-Msg-Id": "u.1.1", "traceparent": TRACE}


async def test_of_two_rankings_of_an_attempt_the_first_counts(on):
    session = await on.session()
    await publish_ranked(session, Ranked(attempt="u.1.1", profile="p.q", pod=POD, scorer="one"))
    assert (await publish_ranked(session, Ranked(attempt="u.1.1", profile="p.q", pod=POD, scorer="two"))).duplicate
    stored = await read(session, "RANKED", "berth.ranked.p=2Eq.default.web.0")
    assert decode(stored.data, Ranked).scorer == "one"


async def test_a_decision_shows_its_outcome_in_a_header(on):
    session = await on.session()
    await publish_decision(session, decision(Outcome.BOUND), headers=HEADERS)
    stored = await read(session, "DECISIONS", "berth.decision.p=2Eq.default.web.0")
    assert dict(stored.headers) == {
        "Nats-Msg-Id": "u.1.1.7.bound",
        "Berth-Outcome": "bound",
        "traceparent": TRACE,
    }
    assert decode(stored.data, Decision) == decision(Outcome.BOUND)


async def test_each_repeat_of_waiting_is_stored(on):
    session = await on.session()
    acks = [await publish_decision(session, decision(Outcome.WAITING, repeat)) for repeat in (0, 1, 2, 2)]
    assert [ack.duplicate for ack in acks] == [False, False, False, True]


async def test_a_dead_letter_about_a_pod_is_on_the_pods_subject(on):
    session = await on.session()
    letter = DeadLetter(subject="berth.pending.p=2Eq.default.web.0", reason="garbage", service="scorer", payload="x")
    await publish_dead_letter(session, letter)
    await publish_dead_letter(session, letter)
    found = [stored async for stored in session.scan("dead", "berth.*.*.default.web.0")]
    assert [decode(stored.data, DeadLetter) for stored in found] == [letter]


async def test_any_other_dead_letter_is_on_its_services_subject_and_cut(on):
    session = await on.session()
    letter = DeadLetter(subject="elsewhere", reason="garbage", service="scorer", payload="x" * 2_000_000)
    await publish_dead_letter(session, letter)
    stored = await read(session, "dead", "berth.dead.scorer")
    assert len(decode(stored.data, DeadLetter).payload) == PAYLOAD_CHARACTERS
