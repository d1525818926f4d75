"""What the console keeps of shadows: the last differences with both rankings, their numbers, and never more."""

from __future__ import annotations

import msgspec
import pytest

from berth.bus.interface import ServiceInstance
from berth.messages.attempts import Candidate, Outcome, Rejection
from berth.messages.encoding import encode
from berth.messages.shadow import (
    MOST_COMPARISON_BYTES,
    ShadowComparison,
    ShadowFigures,
    ShadowResult,
    ShownRanking,
)
from berth_cli.console.model import ConsoleModel
from berth_cli.console.shadowlog import DIFFERENCES_KEPT, MOST_SHADOWS, ShadowLog
from berth_cli.options import NotFoundError, PodName
from berth_cli.services import activity, seen

WEB = PodName(namespace="default", name="web-0")


def a_difference(pod: str = "web-0", shadow: str = "packed", **fields: object) -> ShadowComparison:
    live = ShownRanking(feasible=2, candidates=[Candidate(node="a", total=9, scores={"Fit": 9})])
    own = ShownRanking(
        feasible=1,
        candidates=[Candidate(node="b", total=8, scores={"Fit": 8})],
        rejections=[Rejection(plugin="Taint", reason="tainted", nodes=1, examples=["a"])],
    )
    given = {
        "attempt": "u.1.1",
        "profile": "berth",
        "namespace": "default",
        "uid": "u",
        "result": ShadowResult.NODE,
        "refused_by": "Taint",
        "reason": "tainted",
        "outcome": Outcome.BOUND,
        "node": "a",
        "live": live,
        "own": own,
    }
    return ShadowComparison(**{**given, "pod": pod, "shadow": shadow, **fields})


def tell(log: ShadowLog, one: ShadowComparison, at: float = 1.0) -> None:
    log.received(one.subject, encode(one), at)


def a_shadow(figures: object, identity: str = "h_1", **stats: object) -> ServiceInstance:
    said = {"readiness": "ok", "shadow": figures, **stats}
    return ServiceInstance(service="berth-shadow", identity=identity, version="1", stats=said)


def test_a_difference_is_a_line_and_a_document_with_both_rankings():
    log = ShadowLog()
    tell(log, a_difference())
    (line,) = log.new_lines()
    assert (line.shadow, line.pod, line.result) == ("packed", "web-0", "node")
    assert (line.live, line.own, line.refused_by, line.node) == ("a", "b", "Taint", "a")
    assert log.new_lines() == []
    found = msgspec.json.decode(msgspec.json.encode(log.document("packed", WEB)))
    assert (found["live"]["candidates"][0]["node"], found["own"]["candidates"][0]["node"]) == ("a", "b")
    assert (found["live"]["outcome"], found["live"]["node"]) == ("bound", "a")
    assert found["own"]["rejections"][0]["plugin"] == "Taint"


@pytest.mark.parametrize(("shadow", "pod"), [("packed", "other"), ("nobody", "web-0")])
def test_a_difference_that_is_not_kept_is_said(shadow: str, pod: str):
    log = ShadowLog()
    tell(log, a_difference())
    with pytest.raises(NotFoundError, match="last 64 differences"):
        log.document(shadow, PodName(namespace="default", name=pod))


def test_of_a_pod_the_newest_difference_is_kept():
    log = ShadowLog()
    for number in range(DIFFERENCES_KEPT + 5):
        tell(log, a_difference(f"web-{number}"), float(number))
    tell(log, a_difference("web-20", reason="newer"), 100.0)
    assert log.document("packed", PodName(namespace="default", name="web-20"))["reason"] == "newer"
    assert len(log.lines()) == len(log.new_lines()) == DIFFERENCES_KEPT
    with pytest.raises(NotFoundError):
        log.document("packed", PodName(namespace="default", name="web-2"))


def test_shadows_are_bounded():
    log = ShadowLog()
    for number in range(MOST_SHADOWS + 3):
        tell(log, a_difference(shadow=f"s{number}"))
    assert len(log.lines()) == MOST_SHADOWS


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        pytest.param("berth.shadow.packed.berth.default.web-0", b"rubbish", id="no JSON"),
        pytest.param("berth.shadow.packed.berth.default.web-0", b"{}", id="nothing in it"),
        pytest.param("berth.shadow.packed.berth.default.web-0", b"[" * 60_000, id="nested deep"),
        pytest.param("berth.shadow.other.berth.default.web-0", encode(a_difference()), id="of another shadow"),
        pytest.param("berth.shadow.packed.berth.default.web-1", encode(a_difference()), id="about another pod"),
        pytest.param(
            "berth.shadow.packed.berth.default.web-0", encode(a_difference(reason="x" * 2000)), id="a long text"
        ),
        pytest.param(
            "berth.shadow.packed.berth.default.web-0",
            encode(a_difference()) + b" " * MOST_COMPARISON_BYTES,
            id="too large",
        ),
    ],
)
def test_what_is_none_is_left_out_and_counted(subject: str, data: bytes):
    model = ConsoleModel()
    model.shadows.received(subject, data, 1.0)
    assert (model.shadows.lines(), model.unreadable) == ([], 1)


def test_a_page_gets_the_numbers_once_they_change():
    model, figures = ConsoleModel(), {"name": "packed", "compared": 4, "results": {"equal": 3, "node": 1}}
    assert model.changes(now=1.0, every_second=False).shadows is None
    model.services_answered([a_shadow(figures)])
    (shown,) = model.changes(now=1.0, every_second=False).shadows
    assert (shown.figures.name, shown.figures.compared, shown.readiness) == ("packed", 4, "ok")
    assert model.changes(now=1.0, every_second=False).shadows is None
    assert model.whole(now=1.0).shadows == [shown]
    tell(model.shadows, a_difference())
    assert [line.pod for line in model.changes(now=1.0, every_second=False).differences] == ["web-0"]
    assert [line.pod for line in model.whole(now=1.0).differences] == ["web-0"]
    model.services_answered([])
    assert model.changes(now=1.0, every_second=False).shadows == []


@pytest.mark.parametrize(
    "figures", [pytest.param(7, id="a number"), pytest.param({"name": "x" * 999}, id="a long name"), {"compared": 1}]
)
def test_numbers_that_are_none_are_no_shadow(figures: object):
    model = ConsoleModel()
    model.services_answered([a_shadow(figures)])
    assert model.shadows.shadows() == []


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (ShadowFigures(name="packed"), "compares, nothing yet"),
        (ShadowFigures(name="p", compared=8, results={"equal": 7, "node": 1}), "87.5 % of 8 pods as live"),
        (
            ShadowFigures(name="p", compared=2, results={"equal": 2}, skipped={"busy": 3, "missed": 1}),
            "100.0 % of 2 pods as live, 4 skipped",
        ),
    ],
)
def test_top_says_in_a_few_words_what_a_shadow_found(figures: ShadowFigures, says: str):
    (one,) = seen([a_shadow(msgspec.to_builtins(figures))])
    assert activity(one) == says
