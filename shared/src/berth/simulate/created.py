"""A cluster and the pods to be placed, as if the API server had stored what of them nobody created yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from berth.api.messages import MALFORMED
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.volumes import WAIT_FOR_FIRST_CONSUMER, PersistentVolumeClaim, StorageClass
from berth.simulate.creation.admission import Admission
from berth.simulate.creation.claims import claims_of_volumes, default_class, with_class
from berth.simulate.creation.limitranges import LimitRange
from berth.simulate.creation.manifest import Manifest, ManifestSpec
from berth.simulate.creation.namerules import refused_metadata
from berth.simulate.creation.podrules import refused_claim, refused_limits, refused_node
from berth.simulate.documents import fitted
from berth.simulate.objects import FoundObject, KubernetesObject, as_pod

T = TypeVar("T", bound=KubernetesObject)
_decoder = msgspec.json.Decoder(Manifest)


@dataclass(slots=True, kw_only=True)
class Creation:
    """``there`` are the cluster's pods, ``others`` its other objects; ``problems`` are why some would be refused."""

    there: tuple[Pod, ...] = ()
    others: list[KubernetesObject] = field(default_factory=list)
    wanted: tuple[Pod, ...] = ()
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def created(there: Sequence[FoundObject[KubernetesObject]], wanted: Iterable[FoundObject[Pod]]) -> Creation:
    """Everything as stored, and the claims that would be made for the pods."""
    return _Creating(there).done(there, wanted)


class _Creating:
    """Takes the objects one by one. New claims are kept in two lists: those that files hold, those of pods' volumes."""

    def __init__(self, there: Sequence[FoundObject[KubernetesObject]]) -> None:
        things = [one.thing for one in there]
        self._admission = Admission(things)
        self._default_class = default_class(one for one in things if isinstance(one, StorageClass))
        self._creation = Creation()
        self._claims: list[PersistentVolumeClaim] = []
        self._of_pods: list[PersistentVolumeClaim] = []
        self._noted: dict[str, list[str]] = {}

    def done(self, there: Sequence[FoundObject[KubernetesObject]], wanted: Iterable[FoundObject[Pod]]) -> Creation:
        creation = self._creation
        creation.others = [self._other(one) for one in there if not isinstance(one.thing, Pod)]
        creation.there = tuple(self._pod(pod) for one in there if (pod := as_pod(one)) is not None)
        creation.wanted = tuple(self._pod(one) for one in wanted)
        known = {_key(one) for one in creation.others if isinstance(one, PersistentVolumeClaim)}
        made = [claim for claim in self._of_pods if _key(claim) not in known]
        creation.others += made
        creation.notes.extend(f"{_first_of(places)}: {note}" for note, places in self._noted.items())
        creation.notes.extend(_of_claims([*self._claims, *made], creation.others))
        return creation

    def _other(self, one: FoundObject[KubernetesObject]) -> KubernetesObject:
        if not one.manifest:
            return one.thing
        self._refuse(one, _refused(one.thing))
        if not isinstance(one.thing, PersistentVolumeClaim):
            return one.thing
        claim = with_class(one.thing, self._default_class)
        self._claims.append(claim)
        return claim

    def _pod(self, one: FoundObject[Pod]) -> Pod:
        if not one.manifest:
            return one.thing
        manifest = self._manifest(one)
        if manifest is None:
            return one.thing
        admitted = self._admission.admitted(one.thing, runtime=manifest.runtime_class_name)
        self._refuse(one, admitted.refusals)
        for note in admitted.notes:
            self._noted.setdefault(note, []).append(one.where)
        self._of_pods += [with_class(claim, self._default_class) for claim in claims_of_volumes(one.thing, manifest)]
        return admitted.pod

    def _manifest(self, one: FoundObject[Pod]) -> ManifestSpec | None:
        problems: list[str] = []
        try:
            return _decoder.decode(one.manifest).spec
        except MALFORMED:
            pass
        try:
            value = fitted(msgspec.json.decode(one.manifest), Manifest, problems)
            return msgspec.convert(value, Manifest).spec
        except MALFORMED as exc:
            self._refuse(one, problems or [str(exc)])
            return None

    def _refuse(self, one: FoundObject[T], refusals: Iterable[str]) -> None:
        self._creation.problems.extend(f"{one.where}: {refusal}" for refusal in refusals)


def _key(claim: PersistentVolumeClaim) -> tuple[str, str]:
    return claim.metadata.namespace, claim.metadata.name


def _of_claims(new: Iterable[PersistentVolumeClaim], others: Iterable[KubernetesObject]) -> Iterator[str]:
    """Of claims that a controller would bind while the pod waits; nobody does here."""
    waiting = {
        one.metadata.name
        for one in others
        if isinstance(one, StorageClass) and one.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    }
    at_once = [claim for claim in new if not claim.spec.volume_name and claim.class_name not in waiting]
    if at_once:
        claims = _first_of([f"{one.metadata.namespace}/{one.metadata.name}" for one in at_once])
        yield (
            f"answers may differ for the pods of claim {claims}, because on a cluster it gets "
            f"its volume first: name a class with {WAIT_FOR_FIRST_CONSUMER}, or add the bound claim to --cluster"
        )


def _first_of(places: Sequence[str]) -> str:
    """The first, and how many more there are: there may be thousands of them."""
    return f"{places[0]} and {len(places) - 1} more" if len(places) > 1 else places[0]


def _refused(thing: KubernetesObject) -> Iterator[str]:
    if isinstance(thing, Node):
        yield from refused_node(thing)
    elif isinstance(thing, LimitRange):
        yield from refused_limits(thing)
    elif isinstance(thing, PersistentVolumeClaim):
        yield from refused_claim(thing)
    else:
        yield from refused_metadata(thing.metadata)
