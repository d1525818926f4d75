"""Volumes for the claims of a pod that wait for their first consumer: which would be taken on a node, which made.

The smallest volume that is large enough is taken, claim after claim from the smallest on; for others one is made.
What follows from claims and volumes alone is found once for a pod; a node adds from where it can reach what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.selectors import EVERY_LABEL, Labels, compile_label_selector
from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.verdicts import Mask
from berth.plugins.volumeprovisioning import claimed_bytes, provisioning_of, volume_bytes
from berth.plugins.volumereach import EVERYWHERE, OnlyNode, Where, plain_reach

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
"""An annotation of claims: the node for which a volume is being made."""
AVAILABLE: Final = "Available"
FILESYSTEM: Final = "Filesystem"
"""What a volume and a claim are that do not say."""

FITS: Final = 0
NO_VOLUME: Final = 1
NO_ROOM: Final = 2

Places = npt.NDArray[np.intp]
"""Places of volumes in the pool of a search."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node can do for the pod: ``taken`` volumes, claims that have one ``made``; or why not (``problem``)."""

    problem: int = FITS
    taken: tuple[tuple[PersistentVolumeClaim, PersistentVolume], ...] = ()
    made: tuple[PersistentVolumeClaim, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """A claim that waits, and the volumes that it could take, the smallest first.

    ``promised`` are kept for just this claim: the first of them is taken or none. ``here``, ``topology`` and ``room``
    are the numbers of the questions whether a volume can be made for it.
    """

    claim: PersistentVolumeClaim
    is_being_made: bool
    promised: Places
    others: Places
    here: int
    topology: int
    room: int


class VolumeSearch:
    """The search for the claims of one pod, on one state."""

    def __init__(self, claims: Sequence[PersistentVolumeClaim], snapshot: Snapshot) -> None:
        self._pool: list[PersistentVolume] = []
        self._questions: list[Where] = []
        being_made = [claim for claim in claims if _selected_node(claim) is not None]
        waiting = sorted((claim for claim in claims if _selected_node(claim) is None), key=claimed_bytes)
        found = [self._candidates(claim, snapshot) for claim in waiting]
        self._questions.extend(plain_reach(volume) for volume in self._pool)
        none = _places(())
        self._wishes = [
            *(self._wish(claim, (none, none), snapshot) for claim in being_made),
            *(self._wish(claim, candidates, snapshot) for claim, candidates in zip(waiting, found, strict=True)),
        ]

    def on_node(self, node: NodeInfo) -> Plan:
        """What the node can do."""
        return self._plan(np.array([where.includes(node) for where in self._questions], dtype=np.bool_))

    def problems(self, nodes: Nodes) -> npt.NDArray[np.int64]:
        """int64[nodes]: the problem of each node's plan. Nodes that reach the same volumes are looked at once."""
        answers = np.array([where.mask(nodes) for where in self._questions], dtype=np.bool_)
        kinds, kind_of = _kinds(answers)
        problems = np.array([self._plan(answers[:, kind]).problem for kind in kinds.tolist()], dtype=np.int64)
        return problems[kind_of]

    def _candidates(self, claim: PersistentVolumeClaim, snapshot: Snapshot) -> tuple[Places, Places]:
        """The places of the promised and of the other volumes that suit a claim, wherever they can be reached from."""
        volumes = [volume for volume in snapshot.objects(PersistentVolume) if _may_have(volume, claim)]
        volumes.sort(key=lambda volume: (volume_bytes(volume), volume.metadata.name))
        selector = _selector(claim)
        promised = [volume for volume in volumes if is_promised(volume, claim)]
        others = [volume for volume in volumes if _is_free(volume, claim, selector)]
        return _places(self._place(volume) for volume in promised), _places(self._place(volume) for volume in others)

    def _place(self, volume: PersistentVolume) -> int:
        self._pool.append(volume)
        return len(self._pool) - 1

    def _wish(self, claim: PersistentVolumeClaim, found: tuple[Places, Places], snapshot: Snapshot) -> _Wish:
        node, provisioning = _selected_node(claim), provisioning_of(claim, snapshot)
        first = len(self._questions)
        here = EVERYWHERE if node is None else OnlyNode(node)
        self._questions.extend((here, provisioning.topology, provisioning.room))
        return _Wish(
            claim=claim,
            is_being_made=node is not None,
            promised=found[0],
            others=found[1],
            here=first,
            topology=first + 1,
            room=first + 2,
        )

    def _plan(self, answers: Mask) -> Plan:
        """What follows from the answers to all questions, for one node."""
        if not all(answers[wish.here] for wish in self._wishes):
            return Plan(NO_VOLUME)
        taken: dict[str, tuple[PersistentVolumeClaim, PersistentVolume]] = {}
        made: list[_Wish] = []
        for wish in self._wishes:
            volume = None if wish.is_being_made else self._pick(wish, answers, taken)
            if volume is None:
                made.append(wish)
            else:
                taken[volume.metadata.name] = (wish.claim, volume)
        problem = next((_problem(wish, answers) for wish in made if _problem(wish, answers)), FITS)
        if problem:
            return Plan(problem)
        return Plan(FITS, tuple(taken.values()), tuple(wish.claim for wish in made))

    def _pick(self, wish: _Wish, answers: Mask, taken: Iterable[str]) -> PersistentVolume | None:
        promised = next((place for place in wish.promised.tolist() if self._name(place) not in taken), None)
        if promised is not None:
            return self._pool[promised] if answers[promised] else None
        reached = wish.others[answers[wish.others]].tolist()
        return next((self._pool[place] for place in reached if self._name(place) not in taken), None)

    def _name(self, place: int) -> str:
        return self._pool[place].metadata.name


def is_promised(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is kept for the claim, or for whoever has its name."""
    promise, meta = volume.spec.claim_ref, claim.metadata
    if promise is None or (promise.namespace, promise.name) != (meta.namespace, meta.name):
        return False
    return promise.uid in ("", meta.uid)


def _places(places: Iterable[int]) -> Places:
    return np.fromiter(places, dtype=np.intp)


def _selected_node(claim: PersistentVolumeClaim) -> str | None:
    return (claim.metadata.annotations or {}).get(SELECTED_NODE)


def _selector(claim: PersistentVolumeClaim) -> Labels:
    return EVERY_LABEL if claim.spec.selector is None else compile_label_selector(claim.spec.selector)


def _may_have(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether the volume is of the claim's class and form, large enough and nobody else's."""
    has, wants = volume.spec, claim.spec
    return (
        volume.class_name == claim.class_name
        and (has.claim_ref is None or is_promised(volume, claim))
        and volume_bytes(volume) >= claimed_bytes(claim)
        and (has.volume_mode or FILESYSTEM) == (wants.volume_mode or FILESYSTEM)
        and (has.volume_attributes_class_name or "") == (wants.volume_attributes_class_name or "")
        and volume.metadata.deletion_timestamp is None
    )


def _is_free(volume: PersistentVolume, claim: PersistentVolumeClaim, selector: Labels) -> bool:
    return (
        volume.spec.claim_ref is None
        and volume.status.phase == AVAILABLE
        and selector.matches(volume.metadata.labels or {})
        and set(claim.spec.access_modes or ()) <= set(volume.spec.access_modes or ())
    )


def _problem(wish: _Wish, answers: Mask) -> int:
    """Why no volume can be made for the claim."""
    if not answers[wish.topology]:
        return NO_VOLUME
    return FITS if answers[wish.room] else NO_ROOM


def _kinds(answers: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """``answers``: bool[questions, nodes]. One node of each kind, and for each node the number of its kind."""
    packed = np.ascontiguousarray(np.packbits(answers, axis=0).T)
    whole = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, kind_of = np.unique(whole, return_index=True, return_inverse=True)
    return first, kind_of
