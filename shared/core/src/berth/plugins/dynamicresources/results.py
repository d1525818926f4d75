"""Allocations as they are written: results, configurations and the nodes of a solution."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID, uuid5

import msgspec

from berth.api.devices import (
    FROM_CLAIM,
    FROM_CLASS,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
)
from berth.api.meta import SelectorRequirement
from berth.api.pod import NodeSelector, NodeSelectorTerm, Quantities
from berth.api.resources import quantity_text
from berth.api.selectors import NAME_FIELD
from berth.cluster.devices.pools import PooledDevice
from berth.plugins.dynamicresources.candidates import Candidates
from berth.plugins.dynamicresources.requests import Plan, Request
from berth.plugins.dynamicresources.search import Solution
from berth.plugins.dynamicresources.usage import Choice

# The API takes only a UUID. A scorer and a binder make the same of the same share.
_SHARES: Final = UUID("a3b1cf0e-6f0d-4c55-9d0b-6c1c52a7e8f4")


def allocation_of(
    plan: Plan, claim: int, found: tuple[Solution, Candidates], *, node: str, share_id: str
) -> AllocationResult:
    """The allocation of one claim. ``share_id``: what the ids of its shares are made of, so that they differ."""
    solution, candidates = found
    choices = solution.choices[claim]
    devices = [candidates.devices[choice.position] for choice in choices]
    results = [
        _result(choice, device, f"{share_id}-{i}")
        for i, (choice, device) in enumerate(zip(choices, devices, strict=True))
    ]
    return AllocationResult(
        devices=DeviceAllocationResult(results=results, config=_config(plan, claim, solution) or None),
        node_selector=_node_selector(devices, node),
    )


def as_proposed(allocation: AllocationResult) -> AllocationResult:
    """The parts of an allocation that count before it is written."""
    results = [
        msgspec.structs.replace(each, tolerations=None, binding_conditions=None, binding_failure_conditions=None)
        for each in allocation.devices.results or ()
    ]
    return AllocationResult(devices=DeviceAllocationResult(results=results), node_selector=allocation.node_selector)


def _result(choice: Choice, device: PooledDevice, share_id: str) -> DeviceRequestAllocationResult:
    driver, pool = device.part.pool
    consumed: Quantities = {name: quantity_text(amount) for name, amount in (choice.consumed or {}).items()}
    return DeviceRequestAllocationResult(
        request=choice.request.name,
        driver=driver,
        pool=pool,
        device=device.device.name,
        admin_access=True if choice.request.is_admin else None,
        tolerations=list(choice.request.tolerations) or None,
        binding_conditions=device.device.binding_conditions or None,
        binding_failure_conditions=device.device.binding_failure_conditions or None,
        share_id=str(uuid5(_SHARES, share_id)) if device.is_shareable else None,
        consumed_capacity=consumed or None,
    )


def _config(plan: Plan, claim: int, solution: Solution) -> list[DeviceAllocationConfiguration]:
    """Each class's configurations once, with all requests of the class; then the claim's for chosen requests."""
    chosen = [step.choices[solution.alternatives.get((claim, i), 0)] for i, step in enumerate(plan.steps[claim])]
    names: dict[str, list[str]] = {}
    classes: dict[str, Request] = {}
    for request in chosen:
        name = request.device_class.metadata.name
        names.setdefault(name, []).append(request.name)
        classes.setdefault(name, request)
    found = [
        DeviceAllocationConfiguration(source=FROM_CLASS, requests=names[name], opaque=each.opaque)
        for name, request in classes.items()
        for each in request.device_class.spec.config or ()
    ]
    devices = plan.specs[claim].spec.devices
    for config in devices.config or ():
        entry = DeviceAllocationConfiguration(source=FROM_CLAIM, requests=config.requests, opaque=config.opaque)
        if not config.requests:
            found.append(entry)
            continue
        # Once for each request that it names, as in kube-scheduler.
        found += [
            entry
            for whole, request in zip(devices.requests or (), chosen, strict=True)
            if whole.name in config.requests or request.name in config.requests
        ]
    return found


def _node_selector(devices: Sequence[PooledDevice], node: str) -> NodeSelector | None:
    fields: list[SelectorRequirement] = []
    labels: list[SelectorRequirement] = []
    for pooled in devices:
        device, part = pooled.device, pooled.part
        name = device.node_name if part.per_device else part.node
        if name or device.binds_to_node:
            only = SelectorRequirement(key=NAME_FIELD, operator="In", values=[node])
            return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[only])])
        selector = device.node_selector if part.per_device else part.selector
        for term in (selector.node_selector_terms if selector is not None else None) or ():
            _add_new(fields, term.match_fields or ())
            _add_new(labels, term.match_expressions or ())
    if not fields and not labels:
        return None
    term = NodeSelectorTerm(match_fields=fields or None, match_expressions=labels or None)
    return NodeSelector(node_selector_terms=[term])


def _add_new(known: list[SelectorRequirement], more: Iterable[SelectorRequirement]) -> None:
    for each in more:
        key = each.key, each.operator, frozenset(each.values or ())
        if all((other.key, other.operator, frozenset(other.values or ())) != key for other in known):
            known.append(each)


def chosen_alternative(claim: ResourceClaim, name: str) -> int | None:
    """The number of the alternative that a result's request names; None if it names none."""
    base, slash, local = name.partition("/")
    alternatives = next((each.first_available for each in claim.spec.devices.requests or () if each.name == base), None)
    if not slash or not alternatives:
        return None
    return next((i for i, each in enumerate(alternatives) if each.name == local), None)
