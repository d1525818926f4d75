"""The placed pods that have volumes: where they are, and which claims they use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from berth.api.pod import Pod


class PodVolumes:
    """Kept up as pods come and go; pods without volumes cost nothing."""

    def __init__(self) -> None:
        self._on_row: dict[int, dict[str, Pod]] = {}
        self._counts: Counter[int] = Counter()
        self._users: Counter[tuple[str, str]] = Counter()

    def count(self, pod: Pod, row: int, by: int) -> None:
        """A pod comes to a row (1) or leaves it (-1)."""
        if not pod.spec.volumes:
            return
        self._counts[row] += by * len(pod.spec.volumes)
        if by > 0:
            self._on_row.setdefault(row, {})[pod.uid] = pod
        else:
            self._leave(pod.uid, row)
        for volume in pod.spec.volumes:
            if volume.persistent_volume_claim is not None:
                self._use((pod.metadata.namespace, volume.persistent_volume_claim.claim_name), by)

    def on_row(self, row: int) -> Collection[Pod]:
        """The pods with volumes on a row."""
        return self._on_row.get(row, {}).values()

    def count_on(self, row: int) -> int:
        """How many volumes they have together, each as often as it is named."""
        return self._counts[row]

    @property
    def rows(self) -> Collection[int]:
        """The rows that have such pods."""
        return self._on_row.keys()

    def is_used(self, namespace: str, claim: str) -> bool:
        """Whether a placed pod uses the claim; claims that were made for a pod are its own and not looked at."""
        return (namespace, claim) in self._users

    def _leave(self, uid: str, row: int) -> None:
        there = self._on_row.get(row, {})
        there.pop(uid, None)
        if not there:
            self._on_row.pop(row, None)
            del self._counts[row]

    def _use(self, claim: tuple[str, str], by: int) -> None:
        self._users[claim] += by
        if self._users[claim] <= 0:
            del self._users[claim]
