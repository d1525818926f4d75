"""PodGroups by the name that pods have for them, the pods that name each, and the domain in which a group runs.

A pod belongs to the group of that name, whatever uid it has: controllers remake a PodGroup under living pods. Finished
pods stay members until they are deleted, because succeeded ones may count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.kinds import COSCHEDULING_POD_GROUP, POD_GROUP
from berth.api.pod import Pod
from berth.api.podgroups import (
    CoschedulingPodGroup,
    Dialect,
    GroupKey,
    PodGroup,
    UpstreamPodGroup,
    group_of,
    of_coscheduling,
    of_upstream,
)
from berth.cluster.columns import ABSENT
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot

_G = TypeVar("_G", CoschedulingPodGroup, UpstreamPodGroup)

# By dialect, the kind of its PodGroups, and their type.
KINDS: Final = {Dialect.COSCHEDULING: COSCHEDULING_POD_GROUP.name, Dialect.UPSTREAM: POD_GROUP.name}
STRUCTS: Final[Mapping[Dialect, type[CoschedulingPodGroup | UpstreamPodGroup]]] = {
    Dialect.COSCHEDULING: CoschedulingPodGroup,
    Dialect.UPSTREAM: UpstreamPodGroup,
}

_NONE: Final[Mapping[str, Pod]] = {}


class PodGroups:
    """Follows the PodGroups of a Snapshot; its owner reports the pods, also unbound and finished ones."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._groups: dict[GroupKey, PodGroup] = {}
        self._pods: dict[GroupKey, dict[str, Pod]] = {}
        self._key_of: dict[str, GroupKey] = {}
        self._on_change: Callable[[GroupKey], object] = _ignore
        self.absent: set[Dialect] = set()  # that the API server does not serve: their pods are ordinary pods
        self._follow(snapshot.objects(CoschedulingPodGroup), of_coscheduling)
        self._follow(snapshot.objects(UpstreamPodGroup), of_upstream)

    @staticmethod
    def of(snapshot: Snapshot) -> PodGroups:
        """Those of the Snapshot, made once."""
        return snapshot.derived(PodGroups, lambda: PodGroups(snapshot))

    def get(self, key: GroupKey) -> PodGroup | None:
        return self._groups.get(key)

    def pods(self, key: GroupKey) -> Mapping[str, Pod]:
        """By uid, the pods that name the group."""
        return self._pods.get(key, _NONE)

    @property
    def known(self) -> Mapping[GroupKey, PodGroup]:
        return self._groups

    @property
    def named(self) -> Collection[GroupKey]:
        """The groups that pods name."""
        return self._pods.keys()

    def notify(self, on_change: Callable[[GroupKey], object] | None) -> None:
        """Call it with each group whose PodGroup or pods change; ``None``: no more."""
        self._on_change = on_change or _ignore

    def note_served(self, kind: str, *, is_served: bool) -> None:
        """Whether the API server has the kind."""
        for dialect in [dialect for dialect, name in KINDS.items() if name == kind]:
            if is_served is (dialect in self.absent):
                self.absent ^= {dialect}
                for key in self._pods:
                    self._on_change(key)

    def observe(self, pod: Pod) -> None:
        """The pod has this state."""
        uid, key = pod.metadata.uid, group_of(pod)
        if key is None and uid not in self._key_of:
            return
        if self._key_of.get(uid) != key:
            self.remove(uid)
        if key is not None:
            self._key_of[uid] = key
            self._pods.setdefault(key, {})[uid] = pod
            self._on_change(key)

    def remove(self, uid: str) -> None:
        """The pod is gone; an unknown one is ignored."""
        key = self._key_of.pop(uid, None)
        if key is not None:
            pods = self._pods[key]
            del pods[uid]
            if not pods:
                del self._pods[key]
            self._on_change(key)

    def keep(self, present: Collection[str]) -> None:
        """Remove all pods but these."""
        for uid in [uid for uid in self._key_of if uid not in present]:
            self.remove(uid)

    def _follow(self, objects: Objects[_G], form_of: Callable[[_G], PodGroup]) -> None:
        def note(before: _G | None, after: _G | None) -> None:
            if after is not None:
                form = form_of(after)
                self._groups[form.key] = form
                self._on_change(form.key)
            elif before is not None:
                form = form_of(before)
                known = self._groups.get(form.key)
                if known is not None and known.uid == form.uid:  # else it was remade meanwhile
                    del self._groups[form.key]
                    self._on_change(form.key)

        for each in objects:
            note(None, each)
        objects.follow(note)


def _ignore(_key: GroupKey) -> None:
    pass


def home_domain(
    snapshot: Snapshot,
    key: str,
    rows: Mapping[int, int],
    codes: npt.NDArray[np.int32],
    is_member: Callable[[Pod], bool],
) -> tuple[int | None, str]:
    """The domain of a group's bound members, the one with most of them; None without one. And what is odd about it.

    ``rows``: the number of members on each row. ``codes``: int32[rows], each row's domain of the label ``key``, or
    ABSENT.
    """

    def named(code: int) -> str:
        """One of the members there and its node."""
        row = min((row for row in rows if codes[row] == code), key=lambda row: snapshot.rows.names[row])
        pod = min(placed.pod.metadata.name for placed in snapshot.placed_on_row(row) if is_member(placed.pod))
        return f"{pod} on {snapshot.rows.names[row]}{', ...' if counts[code] > 1 else ''}"

    names, counts = snapshot.label_column(key).values, Counter[int]()
    for row, count in rows.items():
        counts[int(codes[row])] += count
    notes = []
    if outside := counts[ABSENT]:
        are = "1 bound member is on a node" if outside == 1 else f"{outside} bound members are on nodes"
        notes.append(f"{are} without the label {key}: {named(ABSENT)}")
    domains = sorted(counts.keys() - {ABSENT}, key=lambda code: names[code])
    home = max(domains, key=lambda code: counts[code], default=None)
    if len(domains) > 1:
        elsewhere = next(code for code in domains if code != home)
        listed = (
            f"{counts[code]} in {names[code]}{f' ({named(code)})' if code == elsewhere else ''}" for code in domains
        )
        notes.append(f"its bound members are in {len(domains)} domains of {key}: {', '.join(listed)}")
    return home, "; ".join(notes)
