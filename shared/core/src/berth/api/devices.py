"""ResourceClaims, ResourceSlices and DeviceClasses (resource.k8s.io/v1), trimmed to the fields that scheduling reads.

The parameters of a configuration belong to its driver: their bytes are copied into allocations and never read.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import msgspec

from berth.api.meta import Int64, ObjectMeta, Trimmed
from berth.api.pod import NodeSelector, Toleration

# The controller frees a claim only while it has this finalizer, which its first allocation adds.
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
# On the claim that a scheduler makes for the extended resources of a pod, with the value "true".
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"

# On the claim that Kubernetes makes of a pod's template: the name of the pod's entry.
CLAIM_OF_POD: Final = "resource.kubernetes.io/pod-claim-name"

EXACT_COUNT: Final = "ExactCount"
ALL: Final = "All"
FROM_CLASS: Final = "FromClass"
FROM_CLAIM: Final = "FromClaim"

# In place of what cannot be read in an object, also inside of texts. An API server takes no parameters that are a text.
UNREADABLE: Final = b"(berth cannot read this)"

# Effects of a taint that keep pods from a device; others have none for a scheduler.
BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})

# Limits of the API server. Objects from files or of a later release may exceed them.
MOST_RESULTS: Final = 32  # devices of a claim
MOST_REQUESTS: Final = 32
MOST_ALTERNATIVES: Final = 8
MOST_CONSTRAINTS: Final = 32
MOST_CONFIGS: Final = 32
MOST_SELECTORS: Final = 32  # of a request or class
MOST_TOLERATIONS: Final = 16
MOST_DEVICES: Final = 128  # of a slice
MOST_ATTRIBUTES: Final = 32  # attributes and capacities of a device together
MOST_TAINTS: Final = 16
MOST_COUNTER_SETS: Final = 8  # of a slice
MOST_CONSUMED_SETS: Final = 2  # of a device
# Limits of berth for the claims of one pod together, for which the API server has none. Every node is searched for each
# request, and each selector keeps a byte for each device of the cluster.
MOST_REQUESTS_OF_POD: Final = 256
MOST_SELECTORS_OF_POD: Final = 64
# Distinct names, attributes and capacities that are kept once. Forgetting them all costs as many copies at most, and
# what only one device has, such as a serial number, is not kept beyond it for long.
_MOST_SHARED: Final = 16_384
# Annotations of a claim that are read beyond the binder.
_READ_ANNOTATIONS: Final = frozenset({EXTENDED_RESOURCE_CLAIM, CLAIM_OF_POD})
_MOST_MESSAGE: Final = 256  # characters of a binding condition's message in the mirror
_MOST_UNPACKED_BYTES: Final = 8 << 20  # of a slice's spec: 128 devices with every attribute take 2 MB


class CelSelector(Trimmed, frozen=True, kw_only=True):
    expression: str = ""


class ExpressionSelector(Trimmed, frozen=True, kw_only=True):
    """An expression that a device must satisfy; None is a kind of selector that this release does not know."""

    cel: CelSelector | None = None


class OpaqueConfiguration(Trimmed, frozen=True, kw_only=True):
    """``parameters``: JSON as it came, because decoding loses digits of numbers; equal if its bytes are."""

    driver: str = ""
    parameters: msgspec.Raw

    def __post_init__(self) -> None:
        # Not a part of the LIST in which it came, which would be kept as long.
        msgspec.structs.force_setattr(self, "parameters", self.parameters.copy())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OpaqueConfiguration):
            return NotImplemented
        return self.driver == other.driver and bytes(self.parameters) == bytes(other.parameters)

    def __hash__(self) -> int:
        return hash((self.driver, bytes(self.parameters)))


class DeviceToleration(Toleration, frozen=True, kw_only=True):
    """Taints of devices that a request tolerates; the seconds concern the eviction of its pod."""

    toleration_seconds: Int64 | None = None


class CapacityRequirements(Trimmed, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] | None = None


class DeviceSubRequest(Trimmed, frozen=True, kw_only=True):
    """One alternative of a request."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[ExpressionSelector] | None = None
    allocation_mode: str = EXACT_COUNT
    count: Int64 = 1
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(Trimmed, frozen=True, kw_only=True):
    """``admin_access``: devices in use may be given too, to observe them."""

    device_class_name: str = ""
    selectors: list[ExpressionSelector] | None = None
    allocation_mode: str = EXACT_COUNT
    count: Int64 = 1
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(Trimmed, frozen=True, kw_only=True):
    """Exactly one of ``exactly`` and ``first_available``, whose alternatives are tried in order."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] | None = None


class DeviceConstraint(Trimmed, frozen=True, kw_only=True):
    """Devices of these requests (without any: of all) have one value of an attribute, or each its own."""

    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaimConfiguration(Trimmed, frozen=True, kw_only=True):
    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Trimmed, frozen=True, kw_only=True):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[DeviceClaimConfiguration] | None = None


class ResourceClaimSpec(Trimmed, frozen=True, kw_only=True):
    """``left_out``: why the spec is not here, as a predicate of the claim: it is too large, or cannot be read."""

    devices: DeviceClaim = DeviceClaim()
    left_out: str = ""


class DeviceRequestAllocationResult(Trimmed, frozen=True, kw_only=True):
    """A device given to a request; the shares of one device differ in ``share_id``."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int | float] | None = None

    @property
    def key(self) -> str:
        return device_key(self.driver, self.pool, self.device)


class DeviceAllocationConfiguration(Trimmed, frozen=True, kw_only=True):
    source: str = ""
    requests: list[str] | None = None
    opaque: OpaqueConfiguration | None = None


class DeviceAllocationResult(Trimmed, frozen=True, kw_only=True):
    results: list[DeviceRequestAllocationResult] | None = None
    config: list[DeviceAllocationConfiguration] | None = None


class AllocationResult(Trimmed, frozen=True, kw_only=True):
    """The devices of a claim, and the nodes from which they can be used; without a selector all."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


# By the uid of the claim.
Allocations = dict[str, AllocationResult]


class ClaimConsumer(Trimmed, frozen=True, kw_only=True):
    """A user of the claim; schedulers reserve claims for pods."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceCondition(Trimmed, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class AllocatedDeviceStatus(Trimmed, frozen=True, kw_only=True):
    """What the driver reports of a device of the claim."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: list[DeviceCondition] | None = None


class ResourceClaimStatus(Trimmed, frozen=True, kw_only=True):
    allocation: AllocationResult | None = None
    reserved_for: list[ClaimConsumer] | None = None
    devices: list[AllocatedDeviceStatus] | None = None


class ClaimMeta(ObjectMeta, frozen=True, kw_only=True):
    """Metadata with the finalizers, which the binder reads; the mirror has none."""

    finalizers: list[str] | None = None


class ResourceClaim(Trimmed, frozen=True, kw_only=True):
    metadata: ClaimMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ResourceClaimTemplateSpec(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Trimmed, frozen=True, kw_only=True):
    """What claims are made of, one for each pod that names it. Services never read it."""

    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassConfiguration(Trimmed, frozen=True, kw_only=True):
    opaque: OpaqueConfiguration | None = None


class DeviceClassSpec(Trimmed, frozen=True, kw_only=True):
    """``left_out``: as of a claim."""

    left_out: str = ""
    selectors: list[ExpressionSelector] | None = None
    config: list[DeviceClassConfiguration] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Trimmed, frozen=True, kw_only=True):
    """Exactly one field is set; none is a type that this release does not know."""

    int_value: Int64 | None = msgspec.field(default=None, name="int")
    bool_value: bool | None = msgspec.field(default=None, name="bool")
    string_value: str | None = msgspec.field(default=None, name="string")
    version_value: str | None = msgspec.field(default=None, name="version")

    @property
    def typed(self) -> tuple[str, str | int | bool] | None:
        """Type and value, equal only for equal attributes; versions compare as text."""
        if self.string_value is not None:
            return "string", self.string_value
        if self.int_value is not None:
            return "int", self.int_value
        if self.bool_value is not None:
            return "bool", self.bool_value
        return None if self.version_value is None else ("version", self.version_value)


class CapacityRange(Trimmed, frozen=True, kw_only=True):
    min: str | int | float | None = None
    max: str | int | float | None = None
    step: str | int | float | None = None


class CapacityRequestPolicy(Trimmed, frozen=True, kw_only=True):
    """The amounts of a capacity that may be consumed; a request is rounded up to the next."""

    default: str | int | float | None = None
    valid_values: list[str | int | float] | None = None
    valid_range: CapacityRange | None = None


class DeviceCapacity(Trimmed, frozen=True, kw_only=True):
    value: str | int | float = "0"
    request_policy: CapacityRequestPolicy | None = None


class Counter(Trimmed, frozen=True, kw_only=True):
    value: str | int | float = "0"


class CounterConsumption(Trimmed, frozen=True, kw_only=True):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None


class CounterSet(Trimmed, frozen=True, kw_only=True):
    """Amounts that the devices of a pool share, such as the memory of a GPU and its partitions."""

    name: str = ""
    counters: dict[str, Counter] | None = None


class DeviceTaint(Trimmed, frozen=True, kw_only=True):
    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """As kubectl writes taints."""
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class SliceDevice(Trimmed, frozen=True, kw_only=True):
    """A device; it names nodes only in a slice with ``per_device_node_selection``."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    taints: list[DeviceTaint] | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    allow_multiple_allocations: bool | None = None


class ResourcePool(Trimmed, frozen=True, kw_only=True):
    """The pool of a slice. A driver replaces a pool by slices of the next generation; each has their number."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Trimmed, frozen=True, kw_only=True):
    """``left_out``: as of a claim; then driver, pool and nodes are here."""

    left_out: str = ""
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[SliceDevice] | None = None
    shared_counters: list[CounterSet] | None = None


class ResourceSlice(Trimmed, frozen=True, kw_only=True):
    """A part of a driver's pool: devices, or the counters that they share.

    ``packed``: the compressed spec of a PackedSlice; empty once decoded.
    """

    metadata: ObjectMeta
    spec: ResourceSliceSpec = ResourceSliceSpec()
    packed: str = ""

    def __post_init__(self) -> None:
        if self.packed:
            msgspec.structs.force_setattr(self, "spec", _unpacked(self.packed))
            msgspec.structs.force_setattr(self, "packed", "")


_specs: Final = msgspec.json.Decoder(ResourceSliceSpec)


class SharedAttributes:
    """Keeps equal names, attributes and capacities of devices once: a GPU with a dozen takes 0.7 KB instead of 2."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._known: dict[DeviceAttribute, DeviceAttribute] = {}
        self._capacities: dict[tuple[tuple[str, DeviceCapacity], ...], dict[str, DeviceCapacity]] = {}

    def __call__(self, resource_slice: ResourceSlice) -> None:
        """Replace parts of a new slice by equal ones, in place, because copies beside a LIST double its memory."""
        devices = resource_slice.spec.devices
        if not devices:
            return
        tables: tuple[dict[Any, Any], ...] = (self._names, self._known, self._capacities)
        if sum(map(len, tables)) > _MOST_SHARED:
            for table in tables:
                table.clear()
        for device in devices:
            self._share(device)

    def _share(self, device: SliceDevice) -> None:
        msgspec.structs.force_setattr(device, "name", self._names.setdefault(device.name, device.name))
        if attributes := device.attributes:
            for name, each in attributes.items():
                attributes[name] = self._known.setdefault(each, each)
        if device.capacity:
            msgspec.structs.force_setattr(device, "capacity", self._capacity(device.capacity))

    def _capacity(self, capacity: dict[str, DeviceCapacity]) -> dict[str, DeviceCapacity]:
        # Numbers of different types are equal, and policies have no hash.
        if any(each.request_policy is not None or not isinstance(each.value, str) for each in capacity.values()):
            return capacity
        return self._capacities.setdefault(tuple(capacity.items()), capacity)


class PackedSlice(Trimmed, frozen=True, kw_only=True):
    """The mirror's form of a large slice: it decodes to a ResourceSlice."""

    metadata: ObjectMeta
    packed: str

    @classmethod
    def of(cls, resource_slice: ResourceSlice) -> PackedSlice:
        data = zlib.compress(msgspec.json.encode(resource_slice.spec))
        return cls(metadata=resource_slice.metadata, packed=b64encode(data).decode())


def _unpacked(packed: str) -> ResourceSliceSpec:
    try:
        data = zlib.decompressobj().decompress(b64decode(packed), _MOST_UNPACKED_BYTES)
    except zlib.error as exc:
        raise ValueError(f"unpacking a ResourceSlice: {exc}") from exc
    return _specs.decode(data)


def as_allocated(claim: ResourceClaim) -> ResourceClaim:
    """The claim without configurations if it is allocated: they are read for the allocation alone."""
    allocation, spec, replace = claim.status.allocation, claim.spec, msgspec.structs.replace
    if allocation is None or not (spec.devices.config or allocation.devices.config):
        return claim
    allocation = replace(allocation, devices=replace(allocation.devices, config=None))
    spec = replace(spec, devices=replace(spec.devices, config=None))
    return replace(claim, spec=spec, status=replace(claim.status, allocation=allocation))


@overload
def as_mirrored(thing: ResourceClaim) -> ResourceClaim: ...


@overload
def as_mirrored(thing: DeviceClass) -> DeviceClass: ...


def as_mirrored(thing: ResourceClaim | DeviceClass) -> ResourceClaim | DeviceClass:
    """The claim or class without what only drivers, the binder and other controllers read.

    These are configurations; of a claim also labels, finalizers, other annotations, tolerations of results, and what
    drivers report of devices, except for binding conditions.
    """
    replace = msgspec.structs.replace
    if isinstance(thing, DeviceClass):
        return replace(thing, spec=replace(thing.spec, config=None))
    spec, status, metadata = thing.spec, thing.status, thing.metadata
    if spec.devices.config:
        spec = replace(spec, devices=replace(spec.devices, config=None))
    annotations = {name: text for name, text in (metadata.annotations or {}).items() if name in _READ_ANNOTATIONS}
    metadata = replace(metadata, finalizers=None, labels=None, annotations=annotations or None)
    allocation = status.allocation
    if allocation is None:
        return replace(thing, metadata=metadata, spec=spec, status=replace(status, devices=None))
    results = [replace(each, tolerations=None) for each in allocation.devices.results or ()] or None
    allocation = replace(allocation, devices=DeviceAllocationResult(results=results))
    reported = [device for each in status.devices or () if (device := _binding(each, results or ())).conditions]
    status = replace(status, allocation=allocation, devices=reported or None)
    return replace(thing, metadata=metadata, spec=spec, status=status)


def _binding(device: AllocatedDeviceStatus, results: Sequence[DeviceRequestAllocationResult]) -> AllocatedDeviceStatus:
    """The device with those of its conditions for which pods wait."""
    named = {
        name
        for each in results
        if (each.driver, each.pool, each.device) == (device.driver, device.pool, device.device)
        for name in (*(each.binding_conditions or ()), *(each.binding_failure_conditions or ()))
    }
    conditions = [
        msgspec.structs.replace(each, message=each.message[:_MOST_MESSAGE])
        for each in device.conditions or ()
        if each.type in named
    ]
    return msgspec.structs.replace(device, conditions=conditions or None)


def device_key(driver: str, pool: str, device: str) -> str:
    """The device's name in texts and tables. Only pools may contain ``/``, so it is unique."""
    return f"{driver}/{pool}/{device}"


def refusal(claim: ResourceClaim) -> str:
    """Why the claim is not allocated: it exceeds limits of the API server; empty if it may be."""
    excess = [f"{number} {name} (at most {most})" for name, number, most in _parts(claim) if number > most]
    return f"the claim has more than the API allows: {', '.join(excess)}" if excess else ""


def left_out(thing: object) -> str:
    """Why a claim, class or slice cannot be used whatever a pod asks for; empty for any other object."""
    if isinstance(thing, ResourceSlice):
        return slice_refusal(thing)
    if isinstance(thing, ResourceClaim):
        return f"the claim {thing.spec.left_out}" if thing.spec.left_out else refusal(thing)
    return f"the class {thing.spec.left_out}" if isinstance(thing, DeviceClass) and thing.spec.left_out else ""


def refusal_together(claims: Sequence[ResourceClaim]) -> str:
    """Why the claims of a pod are not allocated: there is too much in all of them; empty if they may be."""
    requests = [
        each
        for claim in claims
        for request in claim.spec.devices.requests or ()
        for each in (request.exactly, *(request.first_available or ()))
        if each is not None
    ]
    selectors = {each.cel.expression for request in requests for each in request.selectors or () if each.cel}
    parts = [
        ("requests with their alternatives", len(requests), MOST_REQUESTS_OF_POD),
        ("different selectors", len(selectors), MOST_SELECTORS_OF_POD),
    ]
    excess = [f"{number} {name} (at most {most})" for name, number, most in parts if number > most]
    return f"the pod's claims have more than a scheduling cycle can take: {', '.join(excess)}" if excess else ""


def _parts(claim: ResourceClaim) -> Iterator[tuple[str, int, int]]:
    devices = claim.spec.devices
    yield "requests", len(devices.requests or ()), MOST_REQUESTS
    yield "constraints", len(devices.constraints or ()), MOST_CONSTRAINTS
    yield "configurations", len(devices.config or ()), MOST_CONFIGS
    for request in devices.requests or ():
        yield f"alternatives of request {request.name}", len(request.first_available or ()), MOST_ALTERNATIVES
        for one in (request.exactly, *(request.first_available or ())):
            if one is not None:
                yield f"selectors of request {request.name}", len(one.selectors or ()), MOST_SELECTORS
                yield f"tolerations of request {request.name}", len(one.tolerations or ()), MOST_TOLERATIONS


def slice_refusal(resource_slice: ResourceSlice) -> str:
    """Why the slice is not used: it cannot be read, or exceeds limits of the API server; empty if it is."""
    spec = resource_slice.spec
    if spec.left_out:
        return f"the slice {spec.left_out}"
    parts = [
        ("devices", len(spec.devices or ()), MOST_DEVICES),
        ("counter sets", len(spec.shared_counters or ()), MOST_COUNTER_SETS),
    ]
    for device in spec.devices or ():
        named = len(device.attributes or ()) + len(device.capacity or ())
        parts.append((f"attributes of device {device.name}", named, MOST_ATTRIBUTES))
        parts.append((f"taints of device {device.name}", len(device.taints or ()), MOST_TAINTS))
        consumed = len(device.consumes_counters or ())
        parts.append((f"counter sets of device {device.name}", consumed, MOST_CONSUMED_SETS))
    excess = [f"{number} {name} (at most {most})" for name, number, most in parts if number > most]
    return f"the slice has more than the API allows: {', '.join(excess)}" if excess else ""
