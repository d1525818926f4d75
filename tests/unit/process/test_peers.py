"""Other services and their configurations: what differs, in words, once, and until it is over."""

from unittest.mock import patch
from uuid import uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from berth.api.config.encode import ConfigurationDigests
from berth.errors import DecodeError
from berth.lifecycle.peers import (
    ANSWERS,
    EVERY_SECONDS,
    FORGOTTEN_SECONDS,
    GONE_SECONDS,
    GRACE_SECONDS,
    GROUPS,
    HELD_SECONDS,
    MAX_BYTES,
    MAX_DIFFERENCES,
    MAX_HELD,
    MAX_NAME,
    MAX_PEERS,
    MESSAGE_SECONDS,
    MOST_ANNOUNCEMENTS,
    NEW_PEERS,
    Announcement,
    Difference,
    PeerReporter,
    Peers,
)
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import present
from berth.messages.encoding import decode_versioned, encode
from berth.observability.health import Health
from berth.settings.settings import Settings
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock

OWN = ConfigurationDigests(config="c1", profiles={"berth": "b1", "late": "l1"}, settings="s1")


def peers():
    return Peers(OWN, service="watcher", identity="w")


def scorer(identity="s", *, config="c2", profiles=None, settings="s1", leaving=False):
    return Announcement(
        service="scorer",
        identity=identity,
        config=config,
        profiles={"berth": "b1", "late": "l1"} if profiles is None else profiles,
        settings=settings,
        leaving=leaving,
    )


def sentences(known, now=0.0):
    return [known.sentence(difference, who) for difference, who in known.differences(now).items()]


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(scorer(config="c1", profiles={}), [], id="the same file"),
        pytest.param(
            scorer(profiles={}),
            ["scorer 's' has another configuration file than this watcher, and one of them reads only a part of it"],
            id="another file of a service that reads a part of it",
        ),
        pytest.param(scorer(), [], id="a file that is written otherwise and means the same"),
        pytest.param(scorer(config="", profiles={}), [], id="no digest"),
        pytest.param(
            scorer(profiles={"berth": "b2", "late": "l1"}),
            ["profile 'berth' has other plugins or arguments in scorer 's' than in this watcher"],
            id="other arguments",
        ),
        pytest.param(
            scorer(profiles={"berth": "b1"}),
            ["profile 'late' of this watcher is not in the configuration of scorer 's'"],
            id="a profile missing there",
        ),
        pytest.param(
            scorer(profiles={"berth": "b1", "late": "l1", "new": "n1"}),
            ["profile 'new' of scorer 's' is not in the configuration of this watcher"],
            id="a profile missing here",
        ),
        pytest.param(
            scorer(settings="s2"),
            ["settings outside the profiles differ between scorer 's' and this watcher"],
            id="other settings",
        ),
    ],
)
def test_a_difference_is_named_by_profile(other, expected):
    known = peers()
    known.receive(other, 0.0)
    assert sentences(known) == expected


def test_one_sentence_names_all_processes_with_the_same_difference_the_first_three_by_name():
    known = peers()
    for number in range(5):
        known.receive(scorer(f"s{number}", profiles={"berth": "b1"}), 0.0)
    assert sentences(known) == [
        "profile 'late' of this watcher is not in the configuration of 5 scorers ('s0', 's1', 's2' and 2 more)"
    ]


def test_a_digest_in_messages_counts_only_if_its_writer_does_not_announce_itself():
    known = peers()
    known.read("binder", "c9", "berth", 0.0)
    assert sentences(known, GRACE_SECONDS - 1) == []
    (sentence,) = sentences(known, GRACE_SECONDS)
    assert sentence.startswith("messages for profile 'berth' come from a binder with another configuration than that")
    known.pass_time(MESSAGE_SECONDS)
    assert sentences(known, MESSAGE_SECONDS) == []


def test_messages_of_a_process_that_has_left_are_no_difference():
    known = peers()
    known.receive(scorer(profiles={}), 0.0)
    known.receive(scorer(profiles={}, leaving=True), 1.0)
    known.read("scorer", "c2", "berth", 1.0)
    known.read("scorer", "c2", "berth", 2 * GRACE_SECONDS)
    assert sentences(known, 2 * GRACE_SECONDS) == []


def test_a_process_without_a_digest_compares_nothing():
    known = Peers(service="watcher", identity="w")
    known.receive(scorer(), 0.0)
    known.read("binder", "c9", "berth", 0.0)
    assert known.differences(100.0) == {}


def pass_time(known, begin, end):
    """Call as the reporter does; returns the processes that have gone."""
    gone, now = [], begin
    while now <= end:
        gone += known.pass_time(now)
        now += EVERY_SECONDS
    return [one.identity for one in gone]


def test_a_silent_process_has_gone_once_and_is_listed_for_ten_minutes():
    known = peers()
    known.receive(scorer(profiles={}), 0.0)
    assert pass_time(known, 0.0, GONE_SECONDS + 60) == ["s"]
    assert [(one.identity, seconds) for one, seconds in known.gone(70.0)] == [("s", 70.0)]
    assert known.differences(70.0) == {}
    pass_time(known, 80.0, FORGOTTEN_SECONDS)
    assert known.gone(FORGOTTEN_SECONDS) == []


def test_a_process_that_stops_is_not_missed():
    known = peers()
    known.receive(scorer(), 0.0)
    known.receive(scorer(leaving=True), 1.0)
    assert pass_time(known, 0.0, 100.0) == []


def an_announcement(service, identity, **changes):
    known = Peers(OWN, service=service, identity=identity).own
    return msgspec.structs.replace(known, **changes)


def test_a_feature_is_used_once_a_process_of_each_service_has_announced_it_and_all_have():
    known = peers()
    assert known.lacking(GROUPS, "berth") == "no scorer of the profile has announced itself"
    known.receive(an_announcement("scorer", "s1"), 0.0)
    assert known.lacking(GROUPS, "berth") == "no binder of the profile has announced itself"
    known.receive(an_announcement("binder", "b1"), 0.0)
    assert known.lacking(GROUPS, "berth") == ""
    known.receive(an_announcement("scorer", "old", features=()), 0.0)
    assert known.lacking(GROUPS, "berth") == "scorer 'old' cannot read messages about groups: update it"
    known.receive(an_announcement("scorer", "old", features=(), profiles={"another": "a1"}), 0.0)
    assert known.lacking(GROUPS, "berth") == ""
    known.receive(an_announcement("binder", "b1", leaving=True), 1.0)
    assert known.lacking(GROUPS, "berth") == "no binder of the profile has announced itself"


def test_nobody_has_gone_while_this_process_did_not_listen():
    known = peers()
    known.pass_time(0.0)
    known.receive(scorer(), 1.0)
    assert known.pass_time(300.0) == []
    assert pass_time(known, 305.0, 330.0) == ["s"]


def test_no_more_processes_are_remembered_than_the_limit():
    known = peers()
    for number in range(MAX_PEERS + 100):
        known.receive(scorer(f"s{number}", profiles={}), 0.0)
    ((_, who), *_) = known.differences(0.0).items()
    assert len(who) == MAX_PEERS


def test_a_process_that_announces_itself_keeps_its_place_and_a_new_one_takes_that_of_a_silent_one():
    known = peers()
    for number in range(MAX_PEERS):
        known.receive(scorer(f"s{number}", profiles={}), 0.0)
    known.receive(Announcement(service="binder", identity="b", config="c2"), 1.0)  # has a place of its own
    known.receive(scorer("early", profiles={}), 1.0)
    for number in range(1, MAX_PEERS):
        known.receive(scorer(f"s{number}", profiles={}), HELD_SECONDS)
    known.receive(scorer("late", profiles={}), HELD_SECONDS + 1)
    named = {who for found in known.differences(HELD_SECONDS + 1).values() for who in found}
    assert named == {"b", "late", *(f"s{number}" for number in range(1, MAX_PEERS))}


def test_of_thousands_of_made_up_processes_few_are_read_and_all_are_forgotten_after_ten_seconds():
    known, read = peers(), 0
    known.receive(scorer("honest"), 0.0)
    for number in range(30_000):
        now = 1.0 + number / 10_000
        one = scorer(f"ghost-{number}", profiles={"berth": "other"})
        if known.is_read(one.subject, 400, now):
            read += 1
            known.receive(one, now)
        if number % 10_000 == 0:
            assert known.is_read(scorer("honest").subject, 400, now)
    assert 0 < read <= 3 * NEW_PEERS + NEW_PEERS
    known.receive(scorer("honest"), 14.0)
    assert known.pass_time(14.0) == []
    assert known.differences(14.0) == {}
    assert known.services() == {"scorer"}


@pytest.mark.parametrize(
    ("size", "after", "is_read"),
    [
        pytest.param(MAX_BYTES + 1, 60.0, False, id="too long"),
        pytest.param(MAX_BYTES, 1.0, True, id="long, after a second"),
        pytest.param(MAX_BYTES, 0.5, False, id="long, at once again"),
        pytest.param(300, 0.0, True, id="short, such as the last one"),
    ],
)
def test_of_a_known_process_a_long_announcement_is_read_once_a_second(size, after, is_read):
    known = peers()
    known.receive(scorer(), 5.0)
    assert known.is_read(scorer().subject, size, 5.0 + after) is is_read


def test_an_announcement_of_all_attempts_is_short_enough_to_be_read():
    held = tuple(f"{uuid4()}.12.{number}" for number in range(MAX_HELD))
    assert len(encode(msgspec.structs.replace(scorer(), held=held))) < MAX_BYTES


def test_no_more_differences_are_shown_than_the_limit():
    known = peers()
    for number in range(8):
        known.receive(scorer(f"s{number}", profiles={f"p{number}-{each}": "x" for each in range(200)}), 0.0)
    known.read("binder", "c" * 5000, "p" * 5000, 0.0)
    assert len(known.differences(100.0)) == MAX_DIFFERENCES
    assert all(len(each.profile) <= MAX_NAME for each in known.differences(100.0))


def test_differences_that_anybody_announces_by_the_thousand_are_not_all_looked_at():
    known = peers()
    for number in range(MAX_PEERS):
        known.receive(scorer(f"s{number}", profiles={f"p{number}-{each}": "x" for each in range(256)}), 0.0)
    with patch("berth.lifecycle.peers.Difference", side_effect=Difference) as made:
        assert len(known.differences(100.0)) == MAX_DIFFERENCES
    assert made.call_count <= 2 * MAX_DIFFERENCES


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"identity": "i" * 257}, id="a long name"),
        pytest.param({"identity": "i", "profiles": {str(number): "d" for number in range(257)}}, id="many profiles"),
        pytest.param({"identity": "i", "profiles": {"p" * 257: "d"}}, id="a long profile"),
    ],
)
def test_an_announcement_beyond_the_limits_is_refused(fields):
    with pytest.raises(DecodeError):
        decode_versioned(msgspec.json.encode({"schema": 1, "service": "scorer", **fields}), Announcement, "it")


# Showing


def reporter():
    known, health, meter = peers(), Health(), RecordingMeter()
    return known, health, meter, PeerReporter(known, health, meter)


def test_a_difference_is_logged_once_shown_in_readyz_and_counted_until_it_is_over():
    known, health, meter, reporting = reporter()
    with capture_logs() as logs:
        for number in range(3):
            known.receive(scorer("s1", profiles={"berth": "b1"}), 5.0 * number)
            known.receive(scorer("s2", profiles={"berth": "b1"}), 5.0 * number)
            reporting.review(5.0 * number)
        text = "profile 'late' of this watcher is not in the configuration of 2 scorers ('s1', 's2')"
        assert [(line["event"], line["log_level"]) for line in logs] == [(text, "warning")]
        assert meter.value("berth_configuration_mismatch", service="scorer", profile="late") == 2
        assert f"[+]configuration differs: {text}" in health.verbose()
        assert health.is_ready, "a warning, never a stop"
        known.receive(scorer("s1"), 15.0)
        known.receive(scorer("s2", leaving=True), 15.0)
        reporting.review(15.0)
    assert [line["event"] for line in logs[1:]] == [f"no longer: {text}"]
    assert meter.value("berth_configuration_mismatch", service="scorer", profile="late") == 0
    assert ("berth_configuration_mismatch", "scorer", "late") in meter.values, "0, since a scorer is there"
    assert "[+]configuration the same as everywhere" in health.verbose()


def test_a_service_that_has_gone_is_logged_once():
    known, _, _, reporting = reporter()
    known.receive(scorer(), 0.0)
    with capture_logs() as logs:
        for now in range(0, 60, 5):
            reporting.review(float(now))
    assert [line["event"] for line in logs] == ["scorer 's' has been silent for 16 s, and did not stop"]


# On a bus


def process(name, profiles, clock):
    digests = ConfigurationDigests(config=str(sorted(profiles.items())), profiles=profiles, settings="s")
    return Process(
        name=name,
        metrics=RecordingMeter(),
        settings=Settings(identity=f"{name}-1"),
        clock=clock,
        peers=Peers(digests, service=name, identity=f"{name}-1"),
    )


@pytest.fixture
async def bus():
    made = MemoryBus()
    made.apply()
    return made


@pytest.mark.slow
async def test_two_services_on_one_bus_find_out_what_differs_and_that_it_is_over(bus):
    clock = TickingClock()
    watcher, ranker = process("watcher", {"a": "1", "b": "1"}, clock), process("scorer", {"a": "2"}, clock)
    session = await bus.connect(name="watcher")
    async with present(session, watcher, stats=lambda: {"queued": 3}):
        other = await bus.connect(name="scorer")
        async with present(other, ranker):
            await clock.run(2 * EVERY_SECONDS)
            (theirs, ours) = await session.services()
            assert ours.stats["queued"] == 3
            assert ours.stats["profiles"] == {"a": "1", "b": "1"}
            assert ours.stats["differences"] == [
                "profile 'a' has other plugins or arguments in scorer 'scorer-1' than in this watcher",
                "profile 'b' of this watcher is not in the configuration of scorer 'scorer-1'",
            ]
            assert len(theirs.stats["differences"]) == 2
            ranker.stopping.set()
        await other.close()
        await clock.run(2 * EVERY_SECONDS)
        (ours,) = await session.services()
        assert (ours.stats["differences"], ours.stats["gone"]) == ([], [])


async def test_the_watcher_knows_for_seconds_which_attempts_a_scorer_says_to_hold(bus):
    clock = TickingClock()
    watcher, ranker = process("watcher", {"a": "1"}, clock), process("scorer", {"a": "1"}, clock)
    session, other = await bus.connect(name="watcher"), await bus.connect(name="scorer")
    async with present(session, watcher):
        async with present(other, ranker, held=lambda: ["web.1.1", *(f"more.{number}.1" for number in range(4_096))]):
            await clock.run(EVERY_SECONDS)
            assert watcher.peers.hold("web.1.1", clock.now())
            assert not watcher.peers.hold("web.1.2", clock.now())
        await clock.run(HELD_SECONDS + 1)
        assert not watcher.peers.hold("web.1.1", clock.now())


def test_a_new_process_hastens_the_next_announcement_and_made_up_ones_not_two_in_a_row():
    known = peers()

    def pauses_with(announced: Announcement) -> int:
        pauses = known.pauses()
        first = next(pauses)
        known.receive(announced, 0.0)
        return len([first, *pauses])

    assert list(known.pauses()) == [EVERY_SECONDS / ANSWERS] * ANSWERS
    assert [pauses_with(each) for each in (scorer(), scorer("t"), scorer("t"), scorer("u"))] == [1, ANSWERS, ANSWERS, 1]


async def test_a_flood_of_announcements_reaches_a_service_up_to_its_limit(bus):
    watcher = process("watcher", {"a": "1"}, TickingClock())
    session, flooding = await bus.connect(name="watcher"), await bus.connect(name="scorer")
    with patch.object(watcher.peers, "is_read", return_value=False) as reading:
        async with present(session, watcher):
            for number in range(3 * MOST_ANNOUNCEMENTS):
                await flooding.broadcast(f"berth.announce.berth-scorer.{number}", b"{}")
    assert reading.call_count == MOST_ANNOUNCEMENTS


def test_what_another_service_than_a_scorer_says_to_hold_does_not_count():
    peers = Peers(service="watcher", identity="w")

    peers.receive(Announcement(service="metrics-collector", identity="c", held=("web.1.1",)), 1.0)

    assert not peers.hold("web.1.1", 1.0)


@pytest.mark.slow
async def test_a_killed_service_is_listed_as_gone(bus):
    clock = TickingClock()
    watcher, ranker = process("watcher", {"a": "1"}, clock), process("scorer", {"a": "1"}, clock)
    session = await bus.connect(name="watcher")
    async with present(session, watcher):
        killed = await bus.connect(name="scorer")
        async with present(killed, ranker):
            await clock.run(EVERY_SECONDS)
            bus.cut(killed)
        await clock.run(GONE_SECONDS + EVERY_SECONDS)
        (ours,) = await session.services()
        assert [one["identity"] for one in ours.stats["gone"]] == ["scorer-1"]


async def test_an_announcement_for_another_process_is_ignored(bus):
    clock = TickingClock()
    watcher = process("watcher", {"a": "1"}, clock)
    session = await bus.connect(name="watcher")
    async with present(session, watcher):
        forged = Announcement(service="binder", identity="b", config="x", profiles={})
        await session.broadcast("berth.announce.berth-scorer.b", encode(forged))
        await session.broadcast(forged.subject, b"{")
        await clock.run(EVERY_SECONDS)
        assert watcher.peers.differences(clock.now()) == {}
