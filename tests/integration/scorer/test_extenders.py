"""Extenders of a scorer: what they may do wrong, and that other pods are ranked meanwhile. The servers are real."""

import asyncio
import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration, ExtenderTls
from berth.api.config.extenders import shown_url
from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeStatus
from berth.api.pod import Container, Pod, PodSpec, ResourceRequirements
from berth.api.trimming import with_whole
from berth.bus.stages import publish_pending
from berth.errors import PermanentError
from berth.extenders.client import Extenders, tls_context
from berth.extenders.wire import ExtenderError
from berth.framework.cycle import ToExtend
from berth.framework.interface import Nomination
from berth.framework.preemption import NO_CANDIDATE, Evictions
from berth.framework.status import Code
from berth.lifecycle.process import Process
from berth.messages.attempts import Candidate, DeadLetter, Pending, Ranked
from berth.messages.encoding import decode
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker
from berth_scorer.core import SUSPECT_DELIVERIES
from berth_scorer.service import serve
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.servers.extender import Raw, RecordingExtender, recording_extender

GPU = "example.com/gpu"
SOON = timedelta(milliseconds=300)


@pytest.fixture
async def bus():
    return MemoryBus()


@pytest.fixture
async def session(bus):
    made = await bus.connect(name="test")
    await made.apply()
    yield made
    await made.close()


@pytest.fixture
def extender():
    with recording_extender() as made:
        made.answers["x/filter"] = lambda args: {"NodeNames": args["NodeNames"]}
        yield made


def configured(url: str, **fields) -> ExtenderConfiguration:
    found = {"url_prefix": url, "name": shown_url(url), "filter_verb": "filter", "node_cache_capable": True}
    return ExtenderConfiguration(**{**found, **fields})


def of(extender: RecordingExtender, **fields) -> ExtenderConfiguration:
    return configured(f"{extender.url}/t/x", **fields)


def node(name: str) -> Node:
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110", GPU: "1"}
    return Node(metadata=ObjectMeta(name=name, uid=name), status=NodeStatus(allocatable=allocatable))


def pod(name: str, resource: str = GPU, **requests: str) -> Pod:
    wanted = ResourceRequirements(requests={resource: "1", **requests})
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=name, resource_version="1"),
        spec=PodSpec(scheduler_name="berth", containers=[Container(name="c", resources=wanted)]),
    )


NODES = {name: node(name) for name in ("a", "b")}


async def asked(*configurations: ExtenderConfiguration, nominated: str = ""):
    async with Extenders(configurations, RecordingMeter()) as extenders:
        return await extenders.ask(pod("web"), ToExtend(tuple(NODES), nominated), NODES)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        pytest.param(Raw(500), "failed filter with extender at URL {url}/t/x/filter, code 500", id="500"),
        pytest.param(
            Raw(307, headers=(("Location", "http://127.0.0.1:1/"),)),
            "failed filter with extender at URL {url}/t/x/filter, code 307",
            id="a redirect",
        ),
        pytest.param(Raw(200, b"junk"), 'reading the answer of extender "{url}/t/x": JSON is malformed', id="junk"),
        pytest.param(Raw(200, b""), 'reading the answer of extender "{url}/t/x": Input data was truncated', id="empty"),
        pytest.param(Raw(200, b'{"NodeNames": NaN}'), 'reading the answer of extender "{url}/t/x"', id="NaN"),
        pytest.param(Raw(200, b'{"NodeNames": "a"}'), "Expected `array | null`, got `str`", id="a text for a list"),
        pytest.param(Raw(200, b"[" * 100_000), 'reading the answer of extender "{url}/t/x"', id="endless nesting"),
        pytest.param(Raw(200, b'{"Error": "\xff"}'), 'reading the answer of extender "{url}/t/x"', id="no UTF-8"),
        pytest.param({"NodeNames": ["c"]}, 'claims a filtered node "c" which is not found', id="an unknown node"),
        pytest.param(Raw(200, b" " * 2**21), "its answer has more than", id="more than it may have"),
        pytest.param({"Error": "no \x1b[31mroom"}, "no \\x1b[31mroom", id="an error of its own"),
        pytest.param(Raw(wait=30), "calling extender at URL {url}/t/x/filter: no answer within 0.3 s", id="nothing"),
    ],
)
async def test_a_wrong_answer_to_filter_is_an_error_with_the_url(extender, answer, sentence):
    extender.answers["x/filter"] = lambda _: answer
    with pytest.raises(ExtenderError) as error:
        await asked(of(extender, timeout=SOON))
    assert sentence.format(url=extender.url) in str(error.value)


@pytest.mark.parametrize("ignorable", [False, True])
async def test_the_binder_has_nodes_filtered_without_points(extender, ignorable):
    extender.answers["x/filter"] = lambda _: {"NodeNames": ["a"]}
    extender.answers["y/filter"] = lambda _: Raw(503)
    first = of(extender, prioritize_verb="prioritize")
    failing = configured(f"{extender.url}/t/y", ignorable=ignorable)
    async with Extenders([first, failing], RecordingMeter()) as extenders:
        if ignorable:
            assert (await extenders.filter(pod("web"), NODES)).left == {"a"}
        else:
            with pytest.raises(ExtenderError, match="code 503"):
                await extenders.filter(pod("web"), NODES)
    assert [request.path for request in extender.requests] == ["x/filter", "y/filter"]


CANDIDATES = [Nomination("a", ("u1", "u2"), 1), Nomination("b", ("u3",))]
VICTIMS = {uid: pod(uid) for uid in ("u1", "u2", "u3")}
ALL = {"a": {"Pods": [{"UID": "u2"}, {"UID": "u1"}]}, "b": {"pods": [{"uid": "u3"}], "NumPDBViolations": 7}}


async def asked_about_evictions(*configurations: ExtenderConfiguration) -> Evictions:
    async with Extenders(configurations, RecordingMeter()) as extenders:
        return await extenders.ask_about_evictions(pod("web"), CANDIDATES, VICTIMS)


@pytest.mark.parametrize(
    ("answer", "left", "message"),
    [
        pytest.param(ALL, "ab", NO_CANDIDATE, id="all, in any order and letters"),
        pytest.param({"b": ALL["b"]}, "b", NO_CANDIDATE, id="one of them"),
        pytest.param({}, "", NO_CANDIDATE, id="none"),
        pytest.param(None, "", NO_CANDIDATE, id="null"),
        pytest.param({**ALL, "a": {"Pods": [{"UID": "u1"}]}}, "b", NO_CANDIDATE, id="fewer victims"),
        pytest.param({**ALL, "b": {"Pods": [{"UID": "u3"}, {"UID": "u1"}]}}, "a", NO_CANDIDATE, id="more victims"),
        pytest.param({"c": ALL["b"]}, "", 'was not asked about evictions on node "c"', id="another node"),
        pytest.param({"a": {}}, "", 'expected at least one victim pod on node "a"', id="no victims"),
        pytest.param({"a": None}, "", 'expected at least one victim pod on node "a"', id="null for victims"),
        pytest.param({"a": {"Pods": [None]}}, "", NO_CANDIDATE, id="null for a victim"),
        pytest.param({"a": {"Pods": "all"}}, "", "Expected `array | null`, got `str`", id="a text for a list"),
        pytest.param({"a": {"Pods": [{"UID": 3}]}}, "", "Expected `str | null`, got `int`", id="a number for a uid"),
        pytest.param([], "", "Expected `object | null`, got `array`", id="a list for nodes"),
    ],
)
async def test_an_extender_leaves_evictions_out_and_names_no_others(extender, answer, left, message):
    extender.answers["x/preempt"] = lambda _: {"NodeNameToMetaVictims": answer}
    evictions = await asked_about_evictions(of(extender, preempt_verb="preempt"))
    assert "".join(each.node for each in evictions.left) == left
    assert message in evictions.message


async def test_extenders_are_asked_about_the_evictions_that_those_before_leave(extender):
    extender.answers["x/preempt"] = lambda _: {"NodeNameToMetaVictims": {"b": ALL["b"]}}
    extender.answers["y/preempt"] = lambda args: {"NodeNameToMetaVictims": args["NodeNameToMetaVictims"]}
    extender.answers["z/preempt"] = lambda _: Raw(500)
    y, z = (configured(f"{extender.url}/t/{name}", preempt_verb="preempt", ignorable=name == "z") for name in "yz")
    without = of(extender, preempt_verb="")
    strange = of(extender, preempt_verb="preempt", managed_resources=frozenset({"example.com/other"}))
    evictions = await asked_about_evictions(of(extender, preempt_verb="preempt"), without, strange, y, z)
    assert evictions.left == (CANDIDATES[1],)
    first, second, _ = (request.body for request in extender.requests)
    assert first["NodeNameToVictims"] is None
    assert first["NodeNameToMetaVictims"] == {
        "a": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1},
        "b": {"Pods": [{"UID": "u3"}], "NumPDBViolations": 0},
    }
    assert list(second["NodeNameToMetaVictims"]) == ["b"]


async def test_an_extender_without_a_cache_of_its_own_gets_the_victims(extender):
    extender.answers["x/preempt"] = lambda _: {"NodeNameToMetaVictims": ALL}
    evictions = await asked_about_evictions(of(extender, preempt_verb="preempt", node_cache_capable=False))
    assert evictions.left == tuple(CANDIDATES)
    (request,) = extender.requests
    assert request.body["NodeNameToMetaVictims"] is None
    sent = request.body["NodeNameToVictims"]["a"]
    assert [each["metadata"]["name"] for each in sent["Pods"]] == ["u1", "u2"]
    assert sent["NumPDBViolations"] == 1


async def test_passwords_and_tokens_of_the_url_are_not_shown(extender):
    url = extender.url.replace("http://", "http://berth:hunter2@") + "/t/x?token=hunter3"
    with pytest.raises(ExtenderError) as error:
        await asked(configured(url, filter_verb="nothing"))
    assert "hunter" not in str(error.value)
    with pytest.raises(ExtenderError) as error:
        await asked(configured("http://berth:hunter2@127.0.0.1:1/x"))
    assert "hunter" not in str(error.value)
    assert "127.0.0.1:1/x/filter" in str(error.value)


async def test_user_and_password_of_the_url_are_sent(extender):
    await asked(configured(extender.url.replace("http://", "http://berth:pass@") + "/t/x"))
    assert extender.requests[0].headers["Authorization"].startswith("Basic ")


async def test_one_that_may_be_ignored_does_not_fail_the_pod(extender):
    extender.answers["y/filter"] = lambda _: Raw(500)
    extension = await asked(of(extender), configured(f"{extender.url}/t/y", ignorable=True))
    assert extension.left == {"a", "b"}


async def test_the_next_is_asked_about_what_the_first_leaves_and_none_when_that_is_nothing(extender):
    extender.answers["x/filter"] = lambda _: {"NodeNames": ["b"], "FailedNodes": {"a": "full", "c": "unknown"}}
    extender.answers["y/filter"] = lambda _: {"FailedNodes": {"b": "x"}, "FailedAndUnresolvableNodes": {"b": "far"}}
    last = configured(f"{extender.url}/t/z")
    extension = await asked(of(extender), configured(f"{extender.url}/t/y"), last)
    assert [request.body["NodeNames"] for request in extender.requests] == [["a", "b"], ["b"]]
    assert extension.left == frozenset()
    assert {name: (status.code, status.reasons) for name, status in extension.rejected.items()} == {
        "a": (Code.UNSCHEDULABLE, ("full",)),
        "b": (Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("far",)),
    }


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        # 7 x weight 3 x 10
        pytest.param([{"Host": "a", "Score": 7}, {"host": "b", "SCORE": None}], {"a": 210, "b": 0}, id="points"),
        pytest.param([{"Host": "a", "Score": 1}, {"Host": "a", "Score": 2}], {"a": 90}, id="a node twice"),
        pytest.param([{"Host": "elsewhere", "Score": 7}], {}, id="an unknown node"),
        pytest.param([{"Host": "a", "Score": 1.5}], {}, id="no whole number"),
        pytest.param([{"Host": "a", "Score": 2**63}], {}, id="too large for 64 bits"),
        pytest.param([{"Host": "a", "Score": 2**40}], {}, id="too many points"),
        pytest.param(None, {}, id="null"),
        pytest.param({"Host": "a"}, {}, id="no list"),
        pytest.param(Raw(500), {}, id="an error"),
    ],
)
async def test_points_are_weighted_and_scaled_and_wrong_ones_do_not_count(extender, answer, points):
    extender.answers["x/prioritize"] = lambda _: answer
    one = of(extender, prioritize_verb="prioritize", weight=3)
    extension = await asked(one)
    assert extension.points == {one.name: points}


async def test_a_single_node_that_is_left_is_not_prioritized(extender):
    extender.answers["x/filter"] = lambda _: {"NodeNames": ["b"]}
    extension = await asked(of(extender, prioritize_verb="prioritize", weight=3))
    assert [request.path for request in extender.requests] == ["x/filter"]
    assert extension.left == {"b"}


async def test_the_nominated_node_is_asked_about_first(extender):
    extension = await asked(of(extender), nominated="b")
    assert [request.body["NodeNames"] for request in extender.requests] == [["b"]]
    assert (extension.asked, extension.left) == ({"b"}, {"b"})


async def test_all_nodes_are_asked_about_when_the_nominated_one_is_not_left_or_that_fails(extender):
    for first in ({"NodeNames": []}, Raw(500)):
        extender.requests.clear()
        extender.answers["x/filter"] = lambda args, first=first: (
            first if len(args["NodeNames"]) == 1 else {"NodeNames": args["NodeNames"]}
        )
        extension = await asked(of(extender), nominated="b")
        assert [request.body["NodeNames"] for request in extender.requests] == [["b"], ["a", "b"]]
        assert extension.left == {"a", "b"}


async def test_an_extender_without_nodes_gets_them_whole_or_as_far_as_berth_has_them(extender):
    whole = with_whole(node("a"), b'{"kind": "Node", "metadata": {"name": "a"}, "status": {"nodeInfo": {}}}')
    nodes = {"a": whole, "b": node("b")}
    extender.answers["x/filter"] = lambda args: {"Nodes": args["Nodes"]}
    async with Extenders([of(extender, node_cache_capable=False)], RecordingMeter()) as extenders:
        extension = await extenders.ask(pod("web"), ToExtend(("a", "b")), nodes)
    (request,) = extender.requests
    assert request.body["Nodes"]["items"] == [
        {"metadata": {"name": "a"}, "status": {"nodeInfo": {}}},
        json.loads(msgspec.json.encode(node("b"))),
    ]
    assert request.body["NodeNames"] is None
    assert extension.left == {"a", "b"}


def test_a_certificate_that_cannot_be_read_is_said_at_the_start(tmp_path: Path):
    async def start() -> None:
        tls = ExtenderTls(cert_file=str(tmp_path / "cert.pem"), key_file=str(tmp_path / "key.pem"))
        async with Extenders([configured("https://h/x", tls=tls)], RecordingMeter()):
            pass

    with pytest.raises(PermanentError, match='reading the tlsConfig of extender "https://h/x"'):
        asyncio.run(start())


# --- in the scorer


@asynccontextmanager
async def scorer(bus, *configurations):
    process = Process(name="scorer", metrics=RecordingMeter())
    configuration = replace(read_configuration(None), extenders=configurations)
    made = Ranker(profiles=profiles_of(configuration), config="c", identity="s1", best=8)
    task = asyncio.create_task(serve(process, bus, made, configurations))
    try:
        async with asyncio.timeout(30):
            while not process.health.is_ready:  # noqa: ASYNC110 - readiness has no event
                await asyncio.sleep(0.005)
        yield process
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 30)


async def write_node(session, name: str) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(node(name))))
    await session.put("cluster", key("node", name), encode_entry(entry))


async def publish(session, one: Pod, attempt: int = 1) -> None:
    await publish_pending(session, Pending(attempt=f"{one.uid}.1.{attempt}", profile="berth", pod=one))


async def ranked(session, *names: str) -> dict:
    """The rankings of these pods, once all are there."""
    async with asyncio.timeout(30):
        while True:
            stored = [decode(each.data, Ranked) async for each in session.scan("RANKED", "berth.ranked.>")]
            found = {message.pod.metadata.name: message for message in stored}
            if set(names) <= found.keys():
                return found
            await asyncio.sleep(0.01)


def make_suspect(session) -> None:
    """Have the first message's next delivery be its fourth."""
    queue_of(session)._delivered[1] = SUSPECT_DELIVERIES - 1


def queue_of(session):
    return session._store.queue("PENDING").consumers["scorer"]


async def until(holds) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - the server is in a thread, and the bus has no event for it
            await asyncio.sleep(0.005)


async def test_a_suspect_that_has_ended_scorers_is_given_up_and_no_extender_is_asked(bus, session, extender):
    await write_node(session, "a")
    await session.put("tries", "pod.web", b"3")
    await publish(session, pod("web"))
    make_suspect(session)
    async with scorer(bus, of(extender)):
        message = (await ranked(session, "web"))["web"]
        await until(lambda: queue_of(session).state().unacknowledged == 0)
    letters = [each async for each in session.scan("dead", "berth.dead.>")]
    assert message.error == "ranking ended 3 scorers before this one"
    assert (len(letters), extender.requests) == (1, [])


@pytest.mark.parametrize("is_suspect", [False, True])
async def test_other_pods_are_ranked_while_an_extender_is_slow(bus, session, extender, is_suspect):
    extender.answers["x/filter"] = lambda _: Raw(wait=30)
    await write_node(session, "a")
    slow = of(extender, managed_resources=frozenset({GPU}), timeout=timedelta(seconds=30))
    await publish(session, pod("slow"))
    if is_suspect:
        make_suspect(session)
    async with scorer(bus, slow):
        await until(lambda: extender.requests)
        for number in range(3):
            await publish(session, pod(f"quick-{number}", "cpu"))
        found = await ranked(session, *(f"quick-{number}" for number in range(3)))
        assert "slow" not in found
        assert [request.body["Pod"]["metadata"]["name"] for request in extender.requests] == ["slow"]
        tries = await session.get("tries", "pod.slow")
        assert tries is None or tries.data is None


@pytest.mark.parametrize("is_suspect", [False, True])
async def test_a_scorer_that_stops_returns_the_pods_that_it_asks_about(bus, session, extender, is_suspect):
    extender.answers["x/filter"] = lambda _: Raw(wait=30)
    await write_node(session, "a")
    await publish(session, pod("web"))
    if is_suspect:
        make_suspect(session)
    async with scorer(bus, of(extender, timeout=timedelta(seconds=30))):
        await until(lambda: extender.requests)
    async with scorer(bus):  # well before the message's ack_wait
        assert (await ranked(session, "web"))["web"].candidates


@pytest.mark.parametrize("is_suspect", [False, True])
async def test_what_an_extender_fails_with_is_the_pods_error(bus, session, extender, is_suspect):
    extender.answers["x/filter"] = lambda _: Raw(500)
    await write_node(session, "a")
    await publish(session, pod("web"))
    if is_suspect:
        make_suspect(session)
    async with scorer(bus, of(extender)):
        message = (await ranked(session, "web"))["web"]
    assert message.error == f"failed filter with extender at URL {extender.url}/t/x/filter, code 500"


async def test_points_count_and_are_shown_and_no_newcomer_moves_them(bus, session, extender):
    extender.answers["x/prioritize"] = lambda _: [{"Host": "b", "Score": 10}]
    for name in ("a", "b"):
        await write_node(session, name)
    one = of(extender, prioritize_verb="prioritize", weight=2)
    async with scorer(bus, one):
        await publish(session, pod("web"))
        first, second = (await ranked(session, "web"))["web"].candidates
    assert (first.node, first.scores[one.name], second.scores[one.name]) == ("b", 200, 0)
    assert first.total == second.total + 200
    assert first.loss == second.loss


async def test_the_whole_pod_goes_no_further_than_to_the_extender(bus, session, extender, monkeypatch):
    secret = with_whole(pod("web"), b'{"metadata": {"name": "web"}, "spec": {"env": "hunter2"}}')
    await write_node(session, "a")

    def fail(*_args, **_kwargs):
        raise RuntimeError("a bug")

    async with scorer(bus, of(extender)):
        await publish(session, secret)
        message = (await ranked(session, "web"))["web"]
        assert message.pod == pod("web")
        monkeypatch.setattr(Ranker, "answer", fail)
        await publish(session, secret, attempt=2)
        async with asyncio.timeout(30):
            while not (letters := [each async for each in session.scan("dead", "berth.dead.>")]):  # noqa: ASYNC110 - the bus has no event for it
                await asyncio.sleep(0.01)
    assert extender.requests[0].body["Pod"]["spec"] == {"env": "hunter2"}
    assert b"hunter2" not in letters[0].data
    assert '"name":"web"' in decode(letters[0].data, DeadLetter).payload
    assert isinstance(message.candidates[0], Candidate)


def test_tls_of_an_extender_is_verified_unless_the_file_says_otherwise():
    assert tls_context(configured("https://h/x")).verify_mode is ssl.CERT_REQUIRED
    insecure = tls_context(configured("https://h/x", tls=ExtenderTls(insecure=True)))
    assert insecure is not None
    assert insecure.verify_mode is ssl.CERT_NONE
    named = tls_context(configured("https://h/x", tls=ExtenderTls(server_name="other")))
    assert named is not None
    assert named.verify_mode is ssl.CERT_REQUIRED
