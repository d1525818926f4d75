"""What services say of themselves, in sentences: who leads, what waits for whom, and whose configuration differs."""

import pytest

from berth.bus.interface import ServiceInstance
from berth_cli.services import activity, attention, figures, gone, queue_lines, seen

PROFILES = {"berth": "b1", "late": "l1"}


def service(name, identity="", **stats):
    told = {"configuration": "c1", "profiles": PROFILES, "settings": "s1", "readiness": "ok"}
    return ServiceInstance(
        service=f"berth-{name}", identity=identity or f"{name}-1", version="1", stats={**told, **stats}
    )


def watcher(identity="watcher-1", **stats):
    leads = {"leading": {"number": 7, "seconds": 65.0}}
    figures_of = {
        "queues": {"active": 3, "with group": 4, "gated": 2, "backoff": 1, "unschedulable": 20},
        "in_flight": {"late": 64, "berth": 1},
        "window": {"late": 64, "berth": 64},
        "stalled": [],
    }
    return service("watcher", identity, **{**leads, **figures_of, **stats})


def binder(**stats):
    return service("binder", "binder-1", **{"leading": {"number": 4, "seconds": 3.0}, **stats})


def stalled(waits_for, pods=64, profile="late"):
    return watcher(stalled=[{"profile": profile, "waits_for": waits_for, "pods": pods}])


def sentences(*instances):
    return attention(seen(instances))


def test_nothing_needs_attention_when_all_is_well():
    assert sentences(watcher(), service("scorer"), binder(), service("metrics-collector")) == []


def test_the_leading_watcher_tells_its_queues_and_windows():
    standby = watcher("watcher-2", leading=None, queues={})
    assert list(queue_lines(seen([standby, watcher()]))) == [
        "waiting pods: active 3, backoff 1, unschedulable 20, gated 2, with group 4",
        "in flight: berth 1 of 64, late 64 of 64",
    ]
    assert list(queue_lines(seen([standby]))) == []


def test_groups_that_wait_have_a_line_where_there_are_some():
    found = list(queue_lines(seen([watcher(groups={"waiting": 2, "begun": 1, "in flight": 0})])))
    assert found[2:] == ["groups of pods: waiting 2, begun 1, in flight 0"]


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (watcher(), "leads for 1 min 5 s, term 7"),
        (binder(), "leads for 3.0 s, epoch 4"),
        (binder(leading=None), "stands by"),
        (service("scorer"), "ready"),
        (service("scorer", readiness="not ready: reading the mirror"), "not ready: reading the mirror"),
    ],
)
def test_a_process_leads_stands_by_or_is_ready(instance, expected):
    assert activity(*seen([instance])) == expected


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        pytest.param(
            [service("scorer"), binder()],
            "no watcher answers: no pod is published, and the mirror becomes old",
            id="no watcher",
        ),
        pytest.param([watcher(), binder()], "no scorer answers: nothing is ranked", id="no scorer"),
        pytest.param(
            [watcher(), service("scorer"), binder(leading=None)],
            "no binder leads: nothing is bound",
            id="only a standby",
        ),
        pytest.param(
            [watcher(), service("scorer", readiness="not ready: reading the mirror"), binder()],
            "scorer-1: not ready: reading the mirror",
            id="a scorer that is not ready",
        ),
    ],
)
def test_a_service_that_is_missing_or_not_ready_is_named(instances, expected):
    assert sentences(*instances) == [expected]


FULL = "64 pods of profile 'late' wait for a scorer, and its window is full (64 of 64): "


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        pytest.param([binder()], FULL + "none answers", id="no scorer"),
        pytest.param(
            [service("scorer", profiles={"berth": "b1"}), service("scorer", "s2", profiles={"berth": "b1"}), binder()],
            FULL + "none of the 2 that answer has this profile in its configuration",
            id="scorers without the profile",
        ),
        pytest.param(
            [service("scorer", readiness="not ready: reading the mirror"), binder()],
            FULL + "none that has the profile is ready (scorer-1: not ready: reading the mirror)",
            id="scorers that are not ready",
        ),
        pytest.param(
            [service("scorer"), binder()],
            FULL + "scorer-1 should take them: see the log there",
            id="a scorer that does not answer for them",
        ),
    ],
)
def test_pods_that_wait_for_a_scorer_are_explained(others, expected):
    assert expected in sentences(stalled("scorer"), *others)


def test_one_pod_that_waits_for_a_binder_is_explained():
    waiting = stalled("binder", pods=1, profile="berth")
    assert sentences(waiting, service("scorer"), binder(leading=None)) == [
        "no binder leads: nothing is bound",
        "1 pod of profile 'berth' waits for a binder: none leads",
    ]


def test_a_profile_that_differs_is_told_with_its_digests():
    found = sentences(
        watcher(),
        service("scorer", "scorer-1", profiles={"berth": "b2"}),
        binder(settings="s2"),
        service("scorer", "x"),
    )
    assert found == [
        "configurations differ: profile 'berth': b2 in scorer-1; b1 in watcher-1, binder-1, scorer x",
        "configurations differ: profile 'late': l1 in watcher-1, binder-1, scorer x; missing in scorer-1",
        "configurations differ: settings outside the profiles: s2 in binder-1; s1 in watcher-1, scorer-1, scorer x",
    ]


def test_a_service_that_knows_no_plugins_lacks_no_profile():
    assert sentences(watcher(), service("scorer"), binder(), service("metrics-collector", "c", profiles={})) == []


def test_a_service_of_an_older_version_tells_less_and_is_compared_with_nobody():
    older = ServiceInstance(service="berth-scorer", identity="s", version="0", stats={"answered": 7})
    assert sentences(watcher(), older, binder()) == []
    nonsense = ServiceInstance(service="berth-scorer", identity="s", version="0", stats={"profiles": 7})
    assert sentences(watcher(), nonsense, binder()) == []


def test_a_process_that_has_gone_is_listed_once_unless_it_answers():
    missed = [{"service": "scorer", "identity": identity, "seconds": 40.0} for identity in ("s9", "scorer-1")]
    nearer = [{"service": "scorer", "identity": "s9", "seconds": 38.0}]
    instances = [watcher(gone=missed), service("scorer"), binder(gone=nearer)]
    assert [(each.identity, each.seconds) for each in gone(seen(instances))] == [("s9", 38.0)]
    assert sentences(*instances) == ["scorer s9 has been silent for 38.0 s, and did not stop"]


def test_a_collector_says_how_many_samples_it_knows_and_not_of_how_many_queries():
    stats = {"queries": {"q1": "http://p", "l1": "http://p"}, "known": {"q1": 3, "l1": 2}, "written": 16}
    assert figures(stats) == "queries 2, known 5, written 16"
