"""What the definition of Coscheduling's PodGroups (deploy/kubernetes/components/podgroups) refuses."""

import re
from collections.abc import Iterator
from typing import Any, Final

from berth_sim.apiserver.kinds import COSCHEDULING_POD_GROUPS, SimulatedKind
from berth_sim.apiserver.status import JsonObject, Problem, invalid_fields

_LEAST, _MOST = -(2**31), 2**31 - 1  # of int32
_QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|"
    r"([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
# By the type of a value, the name that a refusal has for it and for what an integer is. Others have none.
_NAMES: Final = {str: ("string", "integer"), list: ("array", "integer"), float: ("float64", "int32")}


def check(kind: SimulatedKind, value: JsonObject) -> None:
    """Refuse a PodGroup with a value of another type, or out of range; null counts as absent.

    Raises:
        StatusError: 422, with every problem.
    """
    problems = [*_problems(value.get("spec"))] if kind is COSCHEDULING_POD_GROUPS else []
    if problems:
        raise invalid_fields(kind, value["metadata"]["name"], problems)


def _problems(spec: Any) -> Iterator[Problem]:
    if spec is None:
        return
    if not isinstance(spec, dict):
        yield _of_type("spec", spec, "object")
        return
    yield from _of_integer("spec.minMember", spec.get("minMember"), least=1)
    yield from _of_resources("spec.minResources", spec.get("minResources"))
    yield from _of_integer("spec.scheduleTimeoutSeconds", spec.get("scheduleTimeoutSeconds"))


def _of_integer(field: str, value: Any, *, least: int | None = None) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, int) or not is_number:
        name, wanted = _NAMES.get(type(value), ("", "int32"))
        yield _of_type(field, value, wanted, name)
    if is_number and not (isinstance(value, int) and _LEAST <= value <= _MOST):
        problem = f'Invalid value: "": Checked value must be of type integer with format int32 in {field}'
        yield Problem("<nil>", problem)
    elif is_number and least is not None and value < least:
        problem = f"Invalid value: {value}: {field} in body should be greater than or equal to {least}"
        yield Problem(field, problem)


def _of_resources(field: str, value: Any) -> Iterator[Problem]:
    if value is not None and not isinstance(value, dict):
        yield _of_type(field, value, "object")
        return
    for name, amount in (value or {}).items():
        if isinstance(amount, str) and re.search(_QUANTITY, amount) is None:
            path = f"{field}.{name}"
            yield Problem(path, f"Invalid value: \"{amount}\": {path} in body should match '{_QUANTITY}'")


def _of_type(field: str, value: Any, wanted: str, name: str | None = None) -> Problem:
    found = _NAMES.get(type(value), ("", ""))[0] if name is None else name
    problem = f'Invalid value: "{found}": {field} in body must be of type {wanted}: "{found}"'
    return Problem(field, problem, "FieldValueTypeInvalid")
