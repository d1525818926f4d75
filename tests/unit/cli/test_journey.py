"""One pod's messages, told to a person."""

from berth.api.messages import Candidate, Decision, Outcome, Pending, Ranked, encode
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.cli.journey import Step, candidates_of, lines
from berth.cli.tally import Tally

POD = Pod(metadata=ObjectMeta(name="web-0", namespace="default", uid="u"))
PENDING = encode(Pending(attempt="u.1.1", profile="berth", pod=POD))
CANDIDATES = [Candidate(node="node-7", total=93, scores={"NodeResourcesFit": 93}, pods=4)]
RANKED = encode(
    Ranked(
        attempt="u.1.1",
        profile="berth",
        pod=POD,
        scorer="host_1_scorer-2",
        evaluated=100,
        feasible=98,
        candidates=CANDIDATES,
    )
)


def decision(outcome=Outcome.BOUND, uid="u", node="node-7"):
    return encode(
        Decision(
            attempt=f"{uid}.1.1",
            epoch=1,
            outcome=outcome,
            profile="berth",
            namespace="default",
            pod="web-0",
            uid=uid,
            node=node,
        )
    )


def step(stage, data, at):
    return Step(at=at, subject=f"berth.{stage}.berth.default.web-0", data=data)


STEPS = [step("pending", PENDING, 1.0), step("ranked", RANKED, 1.002), step("decision", decision(), 1.0105)]


def test_the_messages_are_told_in_order_with_the_times_between_them():
    assert list(lines(STEPS)) == [
        "+    0.0 ms  berth.pending.berth.default.web-0  attempt u.1.1 waits for a node",
        (
            "+    2.0 ms  berth.ranked.berth.default.web-0  host_1_scorer-2: 98 of 100 nodes are possible, "
            "best node-7 with 93"
        ),
        "+   10.5 ms  berth.decision.berth.default.web-0  bound node-7",
    ]


def test_the_nodes_are_those_of_the_last_ranking():
    assert candidates_of(STEPS) == CANDIDATES
    assert candidates_of(STEPS[:1]) == []


def test_what_cannot_be_read_is_shown_as_it_is():
    assert next(iter(lines([step("ranked", b"junk", 0)]))).endswith("cannot be read: b'junk'")


def test_the_tally_counts_a_pod_bound_once():
    tally = Tally()
    for data in (decision(), decision(), decision(uid="v", node="node-8"), decision(Outcome.CONFLICT, uid="w")):
        tally.hear("berth.decision.berth.default.web-0", data)
    tally.hear("berth.ranked.berth.default.web-0", RANKED)
    tally.hear("berth.ranked.berth.default.web-0", b"junk")
    assert (len(tally.bound), tally.outcomes[Outcome.BOUND], tally.outcomes[Outcome.CONFLICT]) == (2, 3, 1)
    assert (tally.scorers["host_1_scorer-2"], tally.unreadable, tally.spread()) == (1, 1, "1..1")
