"""The explanation of a pod's placement from its Decision."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.api.devices import AllocationResult, DeviceAllocationResult, DeviceRequestAllocationResult
from berth.messages.attempts import Candidate, Decision, Outcome, Preemption, Reason, Rejection, Victim
from berth_cli.console.answers import sentences_of
from berth_cli.options import PodName
from berth_cli.pods.explain import candidate_details, decision_json, decision_lines
from berth_cli.pods.lookup import EvictionRecord, ExplainedDecision
from harness.worlds.printed import printed, words

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
CANDIDATES = [
    Candidate(node="node-a", total=393, scores={"NodeResourcesFit": 93, "TaintToleration": 300}, pods=2, loss=3.0),
    Candidate(node="node-b", total=390, scores={"NodeResourcesFit": 90, "TaintToleration": 300}, pods=3, loss=3.0),
]
WEIGHTS = {"NodeResourcesFit": 1, "TaintToleration": 3}
BOUND = Decision(
    attempt="u.1.2",
    epoch=4,
    outcome=Outcome.BOUND,
    profile="berth",
    namespace="default",
    pod="web-0",
    uid="u",
    node="node-a",
    evaluated=10,
    feasible=9,
    candidates=CANDIDATES,
    weights=WEIGHTS,
    scorer="scorer-2",
    view_age_seconds=0.4,
    asked_at=AT - timedelta(milliseconds=10),
    ranked_at=AT - timedelta(milliseconds=7),
)
WAITS = msgspec.structs.replace(
    BOUND,
    outcome=Outcome.UNSCHEDULABLE,
    node="",
    feasible=0,
    candidates=[],
    message="0/10 nodes are available: 9 Insufficient cpu, 1 node(s) had untolerated taint {a: b}.",
    rejections=[
        Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=9, examples=["node-a", "node-b"]),
        Rejection(plugin="TaintToleration", reason="node(s) had untolerated taint", nodes=1, examples=["node-c"]),
    ],
    blockers=["NodeResourcesFit", "TaintToleration"],
)


def decided(decision=BOUND, **changes):
    changed = msgspec.structs.replace(decision, **changes)
    return ExplainedDecision(decision=changed, at=AT, now=AT + timedelta(seconds=12))


def lines(of, width=120):
    return printed(*decision_lines(of), width=width)


def test_a_bound_pod_has_times_and_says_that_the_view_was_current():
    first, when, looked_at, *_ = lines(decided())
    assert first == "default/web-0 is on node-a"
    assert when.startswith("  decided 12.0 s ago at ")
    assert when.endswith("ranked 3.0 ms after the request, decided 7.0 ms later, attempt 2 by scorer-2")
    assert looked_at == "  9 of 10 nodes were possible; the data was current when it was decided"


def test_each_of_the_best_nodes_has_every_plugins_score_times_its_weight():
    rows = words(lines(decided()))
    assert ["1", "node-a", "393", "93", "x", "1", "100", "x", "3", "2", "3"] in rows
    assert ["2", "node-b", "390", "90", "x", "1", "100", "x", "3", "3", "3"] in rows


def test_without_weights_scores_are_not_divided():
    shown = lines(decided(weights={}))
    assert ["1", "node-a", "393", "93", "300", "2", "3"] in words(shown)
    assert "the weights are unknown" in "\n".join(shown)


def test_a_bound_pod_has_the_names_of_its_devices():
    def given(*names: str) -> AllocationResult:
        named = [
            DeviceRequestAllocationResult(request="r", driver="gpu.example.com", pool="node-a", device=name)
            for name in names
        ]
        return AllocationResult(devices=DeviceAllocationResult(results=named))

    found = decided(devices={"c1": given("gpu-0", "gpu-1"), "c2": given("gpu-4")})
    keys = [f"gpu.example.com/node-a/gpu-{number}" for number in (0, 1, 4)]
    assert f"its devices: {', '.join(keys)}" in lines(found)
    assert decision_json(found)["devices"] == {"c1": keys[:2], "c2": keys[2:]}
    many = decided(devices={"c": given(*(f"gpu-{number}" for number in range(10)))})
    assert "gpu-7 and 2 more" in "\n".join(lines(many))
    assert "devices" not in "\n".join(lines(decided()))


def test_a_legend_says_what_the_numbers_of_the_table_mean():
    shown = "\n".join(lines(decided()))
    assert "TOTAL: sum of the points (score x weight). LOSS: points one more such pod costs." in shown
    assert "NEWCOMERS:" not in shown
    with_newcomers = [msgspec.structs.replace(CANDIDATES[0], newcomers=2), CANDIDATES[1]]
    shown = "\n".join(lines(decided(candidates=with_newcomers)))
    assert "NEWCOMERS: pods that came since the ranking; highest TOTAL - LOSS x NEWCOMERS wins." in shown


def test_the_runner_up_has_what_made_the_difference():
    assert lines(decided())[-1] == "runner-up: node-b with 390, 3 less (NodeResourcesFit 93 against 90)"


def test_of_equal_nodes_with_equal_pods_one_is_taken_by_the_uid():
    first, second = CANDIDATES
    equal = [first, msgspec.structs.replace(second, total=393, pods=2)]
    taken = "the best nodes were equal, and a hash of the attempt chose one of them"
    assert lines(decided(candidates=equal))[-1] == f"runner-up: node-b with 393 as well; {taken}"
    equal[1] = msgspec.structs.replace(second, total=393)
    assert lines(decided(candidates=equal))[-1] == "runner-up: node-b with 393 as well; it has 3 pods, and node-a 2"


def test_a_later_node_is_taken_because_pods_came_to_the_first():
    first, second = CANDIDATES
    came = [msgspec.structs.replace(first, newcomers=2), msgspec.structs.replace(second, newcomers=0)]
    result = lines(decided(node="node-b", candidates=came))
    assert ["1", "node-a", "393", "93", "x", "1", "100", "x", "3", "2", "3", "2"] in words(result)
    # 393 - 3 x 2 = 387
    assert result[-2:] == [
        "node-b was taken with 390",
        "runner-up: node-a with 387 (393 - 3 x 2 newcomers), 3 less",
    ]


def test_of_equal_estimates_the_one_with_fewer_newcomers_is_taken():
    first, second = CANDIDATES
    result = lines(decided(node="node-b", candidates=[msgspec.structs.replace(first, newcomers=1), second]))
    # 393 - 3 x 1 = 390
    assert result[-1] == "runner-up: node-a with 390 (393 - 3 x 1 newcomer) as well; more pods came there"


def test_a_node_that_no_longer_passed_is_named():
    result = lines(decided(node="node-b"))
    assert result[-2] == "node-a came first, but did not pass the filters any more"


def test_pods_that_went_count_for_the_node():
    first, second = CANDIDATES
    result = lines(decided(node="node-b", candidates=[first, msgspec.structs.replace(second, newcomers=-2)]))
    assert "node-b was taken with 396 (390 + 3 x 2 pods gone)" in result


def test_a_candidate_before_which_others_were_left_out_is_shown_at_its_place():
    late = Candidate(node="n31", total=380, place=31)
    rows = words(lines(decided(node="n31", candidates=[*CANDIDATES, late])))
    assert ["31", "n31"] in [row[:2] for row in rows]


def test_only_explained_candidates_the_chosen_one_and_the_runner_up_are_shown():
    plain = [Candidate(node=f"n{number}", total=380 - number) for number in range(20)]
    rows = words(lines(decided(node="n7", candidates=[*CANDIDATES, *plain])))
    assert [row[1] for row in rows if row[-2:] in (["2", "3"], ["3", "3"], ["0", "0"])] == ["node-a", "node-b", "n7"]
    assert ["10", "n7", "373", "-", "-", "0", "0"] in rows


def test_the_only_possible_node_has_no_runner_up():
    last = lines(decided(candidates=CANDIDATES[:1], feasible=1))[-1]
    assert last == "node-a was the only one possible"


def test_the_nominated_node_was_not_the_only_one_possible():
    alone = decided(candidates=CANDIDATES[:1], feasible=1, evaluated=1, nodes=200, nominated_first=True)
    _, _, looked_at, *_, last = lines(alone)
    assert looked_at.startswith(
        "  the nominated node-a was possible and was tried first, without the 199 others; the data was"
    )
    assert last == "node-a was nominated for the pod, and no other node was tried"
    result = decision_json(alone)
    assert (result["nominated_first"], result["evaluated"], result["nodes"]) == (True, 1, 200)


def test_the_nominated_node_of_a_cluster_of_one_was_the_only_one_possible():
    alone = decided(candidates=CANDIDATES[:1], feasible=1, evaluated=1, nodes=1, nominated_first=True)
    assert lines(alone)[2].startswith("  1 of 1 nodes were possible")
    assert lines(alone)[-1] == "node-a was the only one possible"


def test_explanations_of_plugins_are_below_the_nodes_and_the_runner_up():
    explained = [msgspec.structs.replace(CANDIDATES[0], details={"NetworkTraffic": "1 MB/s, 4 s old"}), CANDIDATES[1]]
    told = lines(decided(candidates=explained))
    assert told[-1] == "node-a  NetworkTraffic: 1 MB/s, 4 s old"
    assert told[-2].startswith("runner-up: node-b")


def test_the_page_has_the_sentences_before_its_bars_and_nothing_of_each_node():
    explained = [msgspec.structs.replace(CANDIDATES[0], details={"NetworkTraffic": "1 MB/s, 4 s old"}), CANDIDATES[1]]
    told = list(sentences_of(decided(candidates=explained)))
    assert told[0] == "default/web-0 is on node-a"
    assert told[-1].startswith("runner-up: node-b")
    assert not [sentence for sentence in told if "NetworkTraffic" in sentence]


def test_a_waiting_pod_has_rejections_with_examples():
    result = lines(decided(WAITS), width=160)
    assert result[0] == f"default/web-0 waits, no node is possible: {WAITS.message}"
    rows = words(result)
    assert ["9", "NodeResourcesFit", "Insufficient", "cpu", "node-a,", "node-b"] in rows
    assert ["1", "TaintToleration", "node(s)", "had", "untolerated", "taint", "node-c"] in rows
    assert result[-1].startswith("rejected by NodeResourcesFit, TaintToleration: requeued when")


def test_a_view_beyond_the_usual_age_is_called_old():
    old = "the data was 47.0 s old when it was decided, so a watcher or a scorer was behind"
    assert lines(decided(view_age_seconds=47.0))[2].endswith(old)


def test_of_a_recording_times_count_to_its_end():
    _first, when, *_ = lines(replace(decided(), is_recorded=True))
    assert when.startswith("  decided 12.0 s before the end of the recording at ")


ROOM = EvictionRecord(
    pod=PodName(namespace="default", name="web-0"),
    uid="u",
    preemption=Preemption(
        node="node-b",
        victims=[Victim(uid="v", namespace="batch", name="job-1"), Victim(uid="w", namespace="batch", name="job-2")],
    ),
    at=AT - timedelta(seconds=3),
)


def test_a_preemptor_names_its_victims_and_the_node():
    waits = replace(decided(WAITS, outcome=Outcome.PREEMPTING, node="node-b"), preemption=ROOM)
    shown = lines(waits, width=200)
    assert shown[0].startswith("default/web-0 waits for evicted pods to end on node-b: 0/10 nodes are available")
    assert shown[-1] == "preempted pods on node-b 15.0 s ago: batch/job-1, batch/job-2"
    assert lines(replace(decided(), preemption=ROOM), width=200)[-1] == shown[-1]
    result = decision_json(waits)["preemption"]
    assert (result["node"], [victim.name for victim in result["victims"]]) == ("node-b", ["job-1", "job-2"])
    assert decision_json(decided())["preemption"] is None


def test_an_evicted_pod_names_its_preemptor():
    low = decided(pod="job-1", namespace="batch", uid="v")
    evicted = replace(low, evicted_for=ROOM)
    assert lines(evicted)[0] == "batch/job-1 was evicted from node-b for default/web-0 15.0 s ago"
    assert decision_json(evicted)["evicted_for"] == {
        "pod": "default/web-0",
        "uid": "u",
        "node": "node-b",
        "at": ROOM.at,
    }
    assert decision_json(low)["evicted_for"] is None


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_sentence(outcome):
    first = lines(decided(outcome=outcome, message="because"))[0]
    assert first.startswith("default/web-0 ")
    assert "because" in first


@pytest.mark.parametrize("reason", list(Reason))
def test_every_conflict_reason_has_a_text(reason):
    first = " ".join(lines(decided(outcome=Outcome.CONFLICT, reason=reason))[:1])
    assert first.startswith("default/web-0 is ranked again after a conflict: ")
    assert len(first.removeprefix("default/web-0 is ranked again after a conflict: ").split()) > 3


def test_the_output_fits_a_narrow_terminal():
    assert all(len(line) <= 80 for line in lines(decided(), width=80))


def test_an_older_decision_without_times_is_explained():
    old = decided(asked_at=None, ranked_at=None, view_age_seconds=None, scorer="")
    assert lines(old)[1].startswith("  decided 12.0 s ago at ")
    assert lines(old)[2] == "  9 of 10 nodes were possible"


def test_json_has_scores_without_weights_and_ages_in_seconds():
    result = decision_json(decided())
    assert (result["outcome"], result["node"], result["age_seconds"]) == ("bound", "node-a", 12.0)
    assert result["candidates"][0]["scores"]["TaintToleration"] == {"points": 300, "weight": 3, "score": 100}
    assert decision_json(decided(weights={}))["candidates"][0]["scores"]["TaintToleration"] == {
        "points": 300,
        "weight": None,
        "score": None,
    }


def test_an_explanation_that_all_nodes_share_is_one_line():
    unknown = {"NetworkTraffic": "unknown: no sample"}
    nodes = [msgspec.structs.replace(CANDIDATES[0], node=f"n{number}", details=unknown) for number in range(8)]
    assert [str(line) for line in candidate_details(nodes)] == ["all 8 nodes  NetworkTraffic: unknown: no sample"]
    assert [str(line) for line in candidate_details(nodes[:1])] == ["n0  NetworkTraffic: unknown: no sample"]
    nodes[3] = msgspec.structs.replace(nodes[3], details={"NetworkTraffic": "1 MB/s"})
    assert len(candidate_details(nodes)) == 8
