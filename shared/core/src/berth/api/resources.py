"""Quantities (``500m``, ``1.5Gi``, ``2e3``) as whole numbers, and the requests of a pod.

Quantities are rounded up as in Kubernetes; requests are summed over containers as in kubelet and kube-scheduler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

import msgspec

from berth.api.pod import Container, PodSpec, Quantities, ResourceRequirements
from berth.errors import PermanentError

CPU: Final = "cpu"
MEMORY: Final = "memory"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
PODS: Final = "pods"

# Scores count this for a container without a cpu request.
DEFAULT_CPU_MILLICORES: Final = 100
DEFAULT_MEMORY_BYTES: Final = 200 * 1024 * 1024
_DEFAULTS: Final[Mapping[str, int]] = {CPU: DEFAULT_CPU_MILLICORES, MEMORY: DEFAULT_MEMORY_BYTES}

Amounts = dict[str, int]  # cpu in millicores, everything else in base units
# Called with a sentence, path first, for each unreadable quantity; it counts as 0.
ReportProblem = Callable[[str], None]

# Kubernetes keeps values in an int64 and cuts larger ones.
MAX_VALUE: Final = 2**63 - 1

# From here on float64 columns are not exact: a score's hundredfold of it must stay below 2**53. 64 TiB.
LARGE: Final = 2**46

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BYTES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
# Beyond it every value is 0, one unit, or cut: the number need not be built.
_MAX_EXPONENT: Final = 64
_MAX_PLAIN_DIGITS: Final = 15  # such a number times 1000 is below MAX_VALUE
_MILLI: Final = 1000
_FORM: Final = re.compile(
    r"([+-]?)([0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:[eE]([+-]?[0-9]{1,6})|([KMGTPE]i|[numkMGTPE]?))"
)


class QuantityError(PermanentError):
    pass


def value(quantity: str | float) -> int:
    """The quantity in base units (bytes, counts), rounded up.

    Raises:
        QuantityError: not a quantity.
    """
    return _rounded_up(quantity, 1)


def milli_value(quantity: str | float) -> int:
    """The quantity in thousandths (millicores for cpu), rounded up.

    Raises:
        QuantityError: not a quantity.
    """
    return _rounded_up(quantity, 1000)


def of_resource(resource: str, quantity: str | float) -> int:
    """The quantity in the unit of columns: millicores for cpu, base units for everything else.

    Raises:
        QuantityError: not a quantity.
    """
    return milli_value(quantity) if resource == "cpu" else value(quantity)


@lru_cache(maxsize=8192)
def exact(quantity: str | float) -> int | Fraction:
    """The quantity in base units, not rounded; an int if it is whole.

    Raises:
        QuantityError: not a quantity.
    """
    number = _exact(str(quantity))
    return number.numerator if number.denominator == 1 else number


def exact_or_zero(quantity: str | float) -> int | Fraction:
    """The same; 0 for any other text, as in other places where quantities are counted."""
    try:
        return exact(quantity)
    except QuantityError:
        return 0


def quantity_text(amount: int | Fraction) -> str:
    """The amount as a quantity: ``3Gi``, ``1500m``, ``400``. Below a billionth it is rounded up."""
    if isinstance(amount, Fraction):
        for suffix, scale in (("m", 10**3), ("u", 10**6), ("n", 10**9)):
            if (scaled := amount * scale).denominator == 1 or suffix == "n":
                return f"{math.ceil(scaled)}{suffix}"
    whole = int(amount)
    for suffix, power in reversed(_BINARY.items()):
        if whole and whole % (1 << power) == 0:
            return f"{whole >> power}{suffix}"
    return str(whole)


def amount_in_words(resource: str, amount: int, *, up: bool = False) -> str:
    """``2.5``, ``500m``, ``3.75 GiB``: to two places, rounded down, or ``up``, so that no shortage disappears."""
    if resource == CPU:
        return f"{amount}m" if 0 < amount < 1000 else f"{amount / 1000:.3f}".rstrip("0").rstrip(".")
    if resource not in (MEMORY, EPHEMERAL_STORAGE) and not resource.startswith("hugepages-"):
        return str(amount)
    power = max(power for power in range(len(_BYTES)) if not power or amount >= 1024**power)
    hundredths = -(-amount * 100 // 1024**power) if up else amount * 100 // 1024**power
    return f"{f'{hundredths / 100:.2f}'.rstrip('0').rstrip('.')} {_BYTES[power]}"


@lru_cache(maxsize=8192)
def _rounded_up(quantity: str | float, scale: int) -> int:
    text = str(quantity)
    digits = text.removesuffix("m")
    if len(digits) <= _MAX_PLAIN_DIGITS and digits.isascii() and digits.isdigit():  # 1 us instead of 7
        return int(digits) * scale if digits is text else -(-int(digits) * scale // _MILLI)
    exact = _exact(text) * scale
    return max(-MAX_VALUE, min(MAX_VALUE, math.ceil(exact) if exact > 0 else math.floor(exact)))


def _exact(text: str) -> Fraction:
    form = _FORM.fullmatch(text)
    if form is None:
        raise QuantityError(f"want a quantity such as 500m or 2Gi, got {text!r}")
    sign, digits, exponent, suffix = form.groups()
    return Fraction(f"{sign}{digits}") * _factor(exponent, suffix or "")


def _factor(exponent: str | None, suffix: str) -> Fraction:
    if exponent is not None:
        return Fraction(10) ** max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(exponent)))
    if suffix in _BINARY:
        return Fraction(1 << _BINARY[suffix])
    return Fraction(10) ** _DECIMAL[suffix]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """A pod's requests.

    ``amounts`` must fit. ``nonzero_cpu`` and ``nonzero_memory`` (millicores, bytes) are counted by scores: a container
    without a request counts with a default there. ``problems`` lists unreadable quantities.
    """

    amounts: Amounts = field(default_factory=dict)
    nonzero_cpu: int = 0
    nonzero_memory: int = 0
    problems: tuple[str, ...] = ()


def pod_requests(spec: PodSpec) -> Requests:
    """The pod's requests; an unreadable quantity counts as 0 and is named in ``problems``."""
    problems: list[str] = []
    containers = _requests_of(spec.containers, "spec.containers", problems.append)
    init_containers = _requests_of(spec.init_containers, "spec.initContainers", problems.append)
    sidecars = [is_sidecar(container) for container in spec.init_containers or ()]
    pod_level = _pod_level(spec.resources, problems.append)
    overhead = read_amounts(spec.overhead, "spec.overhead", problems.append)

    def total(defaults: Mapping[str, int]) -> Amounts:
        amounts = _over_time(_defaulted(containers, defaults), _defaulted(init_containers, defaults), sidecars)
        return _sum(amounts | pod_level, overhead)

    amounts = total({})
    missing = {name: amount for name, amount in _DEFAULTS.items() if not (pod_level and name in amounts)}
    nonzero = total(missing)
    return Requests(
        amounts=amounts,
        nonzero_cpu=nonzero.get(CPU, 0),
        nonzero_memory=nonzero.get(MEMORY, 0),
        problems=tuple(problems),
    )


def pod_limits(spec: PodSpec) -> Amounts:
    """The pod's limits, counted as requests are. Containers without a limit add nothing; overhead adds to a limit."""

    def limited(resources: ResourceRequirements | None) -> ResourceRequirements | None:
        return resources and msgspec.structs.replace(resources, requests=resources.limits)

    def all_limited(containers: list[Container] | None) -> list[Container]:
        return [msgspec.structs.replace(each, resources=limited(each.resources)) for each in containers or ()]

    limits = pod_requests(
        msgspec.structs.replace(
            spec,
            containers=all_limited(spec.containers),
            init_containers=all_limited(spec.init_containers),
            resources=limited(spec.resources),
            overhead=None,
        )
    ).amounts
    overhead = read_amounts(spec.overhead, "spec.overhead", lambda _: None)
    return {name: amount + overhead.get(name, 0) for name, amount in limits.items() if amount}


def is_sidecar(container: Container) -> bool:
    return container.restart_policy == "Always"


def is_scalar(resource: str) -> bool:
    """Whether the resource is extended, huge pages or attachable volumes: counted only where named."""
    return ("/" in resource and not resource.startswith("requests.")) or resource.startswith(
        ("hugepages-", "attachable-volumes-")
    )


def is_extended(resource: str) -> bool:
    """Whether the resource is extended, such as ``example.com/gpu``."""
    return "/" in resource and "kubernetes.io/" not in resource and not resource.startswith("requests.")


# Every DeviceClass serves the extended resource of this prefix and its own name.
DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"


def may_be_served(resource: str) -> bool:
    """Whether a DeviceClass may serve the resource."""
    return is_extended(resource) or resource.startswith(DEVICE_CLASS_PREFIX)


def is_counted(resource: str) -> bool:
    """Whether scheduling counts the resource at all: cpu, memory, ephemeral storage and scalars."""
    return resource in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_scalar(resource)


def counted(amounts: Mapping[str, int]) -> Amounts:
    return {resource: amount for resource, amount in amounts.items() if is_counted(resource)}


def read_amounts(quantities: Quantities | None, path: str, report: ReportProblem) -> Amounts:
    """Quantities as amounts; an unreadable one counts as 0 and is reported. Negative ones count as 0."""
    amounts: Amounts = {}
    for resource, quantity in (quantities or {}).items():
        try:
            amounts[resource] = max(0, of_resource(resource, quantity))
        except QuantityError as exc:
            amounts[resource] = 0
            report(f"{path}.{resource}: {exc}")
    return amounts


def _requests_of(containers: list[Container] | None, path: str, report: ReportProblem) -> list[Amounts]:
    return [
        read_amounts(
            container.resources.requests if container.resources else None, f"{path}[{i}].resources.requests", report
        )
        for i, container in enumerate(containers or ())
    ]


def _pod_level(resources: ResourceRequirements | None, report: ReportProblem) -> Amounts:
    # Requests of the pod as a whole replace its containers' for cpu, memory and huge pages only.
    amounts = read_amounts(resources.requests if resources else None, "spec.resources.requests", report)
    return {name: n for name, n in amounts.items() if name in _DEFAULTS or name.startswith("hugepages-")}


def _defaulted(containers: Iterable[Amounts], defaults: Mapping[str, int]) -> list[Amounts]:
    # A default counts where the key is absent; an explicit 0 stays 0.
    return [{**defaults, **amounts} for amounts in containers]


def _over_time(containers: Iterable[Amounts], init_containers: Iterable[Amounts], sidecars: Iterable[bool]) -> Amounts:
    # The maximum over time: init containers in turn beside the sidecars before them, then all containers.
    running: Amounts = {}
    peak: Amounts = {}
    for amounts, sidecar in zip(init_containers, sidecars, strict=True):
        if sidecar:
            running = _sum(running, amounts)
            peak = _max(peak, running)
        else:
            peak = _max(peak, _sum(running, amounts))
    for amounts in containers:
        running = _sum(running, amounts)
    return _max(peak, running)


def _sum(left: Amounts, right: Amounts) -> Amounts:
    if not left or not right:  # Most pods have neither init containers nor overhead.
        return left or right
    return {name: left.get(name, 0) + right.get(name, 0) for name in left.keys() | right.keys()}


def _max(left: Amounts, right: Amounts) -> Amounts:
    if not left:
        return right
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}
