"""A cluster and the pods to be placed, as if the API server had stored what of them nobody created yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from berth.api.messages import MALFORMED
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.storage import StorageClass
from berth.api.volumes import PersistentVolumeClaim
from berth.cli.creation.admission import Admission
from berth.cli.creation.claims import claims_of_volumes, default_class, with_class
from berth.cli.creation.limitranges import LimitRange
from berth.cli.creation.manifest import Manifest, ManifestSpec
from berth.cli.creation.namerules import refused_metadata
from berth.cli.creation.podrules import refused_claim, refused_limits, refused_node
from berth.cli.fieldtypes import fitted
from berth.cli.objects import Found, KubernetesObject, as_pod

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


def created(there: Sequence[Found[KubernetesObject]], wanted: Iterable[Found[Pod]]) -> Creation:
    """Everything as stored, and the claims that would be made for the pods."""
    creating = _Creating(there)
    return creating.done(there, wanted)


class _Creating:
    def __init__(self, there: Sequence[Found[KubernetesObject]]) -> None:
        things = [one.thing for one in there]
        self._admission = Admission(things)
        self._default_class = default_class(one for one in things if isinstance(one, StorageClass))
        self._creation = Creation()
        self._claims: list[PersistentVolumeClaim] = []

    def done(self, there: Sequence[Found[KubernetesObject]], wanted: Iterable[Found[Pod]]) -> Creation:
        creation = self._creation
        creation.others = [self._other(one) for one in there if not isinstance(one.thing, Pod)]
        creation.there = tuple(self._pod(pod) for one in there if (pod := as_pod(one)) is not None)
        creation.wanted = tuple(self._pod(one) for one in wanted)
        known = {_key(one) for one in creation.others if isinstance(one, PersistentVolumeClaim)}
        creation.others += [claim for claim in self._claims if _key(claim) not in known]
        return creation

    def _other(self, one: Found[KubernetesObject]) -> KubernetesObject:
        if not one.manifest:
            return one.thing
        self._refuse(one, _refused(one.thing))
        if isinstance(one.thing, PersistentVolumeClaim):
            return with_class(one.thing, self._default_class)
        return one.thing

    def _pod(self, one: Found[Pod]) -> Pod:
        if not one.manifest:
            return one.thing
        manifest = self._manifest(one)
        if manifest is None:
            return one.thing
        admitted = self._admission.admitted(one.thing, runtime=manifest.runtime_class_name)
        self._refuse(one, admitted.refusals)
        self._creation.notes.extend(f"{one.where}: {note}" for note in admitted.notes)
        self._claims += [with_class(claim, self._default_class) for claim in claims_of_volumes(one.thing, manifest)]
        return admitted.pod

    def _manifest(self, one: Found[Pod]) -> ManifestSpec | None:
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

    def _refuse(self, one: Found[T], refusals: Iterable[str]) -> None:
        self._creation.problems.extend(f"{one.where}: {refusal}" for refusal in refusals)


def _key(claim: PersistentVolumeClaim) -> tuple[str, str]:
    return claim.metadata.namespace, claim.metadata.name


def _refused(thing: KubernetesObject) -> Iterator[str]:
    if isinstance(thing, Node):
        yield from refused_node(thing)
    elif isinstance(thing, LimitRange):
        yield from refused_limits(thing)
    elif isinstance(thing, PersistentVolumeClaim):
        yield from refused_claim(thing)
    else:
        yield from refused_metadata(thing.metadata)
