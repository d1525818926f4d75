"""Devices looked at by columns: the same answers as one by one, alike devices asked about once, in slices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from berth.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from berth.api.node import Node
from berth.cel.selector import DeviceSelector
from berth.cluster.devices import columns, pools, views
from berth.cluster.devices.pools import DevicePools
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Code
from berth.plugins.dynamicresources import answers as kept
from berth.plugins.dynamicresources import requests as plans
from berth.plugins.dynamicresources.answers import Allocator
from berth.plugins.dynamicresources.search import TOO_MANY_STEPS
from berth.plugins.dynamicresources.selectors import Answers

Json = dict[str, Any]
D = "gpu.example.com"
NODES = [f"n{i}" for i in range(6)]
EXPRESSIONS = (
    f'device.attributes["{D}"].model == "A"',
    f'device.attributes["{D}"].index < 1',
    f'device.attributes["{D}"].model == "B" && device.attributes["{D}"].index == 0',
    f'device.capacity["{D}"].memory.compareTo(quantity("40Gi")) >= 0',
    f'device.attributes["{D}"].exists(name, name == "model")',
    'device.driver == "other"',
    "true",
)


def a_device(chance: random.Random, number: int) -> Json:
    attributes: Json = {"model": {"string": chance.choice("AB")}, "index": {"int": number}}
    if chance.random() < 0.1:
        del attributes["index"]
    if chance.random() < 0.05:
        attributes["odd"] = {"version": "none"}
    device: Json = {"name": f"d{number}", "attributes": attributes}
    if chance.random() < 0.5:
        device["capacity"] = {"memory": {"value": chance.choice(("40Gi", "80Gi", "10Gi"))}}
    if chance.random() < 0.1:
        device["allowMultipleAllocations"] = True
    if chance.random() < 0.1:
        device["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    return device


def a_slice(chance: random.Random, name: str) -> ResourceSlice:
    where: Json = chance.choice(
        [{"nodeName": name[:2]}, {"nodeName": name[:2]}, {"nodeName": name[:2]}, {"allNodes": True}]
    )
    pool = {"name": name, "generation": chance.randint(1, 2), "resourceSliceCount": 1}
    devices = [a_device(chance, number) for number in range(chance.randint(0, 3))]
    spec = {"driver": chance.choice((D, D, "other")), "pool": pool, "devices": devices, **where}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def a_claim(chance: random.Random, name: str = "c") -> ResourceClaim:
    request: Json = {"deviceClassName": "any", "count": chance.randint(1, 2)}
    if chance.random() < 0.8:
        request["selectors"] = [{"cel": {"expression": chance.choice(EXPRESSIONS)}}]
    if chance.random() < 0.2:
        request["capacity"] = {"requests": {"memory": "20Gi"}}
    constraints = [{"matchAttribute": f"{D}/model"}] if chance.random() < 0.3 else []
    spec = {"devices": {"requests": [{"name": "r", "exactly": request}], "constraints": constraints}}
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, ResourceClaim)


def a_cluster(chance: random.Random) -> Snapshot:
    snapshot = Snapshot()
    for name in NODES:
        snapshot.set_node(msgspec.convert({"metadata": {"name": name}}, Node))
    snapshot.objects(DeviceClass).set("any", msgspec.convert({"metadata": {"name": "any"}}, DeviceClass))
    for name in NODES:
        made = a_slice(chance, f"{name}-a")
        snapshot.objects(ResourceSlice).set(made.metadata.name, made)
    return snapshot


def change(chance: random.Random, snapshot: Snapshot) -> None:
    what, name = chance.random(), f"{chance.choice(NODES)}-{chance.choice('ab')}"
    if what < 0.4:
        made = a_slice(chance, name)
        snapshot.objects(ResourceSlice).set(name, made)
    elif what < 0.6:
        snapshot.objects(ResourceSlice).remove(name)
    elif what < 0.8:
        uid = f"used-{chance.randint(0, 3)}"
        result = {"request": "r", "driver": D, "pool": name, "device": f"d{chance.randint(0, 2)}"}
        used = {"metadata": {"name": uid, "uid": uid}, "status": {"allocation": {"devices": {"results": [result]}}}}
        snapshot.objects(ResourceClaim).set(uid, msgspec.convert(used, ResourceClaim))
    elif what < 0.9:
        snapshot.objects(ResourceClaim).remove(f"used-{chance.randint(0, 3)}")
    else:
        labels = {"changed": str(chance.random())}
        snapshot.set_node(msgspec.convert({"metadata": {"name": name[:2], "labels": labels}}, Node))


def outcomes(
    allocator: Allocator, claim: ResourceClaim, may_continue: Callable[[], bool] = lambda: True
) -> list[tuple[Any, Any]]:
    found = allocator.answers([claim])
    rows = np.arange(len(NODES))
    assert any(found.find(rows, may_continue) for _ in range(100))
    given = []
    for row in rows.tolist():
        solution = found.solution(row)
        devices = (
            None if solution is None else [solution[1].devices[each.position].key for each in solution[0].choices[0]]
        )
        given.append((found.statuses[found.codes[row]], devices))
    return given


def test_columns_give_the_answers_of_single_devices_while_the_cluster_changes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(columns, "_AT_ONCE", 2)
    monkeypatch.setattr(views, "_AT_ONCE", 2)
    monkeypatch.setattr(pools, "_MOST_UNUSED", 2)
    for seed in range(60):
        chance = random.Random(seed)
        snapshot = a_cluster(chance)
        by_columns, claims = Allocator(snapshot), [a_claim(chance) for _ in range(3)]
        for step in range(10):
            claim = chance.choice(claims)
            monkeypatch.setattr(kept, "_FEW", 0)
            some = outcomes(by_columns, claim, lambda seed=seed: bool(seed % 2))
            monkeypatch.setattr(kept, "_FEW", 10**6)
            assert some == outcomes(Allocator(snapshot), claim), (seed, step)
            change(chance, snapshot)


def many_alike(values: int) -> Snapshot:
    snapshot = Snapshot()
    snapshot.objects(DeviceClass).set("any", msgspec.convert({"metadata": {"name": "any"}}, DeviceClass))
    for number in range(100):
        name = f"n{number}"
        snapshot.set_node(msgspec.convert({"metadata": {"name": name}}, Node))
        attributes = {"model": {"string": f"m{number % values}"}}
        devices = [{"name": f"d{i}", "attributes": attributes} for i in range(4)]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": D, "pool": pool, "nodeName": name, "devices": devices}
        made = msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)
        snapshot.objects(ResourceSlice).set(name, made)
    return snapshot


def asking_for_m0() -> ResourceClaim:
    expression = f'device.attributes["{D}"].model == "m0"'
    request = {"deviceClassName": "any", "selectors": [{"cel": {"expression": expression}}]}
    spec = {"devices": {"requests": [{"name": "r", "exactly": request}]}}
    return msgspec.convert({"metadata": {"name": "c", "uid": "c"}, "spec": spec}, ResourceClaim)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices about which an expression was evaluated."""
    evaluated: list[str] = []
    evaluate = Answers._evaluated

    def counted(answers: Answers, device: Any) -> bool | str:
        evaluated.append(device.key)
        return evaluate(answers, device)

    monkeypatch.setattr(Answers, "_evaluated", counted)
    return evaluated


def test_alike_devices_are_evaluated_once(asked: list[str]):
    answers = Allocator(many_alike(5)).answers([asking_for_m0()])
    answers.find(np.arange(100))
    assert len(asked) == 5
    assert int(np.sum(answers.codes == kept.FITS)) == 20


def test_new_devices_are_evaluated_alone(asked: list[str]):
    snapshot = many_alike(5)
    answers = Allocator(snapshot).answers([asking_for_m0()])
    answers.find(np.arange(100))
    asked.clear()
    device = {"name": "d9", "attributes": {"model": {"string": "new"}}}
    pool = {"name": "n3", "generation": 2, "resourceSliceCount": 1}
    spec = {"driver": D, "pool": pool, "nodeName": "n3", "devices": [device]}
    made = msgspec.convert({"metadata": {"name": "n3"}, "spec": spec}, ResourceSlice)
    snapshot.objects(ResourceSlice).set("n3", made)
    answers.find(np.arange(100))
    assert asked == [f"{D}/n3/d9"]


def test_a_slice_of_work_ends_and_the_next_goes_on_where_it_was(asked: list[str]):
    answers = Allocator(many_alike(100)).answers([asking_for_m0()])
    slices = 1
    while not answers.find(np.arange(100), lambda: len(asked) % 10 != 0):
        slices += 1
    assert (len(asked), 10 <= slices <= 12) == (100, True)
    assert int(np.sum(answers.codes == kept.FITS)) == 1


def test_a_slice_of_work_ends_after_some_nodes_are_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(views, "_AT_ONCE", 10)
    read: list[str] = []
    seen_from = DevicePools.seen_from

    def counted(every: DevicePools, node: Node) -> Any:
        read.append(node.metadata.name)
        return seen_from(every, node)

    monkeypatch.setattr(DevicePools, "seen_from", counted)
    answers = Allocator(many_alike(1)).answers([asking_for_m0()])
    slices, most = 1, 0
    while not answers.find(np.arange(100), lambda: False):
        most, slices = max(most, len(read)), slices + 1
        read.clear()
    assert (most, slices >= 10) == (10, True)


def hard_nodes(number: int) -> Snapshot:
    """On each node six devices that cannot be told to be alike, two of each of three models."""
    snapshot = Snapshot()
    snapshot.objects(DeviceClass).set("any", msgspec.convert({"metadata": {"name": "any"}}, DeviceClass))
    for name in (f"n{i}" for i in range(number)):
        snapshot.set_node(msgspec.convert({"metadata": {"name": name}}, Node))
        devices = [
            {"name": f"d{i}", "attributes": {"model": {"int": i % 3}}, "allowMultipleAllocations": True}
            for i in range(6)
        ]
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": D, "pool": pool, "nodeName": name, "devices": devices}
        made = msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)
        snapshot.objects(ResourceSlice).set(name, made)
    return snapshot


def three_of_one_model() -> ResourceClaim:
    requests = [{"name": "r", "exactly": {"deviceClassName": "any", "count": 3}}]
    spec = {"devices": {"requests": requests, "constraints": [{"matchAttribute": f"{D}/model"}]}}
    return msgspec.convert({"metadata": {"name": "c", "uid": "c"}, "spec": spec}, ResourceClaim)


def test_a_slice_of_work_ends_after_searches_that_look_at_many_devices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "_STEPS_AT_ONCE", 50)
    answers = Allocator(hard_nodes(40)).answers([three_of_one_model()])
    slices = 1
    while not answers.find(np.arange(40), lambda: False):
        slices += 1
    assert slices >= 10


def test_claims_whose_search_is_given_up_everywhere_cost_less_and_less(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "MOST_STEPS", 15)
    monkeypatch.setattr(kept, "_FEW_STEPS", 3)
    answers = Allocator(hard_nodes(100)).answers([three_of_one_model()])
    answers.find(np.arange(100))
    assert {answers.statuses[code][1] for code in answers.codes[:100]} == {TOO_MANY_STEPS}
    assert answers._steps < 20 * 17 + 100 * 6


def costly(number: int) -> str:
    """An expression that costs some 50,000 on a device of an even model and little on others."""
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    loops = f"{ten}.all(a, {ten}.all(b, {ten}.all(c, {ten}.all(d, a + b + c + d >= {-number}))))"
    return f'int(device.attributes["{D}"].model.substring(1)) % 2 == 1 || {loops}'


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4])
def test_costly_expressions_of_a_plan_share_an_allowance(number: int, monkeypatch: pytest.MonkeyPatch):
    """Without it, one claim keeps every scorer and the binder busy for hours."""
    monkeypatch.setattr(plans, "MOST_COST", 400_000)
    spent = []
    evaluate = DeviceSelector.evaluate

    def counted(selector: DeviceSelector, *args: Any, **limit: Any) -> Any:
        evaluation = evaluate(selector, *args, **limit)
        spent.append(evaluation.cost)
        return evaluation

    monkeypatch.setattr(DeviceSelector, "evaluate", counted)
    requests = [
        {"name": f"r{i}", "exactly": {"deviceClassName": "any", "selectors": [{"cel": {"expression": costly(i)}}]}}
        for i in range(number)
    ]
    claim = {"metadata": {"name": "c", "uid": "c"}, "spec": {"devices": {"requests": requests}}}
    answers = Allocator(many_alike(40)).answers([msgspec.convert(claim, ResourceClaim)])
    answers.find(np.arange(100))
    codes = [answers.statuses[code] for code in answers.codes[:100]]
    assert sum(cost for cost in spent if cost > 500) < 500_000
    assert any("actual cost limit exceeded" in text for _, text in codes)
    assert all(code is Code.SUCCESS for code, _ in codes[1:100:2])  # cheap answers are given all the same
