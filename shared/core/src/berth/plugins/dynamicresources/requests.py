"""The specs of the claims of a pod, compiled for the search: requests with their classes, and constraints."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from berth.api.devices import (
    ALL,
    BLOCKING,
    EXACT_COUNT,
    DeviceAttribute,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    DeviceTaint,
    DeviceToleration,
    ExactDeviceRequest,
    ExpressionSelector,
    ResourceClaim,
    refusal,
    refusal_together,
)
from berth.cluster.devices.pools import PooledDevice
from berth.plugins.dynamicresources.selectors import MOST_COST, Answers, SelectorAnswers

# The claim's namespace and name in a text that is kept for all claims with the same spec.
CLAIM: Final = "\0{}\0"


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

    def blocking(self, taints: Sequence[DeviceTaint] | None) -> list[DeviceTaint]:
        """The taints that keep the request from a device."""
        return [
            taint
            for taint in taints or ()
            if taint.effect in BLOCKING and not any(_tolerates(each, taint) for each in self.tolerations)
        ]


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
class AttributeConstraint:
    """``distinct``: each device has its own value of the attribute; otherwise all have the same."""

    attribute: str
    distinct: bool

    def value_of(self, device: PooledDevice) -> object:
        """The device's value with its type; None without the attribute."""
        found = self._attribute_of(device)
        return None if found is None else found.typed

    def attributes_of(self, devices: Sequence[PooledDevice]) -> list[Hashable]:
        return list(map(self._attribute_of, devices))

    def _attribute_of(self, device: PooledDevice) -> DeviceAttribute | None:
        attributes = device.device.attributes or {}
        found = attributes.get(self.attribute)
        if found is None:
            domain, _, name = self.attribute.partition("/")
            found = attributes.get(name) if domain == device.driver else None
        return found


@dataclass(frozen=True, slots=True)
class Step:
    """One request of a claim: itself, or its alternatives."""

    choices: tuple[Request, ...]
    is_choice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The compiled claims. ``steps`` and ``constraint_errors``: by claim."""

    specs: tuple[ResourceClaim, ...]
    steps: tuple[tuple[Step, ...], ...]
    requests: tuple[Request, ...]
    constraints: tuple[AttributeConstraint, ...]
    constraint_errors: tuple[str, ...]
    expressions: tuple[Answers, ...]


def compile_plan(
    claims: Sequence[ResourceClaim], class_of: Callable[[str], DeviceClass | None], answers: SelectorAnswers
) -> Plan:
    """Compile the specs of the claims.

    Raises:
        PlanError: a claim asks for something that this release does not know, or they ask for too much.
    """
    if problem := refusal_together(claims):
        raise PlanError(problem)
    compiler = _Compiler(class_of)
    steps = tuple(compiler.steps_of(i, claim) for i, claim in enumerate(claims))
    allowance = MOST_COST // max(1, len(compiler.expressions))
    return Plan(
        specs=tuple(claims),
        steps=steps,
        requests=tuple(compiler.requests),
        constraints=tuple(compiler.constraints),
        constraint_errors=tuple(compiler.constraint_errors),
        expressions=tuple(answers.of(each, allowance) for each in compiler.expressions),
    )


class _Compiler:
    def __init__(self, class_of: Callable[[str], DeviceClass | None]) -> None:
        self.requests: list[Request] = []
        self.constraints: list[AttributeConstraint] = []
        self.constraint_errors: list[str] = []
        self.expressions: dict[str, int] = {}  # the place of each
        self._class_of = class_of

    def steps_of(self, number: int, claim: ResourceClaim) -> tuple[Step, ...]:
        if problem := refusal(claim):
            raise PlanError(f"claim {CLAIM.format(number)}: {problem}")
        devices = claim.spec.devices
        first = len(self.constraints)
        self._add_constraints(number, devices.constraints or ())
        return tuple(
            self._step(number, request, [*enumerate(devices.constraints or (), first)])
            for request in devices.requests or ()
        )

    def _add_constraints(self, claim: int, constraints: Iterable[DeviceConstraint]) -> None:
        error = ""
        for n, each in enumerate(constraints):
            attribute = each.match_attribute or each.distinct_attribute or ""
            self.constraints.append(AttributeConstraint(attribute, each.match_attribute is None))
            if not attribute and not error:
                problem = "empty constraint (unsupported constraint type?)"
                error = f"claim {CLAIM.format(claim)}, constraint #{n}: {problem}"
        self.constraint_errors.append(error)

    def _step(self, claim: int, request: DeviceRequest, constraints: Sequence[tuple[int, DeviceConstraint]]) -> Step:
        def under(name: str) -> tuple[int, ...]:
            return tuple(number for number, each in constraints if _concerns(each, request.name, name))

        if request.first_available:
            named = [(f"{request.name}/{each.name}", each.name, each) for each in request.first_available]
            return Step(tuple(self._request(claim, *each, under(each[0])) for each in named), is_choice=True)
        if request.exactly is None:
            raise PlanError(f"resource claim {CLAIM.format(claim)}, request {request.name}: unknown request type")
        made = self._request(claim, request.name, request.name, request.exactly, under(request.name))
        return Step((made,), is_choice=False)

    def _request(
        self,
        claim: int,
        name: str,
        local_name: str,
        part: ExactDeviceRequest | DeviceSubRequest,
        constraints: tuple[int, ...],
    ) -> Request:
        where = f"claim {CLAIM.format(claim)}, request {local_name}"
        device_class = self._class_of(part.device_class_name)
        if device_class is None:
            raise PlanError(f"{where}: could not retrieve device class {part.device_class_name}")
        if device_class.spec.left_out:  # of an extended resource; claims are rejected before
            raise PlanError(f"{where}: device class {part.device_class_name} {device_class.spec.left_out}")
        if part.allocation_mode not in (EXACT_COUNT, ALL, ""):
            raise PlanError(f"{where}: unsupported count mode {part.allocation_mode}")
        of_class = f"class {device_class.metadata.name}: "
        made = Request(
            number=len(self.requests),
            claim=claim,
            name=name,
            local_name=local_name,
            device_class=device_class,
            selectors=(
                *self._selectors(of_class, device_class.spec.selectors, where),
                *self._selectors(f"claim {CLAIM.format(claim)}: ", part.selectors, where),
            ),
            takes_all=part.allocation_mode == ALL,
            count=max(1, part.count),
            is_admin=isinstance(part, ExactDeviceRequest) and bool(part.admin_access),
            tolerations=tuple(part.tolerations or ()),
            capacity=(part.capacity.requests if part.capacity is not None else None) or {},
            constraints=constraints,
        )
        self.requests.append(made)
        return made

    def _selectors(
        self, whose: str, selectors: Iterable[ExpressionSelector] | None, where: str
    ) -> Iterator[tuple[str, int]]:
        for n, each in enumerate(selectors or ()):
            if each.cel is None:
                raise PlanError(f"{where}, selector #{n}: CEL expression empty (unsupported selector type?)")
            place = self.expressions.setdefault(each.cel.expression, len(self.expressions))
            yield f"{whose}selector #{n}: ", place


def _concerns(constraint: DeviceConstraint, request: str, name: str) -> bool:
    return not constraint.requests or request in constraint.requests or name in constraint.requests
