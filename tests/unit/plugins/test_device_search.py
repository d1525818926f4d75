"""The search for devices, against every assignment of devices in the order of the search, and its promises."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest

from berth.api.devices import ResourceClaim
from berth.api.pod import PodResourceClaim
from berth.cluster.devices.pools import PooledDevice
from berth.framework.cycle import check_in_turn
from berth.plugins.dynamicresources import answers as kept
from berth.plugins.dynamicresources.answers import NOT_SEARCHED, Allocator
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.requests import PlanError, Request
from berth.plugins.dynamicresources.results import allocation_of
from berth.plugins.dynamicresources.search import (
    CANNOT_ALLOCATE,
    MOST_STEPS,
    TOO_MANY_STEPS,
    Rejected,
    Search,
    Solution,
)
from berth.plugins.dynamicresources.usage import Free
from harness.builders.objects import a_pod
from harness.builders.profiles import default_profile
from harness.worlds.recorded_devices import DeviceWorld

Json = dict[str, Any]
SEEDS = 160
DRIVER = "gpu.example.com"
NODE = {"kind": "Node", "metadata": {"name": "n", "uid": "n"}}
MODELS = ("A", "B")
_ALLOCATABLE = {"cpu": "4", "memory": "16Gi", "pods": "110"}


def world_of(devices: list[Json], claims: list[Json], counters: list[Json] | None = None) -> DeviceWorld:
    """A node with these devices, and a class for all of them."""
    spec = {"driver": DRIVER, "nodeName": "n"}
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 2 if counters else 1}
    slices = [{"metadata": {"name": "devices"}, "spec": {**spec, "pool": pool, "devices": devices}}]
    if counters:
        slices.append({"metadata": {"name": "counters"}, "spec": {**spec, "pool": pool, "sharedCounters": counters}})
    objects = {
        "namespaces": {},
        "nodes": [NODE],
        "deviceclasses": [{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}],
        "resourceslices": [{"kind": "ResourceSlice", **each} for each in slices],
        "resourceclaims": [{"kind": "ResourceClaim", **each} for each in claims],
        "pods": [],
    }
    return DeviceWorld.of(objects)


def claim_of(name: str, requests: list[Json], constraints: list[Json] | None = None, **status: Any) -> Json:
    devices = {"requests": requests, "constraints": constraints or []}
    return {"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"devices": devices}, "status": status}


def exactly(name: str, count: int = 1, **fields: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "count": count, **fields}}


def model(value: str) -> list[Json]:
    return [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{value}"'}}]


def searched(world: DeviceWorld, names: list[str], most_steps: int = MOST_STEPS) -> tuple[Any, Candidates, Any]:
    """The outcome for these claims on the node, its candidates, and the plan."""
    allocator = Allocator.of(world.snapshot)
    claims = [claim for name in names if (claim := world.named("ResourceClaim", name, "d"))]
    answers = allocator.answers(claims)
    answers.find(np.array([0]))
    candidates = answers._candidates[0]
    free = Free(allocator.pools, allocator.ledger)
    return Search(answers.plan, candidates, free, free.busy(candidates)).run(most_steps), candidates, answers


class RandomCase:
    """A node with up to six devices, some in use, and up to two claims."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random
        self.has_counters = chance.random() < 0.4
        self.capacity = {"memory": {"value": "4"}}
        self.devices = [self._device(i) for i in range(chance.randint(1, 4))]
        self.counters = [{"name": "set", "counters": {"slots": {"value": str(chance.randint(1, 4))}}}]
        self.claims = [self._claim(f"c{i}") for i in range(chance.randint(1, 2))]
        used = {"request": "r", "driver": DRIVER, "pool": "n", "device": chance.choice(self.devices)["name"]}
        share = next(each for each in self.devices if each["name"] == used["device"]).get("allowMultipleAllocations")
        shares = {"shareID": "s", "consumedCapacity": {"memory": "2"}} if share else {}
        allocation = {"devices": {"results": [{**used, **shares}]}}
        self.users = [claim_of("used", [exactly("r")], allocation=allocation)] if chance.random() < 0.6 else []
        self.world = world_of(self.devices, self.claims + self.users, self.counters if self.has_counters else None)
        self.names = [each["metadata"]["name"] for each in self.claims]

    def _device(self, number: int) -> Json:
        chance = self.random
        attributes = {"model": {"string": chance.choice(MODELS)}, "numa": {"int": chance.randint(0, 1)}}
        device: Json = {"name": f"d{number}", "attributes": attributes}
        if chance.random() < 0.2:
            device["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
        if self.has_counters and chance.random() < 0.7:
            amounts = {"slots": {"value": str(chance.randint(1, 2))}}
            device["consumesCounters"] = [{"counterSet": "set", "counters": amounts}]
        if chance.random() < 0.3:
            device |= {"allowMultipleAllocations": True, "capacity": self.capacity}
        return device

    def _claim(self, name: str) -> Json:
        chance = self.random
        requests = [self._request(f"r{i}") for i in range(chance.randint(1, 2))]
        constraints = []
        if chance.random() < 0.4:
            kind = chance.choice(("matchAttribute", "distinctAttribute"))
            constraints.append({kind: f"{DRIVER}/numa", "requests": chance.choice(([], ["r0"]))})
        return claim_of(name, requests, constraints)

    def _request(self, name: str) -> Json:
        if self.random.random() < 0.3:
            alternatives = [{"name": f"a{i}", **self._part()} for i in range(2)]
            return {"name": name, "firstAvailable": alternatives}
        admin = {"adminAccess": True} if self.random.random() < 0.15 else {}
        return {"name": name, "exactly": {**self._part(), **admin}}

    def _part(self) -> Json:
        chance = self.random
        part: Json = {"deviceClassName": "gpu", "count": chance.randint(1, 2)}
        if chance.random() < 0.5:
            part["selectors"] = model(chance.choice(MODELS))
        if chance.random() < 0.3:
            part["tolerations"] = [{"key": "sick", "operator": "Exists"}]
        return part


Assignment = list[tuple[Request, tuple[int, ...]]]


def assignments(plan: Any, devices: list[PooledDevice]) -> Iterator[Assignment]:
    """Every choice of alternatives and devices in the order of the search, valid or not."""
    steps = [step for steps in plan.steps for step in steps]

    def rest(number: int) -> Iterator[Assignment]:
        if number == len(steps):
            yield []
            return
        for request in steps[number].choices:
            for chosen in itertools.combinations(range(len(devices)), request.count):
                for others in rest(number + 1):
                    yield [(request, chosen), *others]

    return rest(0)


def is_valid(  # noqa: C901, PLR0911, PLR0912 - the rules, one after another
    assignment: Assignment, plan: Any, devices: list[PooledDevice], case: RandomCase
) -> bool:
    """The rules, checked of the whole assignment, with the objects as they were written."""
    by_name = {each["name"]: each for each in case.devices}
    users = [each["status"]["allocation"]["devices"]["results"][0]["device"] for each in case.users]
    taken: list[tuple[str, int, bool]] = []
    memory, slots = Counter[str](), Counter[str]()
    consuming = set()
    for name in users:
        memory[name] += 2
        consuming.add(name)
    for request, positions in assignment:
        for position in positions:
            pooled = devices[position]
            name, raw = pooled.device.name, by_name[pooled.device.name]
            shareable = bool(raw.get("allowMultipleAllocations"))
            selectors = [text for text in MODELS if f'"{text}"' in str(_selectors_of(request, plan))]
            if selectors and raw["attributes"]["model"]["string"] not in selectors:
                return False
            if "taints" in raw and not request.tolerations:
                return False
            if shareable:
                memory[name] += 4
            elif request.is_admin:
                if any(other == name and claim == request.claim for other, claim, _ in taken):
                    return False
            elif name in users or any(other == name for other, _, _ in taken):
                return False
            if not shareable:
                taken.append((name, request.claim, request.is_admin))
            if not request.is_admin:
                consuming.add(name)
    for name in consuming:
        for each in by_name[name].get("consumesCounters", ()):
            slots["used"] += int(each["counters"]["slots"]["value"])
    if case.has_counters and slots["used"] > int(case.counters[0]["counters"]["slots"]["value"]):
        new = consuming - set(users)
        if any(by_name[name].get("consumesCounters") for name in new):
            return False
    given = {devices[position].device.name for _, positions in assignment for position in positions}
    if any(memory[name] > 4 for name in memory if name in given):
        return False
    return all(_meets(number, constraint, assignment, devices) for number, constraint in enumerate(plan.constraints))


def _selectors_of(request: Request, plan: Any) -> list[str]:
    return [plan.expressions[number].expression for _, number in request.selectors]


def _meets(number: int, constraint: Any, assignment: Assignment, devices: list[PooledDevice]) -> bool:
    values = [
        constraint.value_of(devices[position])
        for request, positions in assignment
        if number in request.constraints
        for position in positions
    ]
    return len(set(values)) == len(values) if constraint.distinct else len(set(values)) <= 1


@pytest.mark.parametrize("part", range(4))
def test_the_first_valid_assignment_is_found(part):
    solved = 0
    for seed in range(part, SEEDS, 4):
        case = RandomCase(seed)
        outcome, candidates, answers = searched(case.world, case.names)
        devices = [*candidates.devices]
        valid = (each for each in assignments(answers.plan, devices) if is_valid(each, answers.plan, devices, case))
        first = next(valid, None)
        if first is None:
            assert isinstance(outcome, Rejected), (seed, outcome)
            continue
        solved += 1
        assert isinstance(outcome, Solution), (seed, first)
        chosen = [(choice.request.name, choice.position) for each in outcome.choices for choice in each]
        assert chosen == [(request.name, each) for request, positions in first for each in positions], seed
    assert solved > SEEDS // 32


def test_no_device_is_given_twice_while_claims_come_and_go():
    for seed in range(40):
        chance = random.Random(seed)
        case = RandomCase(seed)
        names = [f"p{i}" for i in range(8)]
        for name in names:
            case.world.apply({"kind": "ResourceClaim", **claim_of(name, [exactly("r", chance.randint(1, 2))])})
        allocator = Allocator.of(case.world.snapshot)
        for _ in range(30):
            name = chance.choice(names)
            if allocator.ledger.assumed(name) is not None:
                allocator.ledger.forget(name)
                continue
            claim = case.world.named("ResourceClaim", name, "d")
            answers = allocator.answers([claim])
            answers.find(np.array([0]))
            found = answers.solution(0)
            if found is not None:
                allocator.ledger.assume(name, allocation_of(answers.plan, 0, found, node="n", share_id=name))
            _check_promises(case, allocator)


def _check_promises(case: RandomCase, allocator: Allocator) -> None:
    free = Free(allocator.pools, allocator.ledger).counters_of(next(iter(allocator.pools)).part)
    for device in allocator.pools:
        assert len(allocator.ledger.owners_of(device.key)) <= 1
        assert all(amount <= device.capacities[name] for name, amount in allocator.ledger.consumed(device.key).items())
    if not case.users:
        assert all(amount >= 0 for amount in free.values())


def test_each_share_has_a_uuid_of_its_own():
    device = {"name": "d0", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "4"}}}
    amount = {"capacity": {"requests": {"memory": "1"}}}
    policy = {"requestPolicy": {"default": "1", "validValues": ["1"]}}
    device["capacity"]["memory"] |= policy
    claims = [claim_of(name, [exactly("r", **amount), exactly("s", **amount)]) for name in ("one", "other")]
    world = world_of([device], claims)
    _, _, answers = searched(world, ["one", "other"])
    found = answers.solution(0)
    made = [allocation_of(answers.plan, i, found, node="n", share_id=f"u-{i}") for i in (0, 1)]
    shares = [result.share_id or "" for each in made for result in each.devices.results or ()]
    assert [str(UUID(share)) for share in shares] == shares
    assert len(set(shares)) == 4


def test_answers_are_the_same_in_another_process_and_after_changes_elsewhere():
    for seed in range(60):
        one, other = RandomCase(seed), RandomCase(seed)
        first = searched(one.world, one.names)[0]
        other.world.apply({"kind": "Node", "metadata": {"name": "m", "uid": "m"}})
        second = searched(other.world, other.names)[0]
        assert _text(first) == _text(second)


def _text(outcome: Any) -> str:
    if isinstance(outcome, Rejected):
        return outcome.reason
    return str([[(each.request.name, each.position, each.consumed) for each in of] for of in outcome.choices])


def test_kept_answers_are_those_of_a_new_allocator():
    for seed in range(60):
        chance, case = random.Random(seed), RandomCase(seed)
        allocator = Allocator.of(case.world.snapshot)
        for _ in range(6):
            claim = chance.choice(case.claims)
            results = [{"request": "r0", "driver": DRIVER, "pool": "n", "device": chance.choice(case.devices)["name"]}]
            status = {"allocation": {"devices": {"results": results}}} if chance.random() < 0.5 else {}
            case.world.apply({"kind": "ResourceClaim", **claim_of("other", [exactly("r0")], **status)})
            asked = [msgspec.convert(claim, ResourceClaim)]
            kept = allocator.answers(asked)
            kept.find(np.array([0]))
            anew = Allocator(case.world.snapshot).answers(asked)
            anew.find(np.array([0]))
            assert kept.statuses[kept.codes[0]] == anew.statuses[anew.codes[0]]
            found = kept.solution(0), anew.solution(0)
            assert [_text(each[0]) for each in found if each] == [_text(each[0]) for each in reversed(found) if each]


def test_alike_devices_are_not_tried_twice():
    """Thirty of forty devices, then one that does not exist: kube-scheduler tries 847,660,528 combinations."""
    devices = [{"name": f"d{i:02}", "attributes": {"model": {"string": "A"}}} for i in range(40)]
    devices.append({"name": "x", "attributes": {"model": {"string": "B"}}})
    requests = [exactly("many", 30), exactly("rare", selectors=model("B")), exactly("none", selectors=model("B"))]
    world = world_of(devices, [claim_of("c", requests)])
    outcome, _, _ = searched(world, ["c"], most_steps=500)
    assert outcome == Rejected(CANNOT_ALLOCATE)


def test_a_search_ends_after_its_steps():
    # Every device has its own value: none is alike to another, and twelve of twenty-four never share one.
    devices = [{"name": f"d{i:02}", "attributes": {"numa": {"int": i}, "half": {"int": i // 12}}} for i in range(24)]
    constraints = [{"matchAttribute": f"{DRIVER}/half"}, {"distinctAttribute": f"{DRIVER}/numa"}]
    world = world_of(devices, [claim_of("c", [exactly("r", 11), exactly("s", 2)], constraints)])
    outcome, _, _ = searched(world, ["c"])
    assert outcome == Rejected(TOO_MANY_STEPS)


def test_long_searches_within_a_cycle_end_after_some_nodes_and_go_on_in_the_next():
    world = endless_world(nodes=30)
    answers = Allocator.of(world.snapshot).answers([world.named("ResourceClaim", "c", "d")])
    rows = np.arange(30)
    for cycle in range(1, 4):
        answers.find(rows)
        found = Counter(answers.statuses[code][1] for code in answers.codes[rows])
        assert found == {TOO_MANY_STEPS: 5 * cycle, NOT_SEARCHED: 30 - 5 * cycle}
    assert answers.find(rows)
    assert {answers.statuses[code][1] for code in answers.codes[rows]} == {TOO_MANY_STEPS}


def test_long_searches_on_candidates_checked_in_turn_end_together():
    world = endless_world(nodes=12)
    claims = [PodResourceClaim(name="c", resource_claim_name="c")]
    pod = a_pod("p", metadata={"namespace": "d"}, resource_claims=claims)
    statuses = check_in_turn(pod, [f"n{i}" for i in range(12)], world.snapshot, default_profile())
    given_up = [next(text for text in (TOO_MANY_STEPS, NOT_SEARCHED) if text in each.reasons[0]) for each in statuses]
    assert given_up == 5 * [TOO_MANY_STEPS] + 7 * [NOT_SEARCHED]


def endless_world(nodes: int) -> DeviceWorld:
    """Nodes without a solution, of which no two have alike devices: eleven of twenty-four in one half, and two more."""
    constraints = [{"matchAttribute": f"{DRIVER}/half"}, {"distinctAttribute": f"{DRIVER}/numa"}]
    claims = [claim_of("c", [exactly("r", 11), exactly("s", 2)], constraints)]
    slices, pool = [], {"generation": 1, "resourceSliceCount": 1}
    for node in range(nodes):
        devices = [
            {"name": f"d{i:02}", "attributes": {"numa": {"int": node * 24 + i}, "half": {"int": i // 12}}}
            for i in range(24)
        ]
        spec = {"driver": DRIVER, "nodeName": f"n{node}", "pool": {"name": f"n{node}", **pool}, "devices": devices}
        slices.append({"kind": "ResourceSlice", "metadata": {"name": f"n{node}"}, "spec": spec})
    return DeviceWorld.of(
        {
            "namespaces": {},
            "nodes": [
                {"kind": "Node", "metadata": {"name": f"n{n}", "uid": f"n{n}"}, "status": {"allocatable": _ALLOCATABLE}}
                for n in range(nodes)
            ],
            "deviceclasses": [{"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}],
            "resourceslices": slices,
            "resourceclaims": [{"kind": "ResourceClaim", **each} for each in claims],
            "pods": [],
        }
    )


def test_an_alternative_with_too_many_devices_is_left_at_once():
    """Twenty and thirteen devices are more than a claim may have: no other twenty are tried."""
    devices = [{"name": f"d{i:02}", "attributes": {"numa": {"int": i}}} for i in range(40)]
    alternatives = [{"name": f"a{n}", "deviceClassName": "gpu", "count": n} for n in (20, 2)]
    requests = [{"name": "r", "firstAvailable": alternatives}, exactly("s", 13)]
    world = world_of(devices, [claim_of("c", requests, [{"distinctAttribute": f"{DRIVER}/numa"}])])
    outcome, _, _ = searched(world, ["c"], most_steps=500)
    assert [len(each) for each in outcome.choices] == [15]
    assert outcome.alternatives == {(0, 0): 1}


def requests_of(number: int, **fields: Any) -> list[Json]:
    return [exactly(f"r{i}", **fields) for i in range(number)]


def selectors_of(*numbers: int) -> list[Json]:
    return [{"cel": {"expression": f"{number} == {number}"}} for number in numbers]


TOO_MUCH = "the pod's claims have more than a scheduling cycle can take"


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ([requests_of(33)], "claim \0000\0: the claim has more than the API allows: 33 requests (at most 32)"),
        (
            [[exactly("r", selectors=selectors_of(*range(33)))]],
            "claim \0000\0: the claim has more than the API allows: 33 selectors of request r (at most 32)",
        ),
        (
            [requests_of(29)] * 9,
            f"{TOO_MUCH}: 261 requests with their alternatives (at most 256)",
        ),
        (
            [[exactly("r", selectors=selectors_of(*range(i * 22, i * 22 + 22)))] for i in range(3)],
            f"{TOO_MUCH}: 66 different selectors (at most 64)",
        ),
    ],
    ids=["requests of a claim", "selectors of a request", "requests", "selectors"],
)
def test_a_pod_whose_claims_ask_for_too_much_is_refused(claims: list[list[Json]], problem: str):
    world = world_of([], [claim_of(f"c{i}", requests) for i, requests in enumerate(claims)])
    with pytest.raises(PlanError) as caught:
        searched(world, [f"c{i}" for i in range(len(claims))])
    assert str(caught.value) == problem


def test_plans_are_kept_as_far_as_their_selectors_are_few(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept, "MOST_EXPRESSIONS", 40)
    claims = [claim_of(f"c{i}", [exactly("r", selectors=selectors_of(*range(i, i + 15)))]) for i in range(5)]
    world = world_of([], claims)
    for i in range(5):
        searched(world, [f"c{i}"])
    assert len(Allocator.of(world.snapshot)._plans) == 2
