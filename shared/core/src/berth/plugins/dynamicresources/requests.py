"""The specs of the claims of a pod, compiled for the search: requests with their classes, and constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from berth.api.devices import (
    ALL,
    EXACT_COUNT,
    DeviceClass,
    DeviceConstraint,
    DeviceSelector,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaim,
    refusal,
)
from berth.cluster.devices.pools import PooledDevice
from berth.plugins.dynamicresources.selectors import Answers, SelectorAnswers

# The claim's namespace and name in a text that is kept for all claims with the same spec.
CLAIM: str = "\0{}\0"

_BLOCKING = frozenset({"NoSchedule", "NoExecute"})


class PlanError(Exception):
    """The claims cannot be compiled; the text has CLAIM for the claim's name."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """A request, or one alternative of it.

    ``number``: its place in the plan; ``constraints``: the constraints that it is under. ``selectors``: of the class,
    then its own: the beginning of the text of its errors, and the place of its expression in the plan.
    """

    number: int
    claim: int
    name: str  # in results: request, or request/alternative
    local_name: str  # in errors
    device_class: DeviceClass
    selectors: tuple[tuple[str, int], ...]
    takes_all: bool
    count: int
    is_admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, str | int | float]
    constraints: tuple[int, ...]

    def tolerates(self, taints: Sequence[DeviceTaint] | None) -> bool:
        return not taints or all(
            taint.effect not in _BLOCKING or any(_tolerates(each, taint) for each in self.tolerations)
            for taint in taints
        )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "Equal" | "":
            return toleration.value == taint.value
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Constraint:
    """``distinct``: each device has its own value of the attribute; otherwise all have the same."""

    attribute: str
    distinct: bool

    def value_of(self, device: PooledDevice) -> object:
        """The device's value with its type; None without the attribute."""
        attributes = device.device.attributes or {}
        found = attributes.get(self.attribute)
        if found is None:
            domain, _, name = self.attribute.partition("/")
            found = attributes.get(name) if domain == device.driver else None
        return None if found is None else found.typed


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a claim: itself, or its alternatives."""

    choices: tuple[Request, ...]
    is_choice: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The compiled claims. ``steps`` and ``constraint_errors``: by claim."""

    specs: tuple[ResourceClaim, ...]
    steps: tuple[tuple[Step, ...], ...]
    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
    constraint_errors: tuple[str, ...]
    expressions: tuple[Answers, ...]


def compile_plan(
    claims: Sequence[ResourceClaim], class_of: Callable[[str], DeviceClass | None], answers: SelectorAnswers
) -> Plan:
    """Compile the specs of the claims.

    Raises:
        PlanError: a claim asks for something that this release does not know.
    """
    requests: list[Request] = []
    constraints: list[Constraint] = []
    expressions: dict[str, int] = {}
    errors: list[str] = []
    steps: list[tuple[Step, ...]] = []
    for i, claim in enumerate(claims):
        if problem := refusal(claim):
            raise PlanError(f"claim {CLAIM.format(i)}: {problem}")
        devices = claim.spec.devices
        base, error = len(constraints), ""
        for n, each in enumerate(devices.constraints or ()):
            attribute = each.match_attribute or each.distinct_attribute
            if not attribute:
                error = error or (
                    f"claim {CLAIM.format(i)}, constraint #{n}: empty constraint (unsupported constraint type?)"
                )
            constraints.append(Constraint(attribute or "", each.match_attribute is None))
        errors.append(error)
        of_claim: list[Step] = []
        for request in devices.requests or ():
            parts: Sequence[ExactDeviceRequest | DeviceSubRequest] = request.first_available or (
                [request.exactly] if request.exactly is not None else []
            )
            choices = []
            for part in parts:
                local = part.name if isinstance(part, DeviceSubRequest) else request.name
                name = f"{request.name}/{local}" if isinstance(part, DeviceSubRequest) else request.name
                under = (
                    base + n
                    for n, each in enumerate(devices.constraints or ())
                    if _concerns(each, request.name, name)
                )
                made = _request(i, name, local, part, tuple(under), len(requests), class_of, expressions)
                requests.append(made)
                choices.append(made)
            of_claim.append(Step(tuple(choices), bool(request.first_available)))
        steps.append(tuple(of_claim))
    return Plan(
        tuple(claims),
        tuple(steps),
        tuple(requests),
        tuple(constraints),
        tuple(errors),
        tuple(answers.of(each) for each in expressions),
    )


def _concerns(constraint: DeviceConstraint, request: str, name: str) -> bool:
    return not constraint.requests or request in constraint.requests or name in constraint.requests


def _request(  # noqa: PLR0913 - the parts of a request
    claim: int,
    name: str,
    local_name: str,
    part: ExactDeviceRequest | DeviceSubRequest,
    constraints: tuple[int, ...],
    number: int,
    class_of: Callable[[str], DeviceClass | None],
    expressions: dict[str, int],
) -> Request:
    where = f"claim {CLAIM.format(claim)}, request {local_name}"
    device_class = class_of(part.device_class_name)
    if device_class is None:
        raise PlanError(f"{where}: could not retrieve device class {part.device_class_name}")
    if part.allocation_mode not in (EXACT_COUNT, ALL, ""):
        raise PlanError(f"{where}: unsupported count mode {part.allocation_mode}")
    compiled = [
        (f"{whose}: selector #{n}: ", expressions.setdefault(_expression(each, f"{where}, selector #{n}"), len(expressions)))
        for whose, selectors in (
            (f"class {device_class.metadata.name}", device_class.spec.selectors),
            (f"claim {CLAIM.format(claim)}", part.selectors),
        )
        for n, each in enumerate(selectors or ())
    ]
    return Request(
        number=number,
        claim=claim,
        name=name,
        local_name=local_name,
        device_class=device_class,
        selectors=tuple(compiled),
        takes_all=part.allocation_mode == ALL,
        count=max(1, part.count),
        is_admin=isinstance(part, ExactDeviceRequest) and bool(part.admin_access),
        tolerations=tuple(part.tolerations or ()),
        capacity=(part.capacity.requests if part.capacity is not None else None) or {},
        constraints=constraints,
    )


def _expression(selector: DeviceSelector, where: str) -> str:
    if selector.cel is None:
        raise PlanError(f"{where}: CEL expression empty (unsupported selector type?)")
    return selector.cel.expression
