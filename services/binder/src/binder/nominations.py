"""For whom which node is kept: as the API shows it, and as this binder has decided where no watch has shown it yet."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class Decided:
    """A node that this binder keeps for a pod.

    ``victims``: uids of pods whose deletion it has asked for. ``version``: the pod's resourceVersion from which on its
    status says it; 0 as long as the API server has not answered.
    """

    node: str
    victims: frozenset[str]
    version: int = 0
    is_shown: bool = False


class Nominations:
    """What the Snapshot is told of nominated pods."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._decided: dict[str, Decided] = {}

    def shown(self, pod: Pod, version: int) -> None:
        """The API shows the pod unbound, at this resourceVersion. What was decided counts until then."""
        decided = self._decided.get(pod.uid)
        if decided is not None and not decided.is_shown:
            decided.is_shown = 0 < decided.version <= version
        if decided is not None and not decided.is_shown:
            self._snapshot.nominate(pod, decided.node)
        elif pod.status.nominated_node_name:
            self._snapshot.nominate(pod, pod.status.nominated_node_name)
        else:
            self._snapshot.end_nomination(pod.uid)

    def ended(self, uid: str) -> None:
        """The pod is on a node, or is not there any more."""
        self._decided.pop(uid, None)
        self._snapshot.end_nomination(uid)

    def decide(self, pod: Pod, node: str, victims: frozenset[str]) -> None:
        """The node is kept for the pod from now on."""
        self._decided[pod.uid] = Decided(node=node, victims=victims)
        self._snapshot.nominate(pod, node)

    def answered(self, uid: str, version: int) -> None:
        """The API server has written it, in the pod's status of this resourceVersion."""
        decided = self._decided.get(uid)
        if decided is not None:
            decided.version = version

    def is_unanswered(self, uid: str) -> bool:
        """Whether a node is kept for the pod that the API server may not know of."""
        decided = self._decided.get(uid)
        return decided is not None and not decided.version

    def take_back(self, uid: str) -> None:
        """Nothing came of it."""
        self._decided.pop(uid, None)

    def unanswered(self) -> list[str]:
        """The pods for which a node is kept that the API server may not know of."""
        return [uid for uid in self._decided if self.is_unanswered(uid)]

    def node_of(self, pod: Pod) -> str:
        """Which node is kept for the pod as far as the API server knows; empty for none."""
        decided = self._decided.get(pod.uid)
        is_news = decided is not None and decided.version and not decided.is_shown
        return decided.node if decided is not None and is_news else pod.status.nominated_node_name

    def victims_of(self, uid: str) -> frozenset[str]:
        """Whose deletion this binder has asked for on behalf of the pod."""
        decided = self._decided.get(uid)
        return frozenset() if decided is None else decided.victims
