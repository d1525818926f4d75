"""Why nodes were refused: by plugin and reason for people, by node for PostFilter, in kube-scheduler's words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from berth.api.messages import Rejection
from berth.framework.status import Code, Codes, Mask, Status

NO_NODES = "no nodes available to schedule pods"
EXAMPLES = 3
"""How many nodes a rejection names."""
RowIndex = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class DiagnosisEntry:
    """Rows that were refused with one status; the status names the plugin."""

    status: Status
    rows: RowIndex


@dataclass(slots=True)
class Diagnosis:
    """All refused rows. ``node_count`` is how many nodes there are."""

    node_count: int
    refused: list[DiagnosisEntry] = field(default_factory=list)

    def add(self, status: Status, rows: RowIndex) -> None:
        """Rows that one status refuses."""
        if len(rows):
            self.refused.append(DiagnosisEntry(status, rows))

    def add_codes(self, statuses: Sequence[Status], codes: Codes, refused: Mask) -> None:
        """Rows that a filter refuses: ``codes`` index into ``statuses``."""
        rows = np.flatnonzero(refused)
        there = codes[rows]
        for code in np.flatnonzero(np.bincount(there)).tolist():
            self.add(statuses[code], rows[there == code])

    def status_of(self, row: int) -> Status | None:
        """Why the row was refused, if it was."""
        return next((r.status for r in self.refused if row in r.rows), None)

    def resolvable_rows(self) -> RowIndex:
        """Rows on which evicting pods may help."""
        rows = [r.rows for r in self.refused if r.status.code is Code.UNSCHEDULABLE]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.intp)

    def blockers(self) -> tuple[str, ...]:
        """The plugins that refused nodes, by name."""
        return tuple(sorted({name for r in self.refused for name in r.status.plugin.split(",") if name}))

    def rejections(self, names: Sequence[str]) -> tuple[Rejection, ...]:
        """One for each plugin and reason, the most frequent first; ``names`` are the rows' nodes."""
        groups: dict[tuple[str, str], list[DiagnosisEntry]] = {}
        for refusal in self.refused:
            for reason in refusal.status.reasons:
                groups.setdefault((refusal.status.plugin, reason), []).append(refusal)
        made = [_rejection(plugin, reason, refusals, names) for (plugin, reason), refusals in groups.items()]
        return tuple(sorted(made, key=lambda r: (-r.nodes, r.plugin, r.reason)))

    def message(self) -> str:
        """Why no node is feasible: ``0/5 nodes are available: 3 Insufficient cpu, 2 node(s) were unschedulable.``."""
        if self.node_count == 0:
            return NO_NODES
        counts: Counter[str] = Counter()
        for refusal in self.refused:
            for reason in refusal.status.reasons:
                counts[reason] += len(refusal.rows)
        return unavailable(self.node_count, sorted(f"{count} {reason}" for reason, count in counts.items()))


def unavailable(node_count: int, reasons: Iterable[str]) -> str:
    """The sentence that begins every "no"."""
    listed = ", ".join(reasons)
    return f"0/{node_count} nodes are available:{f' {listed}.' if listed else ''}"


def _rejection(plugin: str, reason: str, refusals: Sequence[DiagnosisEntry], names: Sequence[str]) -> Rejection:
    first = sorted(row for refusal in refusals for row in refusal.rows[:EXAMPLES].tolist())[:EXAMPLES]
    return Rejection(
        plugin=plugin,
        reason=reason,
        nodes=sum(len(refusal.rows) for refusal in refusals),
        examples=[names[row] for row in first],
        resolvable=any(refusal.status.code is Code.UNSCHEDULABLE for refusal in refusals),
    )
