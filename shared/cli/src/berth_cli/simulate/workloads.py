"""Creates the pods of Deployments, ReplicaSets, StatefulSets and Jobs, as their controllers do.

A Deployment ``web`` of 3 replicas becomes a ReplicaSet and its pods ``web-0``, ``web-1`` and ``web-2``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from berth.api.meta import LabelSelector, ObjectMeta, Trimmed
from berth.errors import DecodeError
from berth_cli.simulate.documents import Document, decode
from berth_cli.simulate.objects import DEFAULT_NAMESPACE

VERSIONS: Final[Mapping[str, str]] = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
}  # by kind
_HASH_LENGTH: Final = 10
# All workloads together. Kubernetes supports 150,000 pods in a cluster; as bytes, the size of a file with pods.
_MOST_PODS: Final = 150_000
_MOST_BYTES: Final = 1 << 29
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]  # the API server refuses negative numbers


class PodTemplate(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class VolumeClaimTemplate(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class Ordinals(Trimmed, frozen=True, kw_only=True):
    start: Count = 0


class WorkloadSpec(Trimmed, frozen=True, kw_only=True):
    """The number of pods and their template; the kind decides which fields apply."""

    template: PodTemplate = PodTemplate()
    replicas: Count = 1
    parallelism: Count = 1
    completions: Count | None = None
    suspend: bool = False
    selector: LabelSelector | None = None
    volume_claim_templates: list[VolumeClaimTemplate] | None = None
    ordinals: Ordinals = Ordinals()


class Workload(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()


_decoder: Final = msgspec.json.Decoder(Workload)
Labels = dict[str, str]


def with_pods(documents: Iterable[Document], problems: list[str]) -> Iterator[Document]:
    """The documents, with workloads replaced by their pods; errors in workloads are added to ``problems``."""
    pods = size = 0
    for document in documents:
        if document.kind not in VERSIONS or document.api_version not in ("", VERSIONS[document.kind]):
            yield document
            continue
        try:
            workload = _read(document.raw)
        except DecodeError as exc:
            problems.append(f"{document.where} ({document.kind}): {exc}")
            continue
        namespace = workload.metadata.namespace or DEFAULT_NAMESPACE
        where = f"{document.where} ({document.kind} {namespace}/{workload.metadata.name})"
        controller = _Controller(where=where, kind=document.kind, workload=workload, namespace=namespace)
        count = controller.pod_count
        if pods + count > _MOST_PODS or size + count * len(document.raw) > _MOST_BYTES:
            wanted = f"want workloads of at most {_MOST_PODS} pods and {_MOST_BYTES} bytes together"
            problems.append(f"{where}: {wanted}, got {count} more: lower spec.{controller.count_field}")
            continue
        pods, size = pods + count, size + count * len(document.raw)
        yield from controller.documents()


def _read(raw: bytes) -> Workload:
    """Decode a workload.

    Raises:
        DecodeError: it is invalid, or has no name.
    """
    workload = decode(_decoder, raw)
    if not workload.metadata.name:
        raise DecodeError("metadata.name: missing: give it a name")
    return workload


class _Controller(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    kind: str
    workload: Workload
    namespace: str

    def documents(self) -> Iterator[Document]:
        """The owner, if plugins read its kind, then the pods and their claims."""
        if self._is_of_a_deployment:
            return
        if self.kind != "Job" and self.workload.spec.selector is not None:
            metadata = {"name": self._owner, "namespace": self.namespace, "uid": self._owner_uid}
            selector = msgspec.to_builtins(self.workload.spec.selector)
            selector["matchLabels"] = {**selector.get("matchLabels", {}), **self._hash_label}
            yield self._document(self._owner_kind, {"metadata": metadata, "spec": {"selector": selector}}, "apps/v1")
        for number in self._numbers():
            yield from self._claims(f"{self.workload.metadata.name}-{number}")
            yield self._pod(number)

    @property
    def _is_of_a_deployment(self) -> bool:
        """Whether a Deployment in the files owns the ReplicaSet and creates its pods."""
        return any(
            owner.kind == "Deployment" and owner.controller for owner in self.workload.metadata.owner_references or ()
        )

    @property
    def pod_count(self) -> int:
        return 0 if self._is_of_a_deployment else len(self._numbers())

    @property
    def count_field(self) -> str:
        return "parallelism" if self.kind == "Job" else "replicas"

    @property
    def _owner_kind(self) -> str:
        return "ReplicaSet" if self.kind == "Deployment" else self.kind

    @property
    def _owner(self) -> str:
        name = self.workload.metadata.name
        return f"{name}-{self._hash}" if self.kind == "Deployment" else name

    @property
    def _owner_uid(self) -> str:
        uid = self.workload.metadata.uid
        return uid if uid and self.kind != "Deployment" else f"{self._owner_kind}/{self.namespace}/{self._owner}"

    @property
    def _hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self.workload.spec.template)).hexdigest()[:_HASH_LENGTH]

    @property
    def _hash_label(self) -> Labels:
        return {"pod-template-hash": self._hash} if self.kind == "Deployment" else {}

    def _numbers(self) -> range:
        spec = self.workload.spec
        if self.kind == "Job":
            at_once = spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
            return range(0 if spec.suspend else at_once)
        return range(spec.ordinals.start, spec.ordinals.start + spec.replicas)

    def _pod(self, number: int) -> Document:
        template, name = self.workload.spec.template, f"{self.workload.metadata.name}-{number}"
        api_version = VERSIONS[self._owner_kind]
        owner = {"apiVersion": api_version, "kind": self._owner_kind, "name": self._owner, "uid": self._owner_uid}
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": {**(template.metadata.labels or {}), **self._labels(name, number)},
            "annotations": template.metadata.annotations,
            "ownerReferences": [{**owner, "controller": True}],
        }
        return self._document("Pod", {"metadata": metadata, "spec": self._spec(name)}, "v1", place="spec.template")

    def _labels(self, name: str, number: int) -> Labels:
        match self.kind:
            case "StatefulSet":
                return {
                    "apps.kubernetes.io/pod-index": str(number),
                    "controller-revision-hash": f"{self.workload.metadata.name}-{self._hash}",
                    "statefulset.kubernetes.io/pod-name": name,
                }
            case "Job":
                job = {"job-name": self.workload.metadata.name}
                return {**job, "batch.kubernetes.io/job-name": self.workload.metadata.name}
            case _:
                return self._hash_label

    def _spec(self, pod: str) -> dict[str, Any]:
        """Claims of a StatefulSet replace the template's volumes of the same names."""
        spec, claims = self.workload.spec.template.spec, self.workload.spec.volume_claim_templates or ()
        if not claims:
            return spec
        names = [claim.metadata.name for claim in claims]
        kept = [one for one in spec.get("volumes") or [] if not (isinstance(one, dict) and one.get("name") in names)]
        claimed = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{pod}"}} for name in names]
        return {**spec, "volumes": [*kept, *claimed]}

    def _claims(self, pod: str) -> Iterator[Document]:
        for at, claim in enumerate(self.workload.spec.volume_claim_templates or ()):
            metadata = {
                "name": f"{claim.metadata.name}-{pod}",
                "namespace": self.namespace,
                "labels": claim.metadata.labels,
                "annotations": claim.metadata.annotations,
            }
            body = {"metadata": metadata, "spec": claim.spec}
            yield self._document("PersistentVolumeClaim", body, "v1", place=f"spec.volumeClaimTemplates[{at}]")

    def _document(self, kind: str, body: dict[str, Any], api_version: str, *, place: str = "") -> Document:
        where = f"{self.where}: {place}" if place else self.where
        return Document(
            where=where, api_version=api_version, kind=kind, raw=msgspec.json.encode(body), is_generated=True
        )
