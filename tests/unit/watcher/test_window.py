"""The window is counted per profile, and a service that holds up published pods is reported."""

from berth.messages.attempts import Outcome
from berth.messages.subjects import Attempt
from berth.profiles.configuration import profiles_of, read_configuration
from berth_watcher.events import AttemptLookedUp, Note, Warn
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_pod


def two_profiles(window_floor: int = 64) -> WatcherUnderTest:
    (profile,) = profiles_of(read_configuration(None)).values()
    return WatcherUnderTest(
        profiles={"berth": profile, "unknown": profile}, settings=AttemptSettings(window_floor=window_floor)
    )


def pods_of(profile: str, count: int, **more):
    return [a_pod(f"{profile}-{number}", scheduler=profile, **more) for number in range(count)]


def test_profile_that_no_scorer_knows_holds_up_no_other():
    watcher = two_profiles().lead(*pods_of("unknown", 200, priority=1000, age_seconds=60))
    assert len(watcher.published) == 64

    watcher.show(*pods_of("berth", 5))

    assert watcher.pods_published[64:] == [f"berth-{number}" for number in range(5)]


def test_each_profile_has_a_window_of_its_own_size():
    watcher = two_profiles(window_floor=1).lead(*pods_of("berth", 50), *pods_of("unknown", 50))

    for _ in range(20):
        name = [name for name in watcher.pods_published if name.startswith("berth")][-1]
        watcher.decide(name, Outcome.BOUND)

    figures = watcher.core.figures(watcher.now)
    assert figures.window_size == {"berth": 5, "unknown": 1}
    assert figures.in_flight == {"berth": 5, "unknown": 1}


def test_higher_priority_goes_first_across_profiles():
    watcher = two_profiles(window_floor=1).lead()
    watcher.show(a_pod("running"), a_pod("other", scheduler="unknown"))
    watcher.show(a_pod("low"), a_pod("high", priority=10, scheduler="unknown"))

    watcher.send(watcher.decision("running", Outcome.BOUND), watcher.decision("other", Outcome.BOUND))

    assert watcher.pods_published[2:] == ["high", "low"]


def found_in(watcher: WatcherUnderTest, stage: str, *names: str) -> None:
    """Each latest attempt is looked up, and the work queue of this stage holds it."""
    watcher.send(*(AttemptLookedUp(attempt=Attempt.parse(watcher.attempt_of(name)), held_by=stage) for name in names))


def test_what_published_pods_wait_for_is_said_once_per_profile_and_service():
    watcher = two_profiles().lead(*pods_of("unknown", 3), *pods_of("berth", 2))
    watcher.advance(10)

    found_in(watcher, "pending", "unknown-0", "unknown-1", "unknown-2")
    found_in(watcher, "ranked", "berth-0", "berth-1")
    watcher.advance(10)
    found_in(watcher, "pending", "unknown-0")

    first, second = watcher.of(Warn)
    assert first.fields["profile"] == "unknown"
    assert first.fields["waits_for"] == "scorer"
    assert "a scorer whose configuration has the profile 'unknown'" in first.fields["reason"]
    assert (second.fields["profile"], second.fields["waits_for"]) == ("berth", "binder")
    assert watcher.core.figures(watcher.now).stalled == {
        ("unknown", "scorer"): 3,
        ("unknown", "binder"): 0,
        ("berth", "scorer"): 0,
        ("berth", "binder"): 2,
    }


def test_end_of_the_wait_is_said_and_the_next_one_too():
    watcher = two_profiles().lead(*pods_of("berth", 2))
    watcher.advance(10)
    found_in(watcher, "pending", "berth-0", "berth-1")

    watcher.decide("berth-0", Outcome.BOUND)
    assert watcher.of(Note) == []
    watcher.delete(a_pod("berth-1"))
    assert [note.fields["profile"] for note in watcher.of(Note)] == ["berth"]
    watcher.show(a_pod("next"))
    watcher.advance(10)
    found_in(watcher, "pending", "next")

    assert len(watcher.of(Warn)) == 2


def test_attempt_that_was_ranked_waits_for_the_binder():
    watcher = two_profiles().lead(a_pod("web"))
    watcher.advance(10)
    found_in(watcher, "pending", "web")
    watcher.advance(10)
    found_in(watcher, "ranked", "web")

    stalled = watcher.core.figures(watcher.now).stalled
    assert (stalled["berth", "scorer"], stalled["berth", "binder"]) == (0, 1)


def test_pod_that_waits_for_its_volumes_waits_for_no_service():
    watcher = two_profiles().lead(a_pod("web"))
    watcher.decide("web", Outcome.WAITING)
    watcher.advance(10)

    found_in(watcher, "ranked", "web")

    assert watcher.of(Warn) == []
    assert not any(watcher.core.figures(watcher.now).stalled.values())
