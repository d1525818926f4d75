"""The members of a group in one message: what they share once, and what differs for each.

A thousand pods of a Job differ in name, uid, version, a label and an annotation. Their spec, owners and all else are
sent once for each class of equal ones. Volumes without a source that plugins read (tokens, configuration) are left out,
because each pod has one of its own name, and so are conditions, which no ranking reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from berth.api.meta import Name, ObjectMeta
from berth.api.pod import Pod, PodResourceClaim, PodSpec, PodStatus, Volume, digest_of
from berth.api.podgroups import MOST_MEMBERS
from berth.messages.attempts import MOST_CLASSES, Count
from berth.messages.subjects import Attempt, Term, Uid


class OwnParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What only some members have to themselves: of StatefulSets their volumes, of pods with devices their claims."""

    volumes: list[Volume] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    status: PodStatus = PodStatus()


class BundledMember(msgspec.Struct, frozen=True, array_like=True):
    """A member: its class, and what differs from it. ``n``: of its own attempt. ``digest``: of the whole pod.

    ``labels`` and ``annotations`` are those that not all members of the class have.
    """

    uid: Name
    name: Name
    of_class: Count
    resource_version: Name
    digest: Name
    n: Count
    created: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    own: OwnParts | None = None


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """``classes`` are pods without names, with the labels and annotations that all of their members have."""

    classes: Annotated[list[Pod], msgspec.Meta(max_length=MOST_CLASSES)]
    members: Annotated[list[BundledMember], msgspec.Meta(max_length=MOST_MEMBERS)]

    def pods(self) -> list[Pod]:
        """The members as ``as_member`` has them.

        Raises:
            IndexError: a member of no class.
        """
        return [_unbundled(member, self.classes[member.of_class]) for member in self.members]

    def attempts(self, term: Term) -> list[Attempt]:
        """Each member's own attempt: by the group's alone nobody could order those of a pod that leaves it."""
        return [Attempt(uid=Uid(member.uid), term=term, n=member.n) for member in self.members]


def as_member(pod: Pod) -> Pod:
    """The pod as a ranking reads it: without volumes that no plugin reads, and without conditions."""
    volumes = [volume for volume in pod.spec.volumes or () if volume != Volume(name=volume.name)]
    status = msgspec.structs.replace(pod.status, conditions=None)
    spec = msgspec.structs.replace(pod.spec, volumes=volumes or None)
    return Pod(metadata=pod.metadata, spec=spec, status=status)


def bundled(pods: Sequence[Pod], numbers: Mapping[str, int]) -> Bundle:
    """The pods in their order; ``numbers``: by uid, the n of each one's attempt."""
    found: dict[bytes, int] = {}
    shared: list[_ClassSoFar] = []
    places: list[int] = []
    for pod in pods:
        common = _common(pod)
        place = found.setdefault(_encode(common), len(found))
        labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
        if place == len(shared):
            shared.append(_ClassSoFar(common, dict(labels), dict(annotations)))
        else:
            known = shared[place]
            shared[place] = _ClassSoFar(
                known.pod, _intersection(known.labels, labels), _intersection(known.annotations, annotations)
            )
        places.append(place)
    members = [_member(pod, place, shared[place], numbers[pod.uid]) for pod, place in zip(pods, places, strict=True)]
    return Bundle(classes=[each.whole() for each in shared], members=members)


class _ClassSoFar(NamedTuple):
    """A class, and what all of its members so far have."""

    pod: Pod
    labels: dict[str, str]
    annotations: dict[str, str]

    def whole(self) -> Pod:
        metadata = msgspec.structs.replace(
            self.pod.metadata, labels=self.labels or None, annotations=self.annotations or None
        )
        return msgspec.structs.replace(self.pod, metadata=metadata)


_encode = msgspec.json.Encoder().encode


def _common(pod: Pod) -> Pod:
    """What equal members share."""
    metadata = msgspec.structs.replace(
        pod.metadata,
        name="",
        uid="",
        resource_version="",
        generation=0,
        creation_timestamp=None,
        labels=None,
        annotations=None,
    )
    spec = msgspec.structs.replace(pod.spec, volumes=None, resource_claims=None)
    return Pod(metadata=metadata, spec=spec, status=PodStatus(phase=pod.status.phase))


def _member(pod: Pod, place: int, shared: _ClassSoFar, number: int) -> BundledMember:
    metadata, trimmed = pod.metadata, as_member(pod)
    own = OwnParts(volumes=trimmed.spec.volumes, resource_claims=pod.spec.resource_claims, status=trimmed.status)
    return BundledMember(
        uid=metadata.uid,
        name=metadata.name,
        of_class=place,
        resource_version=metadata.resource_version,
        digest=digest_of(pod),
        n=number,
        created=metadata.creation_timestamp or "",
        labels=_others(metadata.labels, shared.labels),
        annotations=_others(metadata.annotations, shared.annotations),
        own=None if own == OwnParts(status=PodStatus(phase=pod.status.phase)) else own,
    )


def _unbundled(member: BundledMember, of_class: Pod) -> Pod:
    metadata: ObjectMeta = msgspec.structs.replace(
        of_class.metadata,
        name=member.name,
        uid=member.uid,
        resource_version=member.resource_version,
        creation_timestamp=member.created or None,
        labels={**(of_class.metadata.labels or {}), **member.labels} or None,
        annotations={**(of_class.metadata.annotations or {}), **member.annotations} or None,
    )
    own = member.own
    if own is None:
        return Pod(metadata=metadata, spec=of_class.spec, status=of_class.status)
    spec: PodSpec = msgspec.structs.replace(of_class.spec, volumes=own.volumes, resource_claims=own.resource_claims)
    return Pod(metadata=metadata, spec=spec, status=own.status)


def _others(every: Mapping[str, str] | None, shared: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in (every or {}).items() if key not in shared}


def _intersection(known: dict[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    if all(labels.get(key) == value for key, value in known.items()):
        return known
    return {key: value for key, value in known.items() if labels.get(key) == value}
