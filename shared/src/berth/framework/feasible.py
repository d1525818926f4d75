"""The feasible nodes of one cycle: Filter on all nodes at once, nominated pods included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import ClassResults
from berth.framework.filtering import PreFiltered, filter_node_with, nominated_pods
from berth.framework.interface import FilterPlugin
from berth.framework.plugincalls import run_filter_on_all, with_plugin_name
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, Codes, Diagnosis, Mask, Status


class FeasibleNodes:
    """Runs the filters of one cycle. ``mask``: bool[rows], which nodes are feasible, once ``find`` has run.

    Where all filters are row-local, the answer is in the equivalence cache and ``find`` runs no filter one by one. The
    reasons of rejected nodes are then computed only when ``diagnosis`` is called.
    """

    def __init__(
        self, pod: Pod, snapshot: Snapshot, profile: Profile, found: PreFiltered, results: ClassResults
    ) -> None:
        self._pod = pod
        self._snapshot = snapshot
        self._found = found
        self._results = results
        self._profile = profile
        self._filters = [f for f in profile.filters if f.name not in found.skipped]
        self._diagnosis: Diagnosis | None = None
        self._nominated: dict[int, Status] = {}
        self.mask: Mask = np.zeros(0, dtype=np.bool_)

    def find(self) -> None:
        """Find the feasible nodes.

        Raises:
            PluginFailure: a plugin failed.
        """
        self._results.refresh_filters()
        self._nominated = self._rejected_with_nominated_pods()
        if self._all_cached():
            self.mask = self._results.fits[: self._snapshot.size].copy()
            self.mask[list(self._nominated)] = False
        else:
            self._run_filters()

    def diagnosis(self) -> Diagnosis:
        """Why nodes are rejected.

        Raises:
            PluginFailure: a plugin failed.
        """
        if self._diagnosis is None:
            self._run_filters()
        return self._diagnosis or Diagnosis(self._snapshot.node_count)

    def _all_cached(self) -> bool:
        local = all(f.is_row_local for f in self._filters) and self._found.nodes is None
        return local and not any(column.errors for column in self._results.columns.values())

    def _run_filters(self) -> None:
        """Filter after filter, each on the nodes that the filters before it accepted."""
        self._diagnosis = diagnosis = Diagnosis(self._snapshot.node_count)
        remaining = self._snapshot.columns.exists[: self._snapshot.size].copy()
        self._reject_other_nodes(remaining, diagnosis)
        self._reject_for_nominated_pods(remaining, diagnosis)
        for plugin in self._filters:
            codes, statuses = self._verdicts(plugin, remaining)
            rejected = remaining & (codes != 0)
            diagnosis.add_codes(statuses, codes, rejected)
            remaining &= ~rejected
        self.mask = remaining

    def _verdicts(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        column = self._results.columns.get(plugin.name)
        if column is None:
            codes, statuses = self._run(plugin, remaining)
        else:
            codes, statuses = column.codes[: len(remaining)], column.statuses
        for code, status in enumerate(statuses):
            if status.code is status.code.ERROR and np.any(remaining & (codes == code)):
                with_plugin_name(plugin, "Filter", status)
        return codes, statuses

    def _run(self, plugin: FilterPlugin, remaining: Mask) -> tuple[Codes, Sequence[Status]]:
        rows = np.flatnonzero(remaining)
        verdicts = run_filter_on_all(plugin, self._found.state, self._pod, Nodes(self._snapshot, rows))
        codes: Codes = np.zeros(len(remaining), dtype=np.int32)
        codes[rows] = verdicts.codes
        return codes, [SUCCESS, *(Status(s.code, s.reasons, plugin.name) for s in verdicts.statuses[1:])]

    def _reject_other_nodes(self, remaining: Mask, diagnosis: Diagnosis) -> None:
        """Where PreFilter has named the only nodes that can be feasible."""
        if self._found.nodes is None:
            return
        rows = [row for name in self._found.nodes if (row := self._snapshot.rows.of(name)) is not None]
        others = remaining.copy()
        others[rows] = False
        diagnosis.add(self._found.status_of_other_nodes(), np.flatnonzero(others))
        remaining &= ~others

    def _reject_for_nominated_pods(self, remaining: Mask, diagnosis: Diagnosis) -> None:
        for row, status in self._nominated.items():
            if remaining[row]:
                diagnosis.add(status, np.array([row]))
                remaining[row] = False

    def _rejected_with_nominated_pods(self) -> dict[int, Status]:
        rejected: dict[int, Status] = {}
        state, skipped = self._found.state, self._found.skipped
        for node, nominated in nominated_pods(self._pod, self._snapshot).items():
            info = node_info(self._snapshot, node)
            if info is not None:
                status = filter_node_with(nominated, state, self._pod, info, self._profile, skipped=skipped)
                if not status.is_success:
                    rejected[info.row] = status
        return rejected
