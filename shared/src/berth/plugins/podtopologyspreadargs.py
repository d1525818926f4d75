"""The arguments of PodTopologySpread and what is wrong with them."""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.pod import TopologySpreadConstraint
from berth.plugins.factory import Args
from berth.plugins.labelargs import key_problems
from berth.plugins.spreadconstraints import DO_NOT_SCHEDULE, HOSTNAME, SCHEDULE_ANYWAY, ZONE

SYSTEM: Final = "System"
LIST: Final = "List"
SYSTEM_CONSTRAINTS: Final = (
    TopologySpreadConstraint(max_skew=3, topology_key=HOSTNAME, when_unsatisfiable=SCHEDULE_ANYWAY),
    TopologySpreadConstraint(max_skew=5, topology_key=ZONE, when_unsatisfiable=SCHEDULE_ANYWAY),
)
"""What pods without constraints of their own have under ``defaultingType: System``."""


class PodTopologySpreadArgs(Args, frozen=True, kw_only=True):
    """``defaultConstraints``: for pods that have none of their own, under ``defaultingType: List``."""

    default_constraints: list[TopologySpreadConstraint] | None = None
    defaulting_type: str = SYSTEM

    def __post_init__(self) -> None:
        """Empty is not written."""
        if not self.defaulting_type:
            msgspec.structs.force_setattr(self, "defaulting_type", SYSTEM)


def validate(args: PodTopologySpreadArgs, path: str) -> list[str]:
    """Every problem, with its path."""
    given, where = args.default_constraints or [], f"{path}.defaultConstraints"
    problems = []
    if args.defaulting_type not in (SYSTEM, LIST):
        problems.append(f"{path}.defaultingType: want {SYSTEM} or {LIST}, got {args.defaulting_type!r}")
    if args.defaulting_type == SYSTEM and given:
        problems.append(f"{path}.defaultingType: want {LIST} where there are defaultConstraints, got {SYSTEM!r}")
    problems += [problem for i, c in enumerate(given) for problem in _problems_of(c, f"{where}[{i}]")]
    pairs = [(constraint.topology_key, constraint.when_unsatisfiable) for constraint in given]
    return problems + [
        f"{where}[{i}]: want a constraint of its own, got {key!r} with {action!r} once more"
        for i, (key, action) in enumerate(pairs)
        if (key, action) in pairs[:i]
    ]


def _problems_of(constraint: TopologySpreadConstraint, path: str) -> list[str]:
    problems = key_problems(constraint.topology_key, f"{path}.topologyKey")
    if constraint.max_skew <= 0:
        problems.append(f"{path}.maxSkew: want more than 0, got {constraint.max_skew}")
    if constraint.when_unsatisfiable not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY):
        got = constraint.when_unsatisfiable
        problems.append(f"{path}.whenUnsatisfiable: want {DO_NOT_SCHEDULE} or {SCHEDULE_ANYWAY}, got {got!r}")
    if constraint.label_selector is not None:
        problems.append(f"{path}.labelSelector: want none, it follows from the pod's services and its controller")
    return problems
