"""Extenders that bind pods or are asked about evictions: failures, and slow ones beside the Bindings of other pods."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.kinds import Kind
from berth.api.node import Node
from berth.api.pod import Container, Pod, ResourceRequirements
from berth.extenders.wire import ExtenderError
from berth.framework.extending import Extension
from berth.framework.interface import Nomination
from berth.framework.preemption import Evictions
from berth.kube.http1 import Response
from berth.leader import clients
from berth.lifecycle.coreloop import Inbox
from berth.messages.attempts import Outcome
from berth.profiles.configuration import read_configuration
from berth.settings.settings import Settings
from berth_binder import service
from berth_binder.apicalls import get_pod
from berth_binder.effects import BinderEffects
from berth_binder.events import AskAboutEvictions, AskAboutNodes, Effect, Event, GetPod, NodesAnswered, PostBinding
from berth_binder.settings import BinderSettings, CoreSettings
from harness.worlds.binder_bench import BACKOFF, Bench, make_node, make_pod, posts, ranked, reads

GPU = "example.com/gpu"
FAILED = 424


def of_the_extender(name: str) -> Pod:
    pod = make_pod(name)
    limited = Container(name="c", resources=ResourceRequirements(requests={"cpu": "1"}, limits={GPU: "1"}))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, containers=[limited]))


def extended(bench: Bench) -> Bench:
    binder = ExtenderConfiguration(
        url_prefix="http://x", name="http://x", bind_verb="bind", managed_resources=frozenset({GPU})
    )
    bench.profiles["berth"].extenders = (binder,)
    return bench


def by_extender(effects: list[Effect]) -> list[bool]:
    return [effect.by_extender for effect in effects if isinstance(effect, PostBinding)]


def test_only_pods_of_the_extender_are_bound_by_it():
    bench = extended(Bench())
    assert by_extender(bench.take(ranked(bench.show(of_the_extender("gpu")), "n1"))) == [True]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web")), "n1"))) == [False]


def test_pods_at_a_slow_extender_hold_up_no_binding():
    bench = extended(Bench(nodes=5, settings=CoreSettings(max_in_flight=1, backoff=BACKOFF)))
    for number in range(3):
        effects = bench.take(ranked(bench.show(of_the_extender(f"gpu-{number}")), "n1"))
        assert by_extender(effects) == [True]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web-0")), "n2"))) == [False]
    assert by_extender(bench.take(ranked(bench.show(make_pod("web-1")), "n3"))) == []  # the one place is taken
    assert bench.core.in_flight == 4


def test_a_place_is_free_again_only_when_its_own_request_is_answered():
    bench = extended(Bench(settings=CoreSettings(max_in_flight=1, backoff=BACKOFF)))
    slow = bench.show(of_the_extender("gpu"))
    bench.take(ranked(slow, "n1"))
    bench.take(ranked(bench.show(make_pod("web-0")), "n2"))
    assert posts(bench.answer(slow, 201)) == []
    assert posts(bench.take(ranked(bench.show(make_pod("web-1")), "n3"))) == []


def test_what_the_extender_says_is_the_pods_error_and_its_node_is_free():
    bench = extended(Bench(nodes=1, cpu="1"))
    pod = bench.show(of_the_extender("gpu"))
    bench.take(ranked(pod, "n1"))
    effects = bench.answer(pod, FAILED, failure="the device is gone")
    assert reads(effects) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message) == (Outcome.ERROR, "the device is gone")
    assert len(bench.cache.assumed_pods) == 0


def test_an_api_server_that_does_not_show_the_pod_is_asked_again():
    bench = extended(Bench())
    pod = bench.show(of_the_extender("gpu"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 0)
    assert bench.decisions == []
    assert reads(bench.wait(10)) == ["gpu"]


# Questions before evictions.


@pytest.mark.parametrize(
    ("fields", "called", "whole"),
    [
        pytest.param({"filter_verb": "f"}, True, {"node"}, id="it filters nodes, which it is sent"),
        pytest.param({"filter_verb": "f", "node_cache_capable": True}, True, set(), id="it knows the nodes"),
        pytest.param({"preempt_verb": "p"}, True, set(), id="it filters evictions"),
        pytest.param({"bind_verb": "b"}, True, set(), id="it binds"),
        pytest.param({"prioritize_verb": "p"}, False, set(), id="it gives points only"),
    ],
)
async def test_the_binder_calls_extenders_that_filter_or_bind_and_keeps_nodes_for_them(
    monkeypatch, fields, called, whole
):
    extender, process = ExtenderConfiguration(url_prefix="", name="", **fields), MagicMock(settings=Settings())
    seen = []
    monkeypatch.setattr(service, "Extenders", lambda found, *_, **_more: seen.append(found))
    monkeypatch.setattr(clients, "Informers", lambda _client, kinds, *_, **_more: kinds)
    monkeypatch.setattr(service, "BinderParts", _parts)
    configuration = dataclasses.replace(read_configuration(None), extenders=(extender,))
    with pytest.raises(_BuiltError) as built:
        await service.serve(MagicMock(), process, configuration, BinderSettings())
    assert seen == [[extender] if called else []]
    assert {kind.name for kind in built.value.kinds if kind.keeps_whole is not None} == whole


class _BuiltError(Exception):
    kinds: list[Kind[Any]]


def _parts(*, informers: list[Kind[Any]], **_more: object) -> None:
    built = _BuiltError()
    built.kinds = informers
    raise built


CANDIDATES = (Nomination("n1", ("uid-low",)),)


def asking(answer: Callable[[], Evictions], *, is_slow: bool = False) -> tuple[BinderEffects, Inbox]:
    """The effects of a leadership, whose extenders answer so, or never."""

    async def ask_about_evictions(pod: Pod, candidates: tuple[Nomination, ...], victims: dict[str, Pod]) -> Evictions:
        assert (pod.key, candidates, list(victims)) == ("default/vip", CANDIDATES, ["uid-low"])
        await asyncio.sleep(3600 if is_slow else 0)
        return answer()

    inbox, parts = Inbox(), dict.fromkeys(("requests", "publisher", "recorder", "cache"))
    extenders = SimpleNamespace(ask_about_evictions=ask_about_evictions)
    return BinderEffects(None, None, None, extenders=extenders, inbox=inbox, **parts), inbox


def about_evictions() -> AskAboutEvictions:
    pod = msgspec.structs.replace(make_pod("vip"), whole=msgspec.Raw(b"{}"))
    return AskAboutEvictions(pod=pod, candidates=CANDIDATES, victims={"uid-low": make_pod("low")})


async def answer_of(effects: BinderEffects, inbox: Inbox, asked: Effect | None = None) -> Event:
    assert effects.carry_out(asked or about_evictions()) is None
    await asyncio.wait_for(inbox.wait(None), 10)
    (answer,) = inbox.drain()
    return answer


async def test_the_evictions_that_extenders_keep_are_an_event():
    answer = await answer_of(*asking(lambda: Evictions(left=CANDIDATES)))
    assert (answer.evictions.left, answer.pod) == (CANDIDATES, make_pod("vip"))


async def test_an_exception_on_the_way_to_an_extender_keeps_no_eviction():
    def fail() -> Evictions:
        raise ZeroDivisionError

    answer = await answer_of(*asking(fail))
    assert answer.evictions == Evictions(failure="asking extenders raised ZeroDivisionError")


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        pytest.param(None, "", id="they keep one"),
        pytest.param(ExtenderError("code 503"), "code 503", id="one fails"),
        pytest.param(ZeroDivisionError(), "asking extenders raised ZeroDivisionError", id="an exception"),
    ],
)
async def test_the_nodes_that_extenders_keep_are_an_event(error, failure):
    effects, inbox = asking(Evictions)
    nodes = {name: make_node(name) for name in ("n1", "n2")}

    async def keep_the_first(pod: Pod, asked: dict[str, Node]) -> Extension:
        assert (bytes(pod.whole), asked) == (b"{}", nodes)
        if error is not None:
            raise error
        return Extension(asked=frozenset(asked), left=frozenset({"n1"}))

    effects._extenders.filter = keep_the_first
    answer = await answer_of(effects, inbox, AskAboutNodes(pod=about_evictions().pod, nodes=nodes))
    left = frozenset() if error else frozenset({"n1"})
    assert answer == NodesAnswered(pod=make_pod("vip"), asked=frozenset(nodes), left=left, failure=failure)


async def test_the_end_of_a_leadership_waits_for_no_extender():
    effects, inbox = asking(Evictions, is_slow=True)
    effects.carry_out(about_evictions())
    await effects.questions.settle(0)
    assert (len(effects.questions), len(inbox)) == (0, 0)


@pytest.mark.parametrize("keeps_whole", [False, True])
async def test_a_pod_is_whole_if_it_is_read_for_extenders(keeps_whole):
    shown = {"metadata": {"name": "web", "uid": "u", "managedFields": []}, "spec": {"containers": [{"image": "i"}]}}

    async def request(_method: str, _path: str) -> Response:
        return Response(status=200, body=json.dumps({"kind": "Pod", **shown}).encode())

    answer = await get_pod(SimpleNamespace(request=request), GetPod(pod=make_pod("web"), keeps_whole=keeps_whole))
    del shown["metadata"]["managedFields"]
    assert bytes(answer.pod.whole) == (json.dumps(shown, separators=(",", ":")).encode() if keeps_whole else b"")
