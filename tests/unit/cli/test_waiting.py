"""Pods that wait, in words: the list, one pod, and pods that berth does not know."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec, PodStatus
from berth.bus.interface import Endpoint, Session
from berth.bus.stages import publish_decision, publish_pending
from berth.cluster.snapshot import Snapshot
from berth.exits import UsageError
from berth.messages.attempts import Decision, Outcome, Pending
from berth.messages.encoding import encode
from berth.messages.queue import Helping, PageRequest, QueueAnswer, QueuedPodDetail, WaitingPod, decode_page_request
from berth_cli.commands.dead import StoredLetter, list_lines
from berth_cli.commands.queue import pod_lines
from berth_cli.console.answers import why_json
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.finding import ask_the_cluster, whose
from berth_cli.pods.unplaced import KnownByDecision, KnownByWatcher, ask_the_watcher, explanation_of
from berth_cli.pods.waiting import NoLeaderError, detail_lines, leading_watcher, queue_table, queued_pod, read_queue
from berth_cli.rendering import MOST_ROWS
from harness.fakes.memory_bus import MemoryBus
from harness.worlds.printed import printed, words

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POD = PodName(namespace="default", name="web")


def waiting(name: str = "web", queue: str = "unschedulable", **more) -> WaitingPod:
    parts = {"stage": queue, "since": NOW - timedelta(seconds=65), "uid": f"uid-{name}", "attempts": 2}
    return WaitingPod(namespace="default", name=name, profile="berth", queue=queue, **{**parts, **more})


def answer(*pods: WaitingPod, **more) -> QueueAnswer:
    return QueueAnswer(now=NOW, queues={"active": 1, "gated": 0}, pods=list(pods), **more)


def told(pod: WaitingPod, *, draining: bool = False, **more) -> list[str]:
    detail = QueuedPodDetail(pod=pod, **more)
    return printed(*detail_lines(answer(draining=draining), detail), width=200)


@pytest.mark.parametrize(
    ("pods", "rows", "complete", "last"),
    [
        pytest.param(10, MOST_ROWS, True, "default/p09", id="ten"),
        pytest.param(1000, MOST_ROWS, True, "and 990 more (--all)", id="a thousand"),
        pytest.param(1000, MOST_ROWS, False, "and more than 990 more (--all)", id="not all are read"),
        pytest.param(1000, None, True, "default/p999", id="--all"),
    ],
)
def test_a_list_has_ten_pods_and_the_number_of_the_others(pods: int, rows: int | None, *, complete: bool, last: str):
    listed = answer(*(waiting(f"p{number:02}") for number in range(pods)))
    lines = printed(*pod_lines(listed, rows=rows, complete=complete), width=200)
    assert lines[-1].startswith(last)
    assert len(lines) == 1 + (pods if rows is None else min(rows, pods)) + (pods > (rows or pods))


def test_the_newest_ten_dead_letters_are_listed():
    letters = [
        StoredLetter(number=number, at=NOW, subject="berth.dead.x", letter=None, pod=POD) for number in range(1, 13)
    ]
    lines = printed(*list_lines(letters, NOW, rows=MOST_ROWS), width=200)
    assert ([words([line])[0][0] for line in lines[1:-1]], lines[-1]) == (
        [str(number) for number in range(3, 13)],
        "and 2 more (--all)",
    )
    assert len(printed(*list_lines(letters, NOW, rows=None), width=200)) == 13


def test_each_pod_of_the_list_has_its_reason():
    pods = [
        waiting("a", plugins=["NodeAffinity", "NodeResourcesFit"], tried_again_seconds=235.0),
        waiting("b", "backoff", message="a plugin failed", tried_again_seconds=0.4),
        waiting("c", "active", stage="awaiting versions"),
        waiting("d", "active"),
        waiting("e", "in flight", stage="in flight"),
    ]
    rows = words(printed(queue_table(answer(*pods)), width=200))
    assert rows[1:] == [
        [
            "default/a",
            "unschedulable",
            "1",
            "min",
            "5",
            "s",
            "3",
            "min",
            "55",
            "s",
            "2",
            "NodeAffinity,",
            "NodeResourcesFit",
        ],
        ["default/b", "backoff", "1", "min", "5", "s", "400.0", "ms", "2", "a", "plugin", "failed"],
        ["default/c", "active", "1", "min", "5", "s", "2", "awaiting", "versions"],
        ["default/d", "active", "1", "min", "5", "s", "2"],
        ["default/e", "in", "flight", "1", "min", "5", "s", "2"],
    ]


def test_unschedulable_pod_says_what_it_waits_for():
    helping = [Helping(plugin="A", events=["NodeAdd", "AssignedPodDelete"], hinted=["NodeAdd"])]
    lines = told(waiting(message="no room", tried_again_seconds=60.0), helping=helping, conflicts=1, failures=2)
    assert lines[0] == "default/web is unschedulable: no room"
    assert (
        lines[1]
        == "  has waited for 1 min 5 s, attempt 2, 1 conflict in a row (the binder's check failed), profile berth"
    )
    assert lines[2] == "  tried again in 1 min 0 s, earlier when one of these events may help"
    assert lines[-2].split() == ["A", "NodeAdd*,", "AssignedPodDelete"]
    assert lines[-1] == "*: if the plugin finds that the event helps this pod"


def test_plugin_without_events_is_helped_by_any():
    assert told(waiting(), helping=[Helping(plugin="Own", events=[])])[-1].split() == ["Own", "any", "event"]
    assert told(waiting(), helping=[Helping(plugin="", events=[])])[-1].split() == ["none", "any", "event"]


@pytest.mark.parametrize(
    ("pod", "more", "expected"),
    [
        pytest.param(
            waiting(queue="gated", plugins=["SchedulingGates"], message="waiting for gates"),
            {},
            ["default/web is gated and not scheduled: SchedulingGates: waiting for gates"],
            id="gated",
        ),
        pytest.param(
            waiting(queue="backoff", message="a plugin failed", tried_again_seconds=4.0),
            {"failures": 1},
            ["default/web backs off after 1 failed attempt: a plugin failed", "  tried again in 4.0 s"],
            id="backoff",
        ),
        pytest.param(
            waiting(queue="active"),
            {"window": 64, "window_used": 64},
            ["default/web waits for its turn", "  window of profile berth: 64 of 64 in use"],
            id="active",
        ),
        pytest.param(
            waiting(queue="active", stage="awaiting versions"),
            {"awaited_versions": {"node": 17}},
            ["default/web is next, awaiting versions", "  until the watcher has seen resourceVersion node 17"],
            id="after a conflict",
        ),
        pytest.param(
            waiting(queue="in flight", stage="in flight"),
            {"stalled_on": "scorer"},
            [
                "default/web is being scheduled",
                "  no scorer has taken its message for more than 10 s: see `berth top`",
            ],
            id="stalled",
        ),
        pytest.param(
            waiting(queue="active"),
            {"draining": True},
            ["  draining: no pod is published until `berth drain --stop`"],
            id="drained",
        ),
    ],
)
def test_each_state_in_words(pod, more, expected):
    lines = told(pod, **more)
    assert [line for line in lines if line in expected] == expected


async def session_with(*watchers: tuple[str, object], leads: bool = True) -> Session:
    """A bus on which watchers answer every request with a value, or with what a function makes of it."""
    bus = MemoryBus()
    bus.apply()
    for identity, value in watchers:
        endpoints = [
            Endpoint(name=name, answer=value if callable(value) else lambda _, value=value: value)
            for name in ("queue", "pod")
        ]
        stats = {"leading": {"number": 7, "seconds": 1.0}} if leads else {}
        one = await bus.connect(name=identity)
        await one.register(
            "berth-watcher", identity=identity, version="1", stats=lambda stats=stats: stats, endpoints=endpoints
        )
    return await bus.connect(name="person")


async def test_the_leader_of_the_highest_term_is_asked():
    session = await session_with(("one", answer()))
    assert (await leading_watcher(session)).identity == "one"


async def test_without_a_leader_that_is_said():
    session = await session_with(("one", answer()), leads=False)
    with pytest.raises(NoLeaderError, match="no watcher leads"):
        await queued_pod(session, POD)
    assert await ask_the_watcher(session, POD) is None


async def test_an_answer_of_another_version_is_refused():
    session = await session_with(("one", {"schema": 99}))
    with pytest.raises(UsageError, match="of different versions"):
        await queued_pod(session, POD)


async def test_a_watcher_that_has_lost_the_lease_says_so():
    session = await session_with(("one", QueueAnswer(error="this watcher does not lead")))
    with pytest.raises(NoLeaderError, match="asking one: this watcher does not lead"):
        await queued_pod(session, POD)


async def test_pods_are_sorted_by_queue_then_by_what_comes_next():
    pods = [
        waiting("late", "backoff", tried_again_seconds=9.0),
        waiting("soon", "backoff", tried_again_seconds=1.0),
        waiting("low", "active"),
        waiting("high", "active", priority=5),
        waiting("gated", "gated"),
    ]
    session = await session_with(("one", answer(*pods)))
    found, complete = await read_queue(session, queue="", namespace="", limit=0)
    assert ([pod.name for pod in found.pods], complete) == (["high", "low", "soon", "late", "gated"], True)
    found, complete = await read_queue(session, queue="", namespace="", limit=2)
    assert ([pod.name for pod in found.pods], complete) == (["high", "low"], False)


async def test_a_list_that_is_asked_for_in_few_requests_stops_there():
    asked: list[PageRequest] = []

    def page(data: bytes) -> QueueAnswer:
        """Of 200,000 pods, of which one in each 2,000 is in the queue that is asked for."""
        request = decode_page_request(data)
        asked.append(request)
        following = request.start + 2000
        return answer(waiting(f"web-{request.start}", "gated"), next=following if following < 200_000 else None)

    session = await session_with(("one", page))
    found, complete = await read_queue(session, queue="gated", namespace="", limit=500, most_requests=5)
    assert [request.start for request in asked] == [0, 2000, 4000, 6000, 8000]
    assert (len(found.pods), found.next, complete) == (5, 10_000, False)
    asked.clear()
    found, complete = await read_queue(session, queue="gated", namespace="", limit=500)
    assert (len(asked), len(found.pods), found.next, complete) == (100, 100, None, True)


def a_pod(scheduler: str = "berth", node: str = "", phase: str = "Pending") -> Pod:
    spec = PodSpec(scheduler_name=scheduler, node_name=node)
    return Pod(metadata=ObjectMeta(name="web", namespace="default"), spec=spec, status=PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            a_pod("default-scheduler"),
            "is not berth's: its schedulerName is 'default-scheduler', and berth schedules those with berth, late",
        ),
        (
            a_pod("other", node="n1"),
            "is not berth's: its schedulerName is 'other', and berth schedules those with berth, late; it is on n1",
        ),
        (
            a_pod(node="n1"),
            (
                "is on n1; no Decision says why: it was placed before (Decisions are kept for an hour), or by another "
                "client"
            ),
        ),
        (a_pod(phase="Failed"), "is not scheduled any more: it has ended, or is being deleted (phase Failed)"),
        (a_pod(), "waits for berth, and no watcher has taken it yet: see `berth top`"),
    ],
)
def test_whose_a_pod_is_that_berth_has_no_decision_on(pod, expected):
    assert whose(pod, {"late", "berth"}) == expected


def a_decision(outcome: Outcome = Outcome.BOUND, uid: str = "uid-web") -> Decision:
    node = "n1" if outcome is Outcome.BOUND else ""
    names = {"namespace": POD.namespace, "pod": POD.name, "uid": uid, "profile": "berth", "config": "c"}
    return Decision(attempt=f"{uid}.1.1", epoch=1, outcome=outcome, node=node, **names)


async def with_a_former_pod(session: Session, outcome: Outcome = Outcome.BOUND) -> Session:
    """The last Decision is on a pod that is deleted."""
    await publish_decision(session, a_decision(outcome, "former"))
    await session.purge("cluster", "pod.former")
    return session


async def publish(session: Session, uid: str) -> None:
    pod = Pod(metadata=ObjectMeta(name="web", namespace="default", uid=uid))
    await publish_pending(session, Pending(attempt=f"{uid}.1.1", profile="berth", pod=pod))


@pytest.mark.parametrize("outcome", [Outcome.BOUND, Outcome.GONE, Outcome.UNSCHEDULABLE])
async def test_a_pod_that_was_made_anew_is_explained_by_the_watcher_and_not_by_the_one_before(outcome):
    detail = QueuedPodDetail(pod=waiting(queue="gated", plugins=["SchedulingGates"]))
    session = await with_a_former_pod(await session_with(("one", answer(detail=detail))), outcome)
    known = await explanation_of(session, POD)
    assert isinstance(known, KnownByWatcher)
    assert known.detail == detail
    shown = await why_json(session, POD, Snapshot())
    assert (shown["kind"], shown["uid"], shown["outcome"]) == ("queued", "uid-web", "gated")
    assert shown["sentences"][0] == "default/web is gated and not scheduled: SchedulingGates"


@pytest.mark.parametrize("leads", [True, False])
async def test_a_pod_that_was_made_anew_and_is_to_be_ranked_has_no_decision(leads):
    session = await with_a_former_pod(await session_with(("one", answer()), leads=leads))
    await publish(session, "uid-web")
    with pytest.raises(NotFoundError, match=r"there is none yet: it waits to be ranked, published .* ago"):
        await explanation_of(session, POD)


async def test_a_pod_that_is_no_more_is_explained_by_its_own_decision():
    session = await with_a_former_pod(await session_with(("one", answer())))
    await publish(session, "former")
    known = await explanation_of(session, POD)
    assert isinstance(known, KnownByDecision)
    assert known.decided.has_left


async def test_a_pod_that_waits_with_its_own_decision_has_both():
    whole = a_pod()
    detail = QueuedPodDetail(pod=waiting(), object=whole)
    session = await session_with(("one", answer(detail=detail)))
    await publish_decision(session, a_decision(Outcome.UNSCHEDULABLE))
    known = await explanation_of(session, POD)
    assert isinstance(known, KnownByDecision)
    assert (known.decided.decision.uid, known.pod) == ("uid-web", whole)


async def test_a_watcher_of_another_version_hides_no_decision():
    session = await with_a_former_pod(await session_with(("one", {"schema": 99})))
    assert isinstance(await explanation_of(session, POD), KnownByDecision)


async def test_nobody_is_asked_about_a_pod_on_its_node():
    detail = QueuedPodDetail(pod=waiting(uid="another"))
    session = await session_with(("one", answer(detail=detail)))
    await publish_decision(session, a_decision())
    assert isinstance(await explanation_of(session, POD), KnownByDecision)


async def test_without_any_cluster_it_says_that_none_was_asked(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    session = await session_with()
    with pytest.raises(NotFoundError, match=r"^nothing is known: no cluster was asked: name one with --kubeconfig$"):
        await ask_the_cluster(session, POD, None, {"berth"}, NotFoundError("nothing is known"))


def test_an_answer_can_be_read_by_a_later_version():
    assert b'"schema":1' in encode(answer(waiting()))
