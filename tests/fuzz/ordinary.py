"""Ordinary objects as the API server has them, and the messages of an attempt, with every field that berth reads.

Each kind has some forms, because no pod can have everything: one that waits for a gate is not placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from berth.api.podgroups import GROUP_LABEL

Body = dict[str, Any]
Objects = list[tuple[str, Body]]
"""Kinds and objects, in the order in which they are created."""

HONEST_NODES: Final = tuple(f"honest-{number}" for number in range(5))
NAMESPACE: Final = "odd"
"""Of all namespaced objects here but honest pods."""
HONEST_NAMESPACE: Final = "default"
SLOT: Final = "example.com/slot"
"""Only one honest node has it, and a pod of low priority uses it."""
CREATED: Final = "2025-12-31T23:00:00Z"
NOW: Final = "2026-01-01T00:00:00Z"
CLASS: Final = "slow"
DRIVER: Final = "disk.example.com"
GPU: Final = "example.com/gpu"
DEVICE_DRIVER: Final = "gpu.example.com"
DEVICE_KINDS: Final = ("deviceclass", "resourceslice", "resourceclaim")


def metadata(name: str, *, namespace: str = "", labels: Mapping[str, str] | None = None) -> Body:
    return {
        **({"namespace": namespace} if namespace else {}),
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": CREATED,
        "labels": {"app": name, "tier": "a", "tenant": "t", **(labels or {})},
        "annotations": {
            "example.com/note": "ordinary",
            "berth/link-capacity": "1G",
            "kubernetes.io/ingress-bandwidth": "1M",
            "kubernetes.io/egress-bandwidth": "1M",
            "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs",
        },
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": f"uid-{name}", "controller": True}
        ],
    }


def going(body: Body) -> Body:
    """The same object while it is being deleted."""
    return {**body, "metadata": {**body["metadata"], "deletionTimestamp": CREATED}}


# --- the honest part


def node(name: str, **amounts: str) -> Body:
    quantities = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "100Gi", "pods": "1000", GPU: "100", **amounts}
    hostname = {"kubernetes.io/hostname": name, "zone": "a", "disk": "ssd", "topology.kubernetes.io/zone": "a"}
    return {
        "metadata": metadata(name, labels=hostname),
        "spec": {"unschedulable": False, "taints": [{"key": "soft", "value": "1", "effect": "PreferNoSchedule"}]},
        "status": {
            "allocatable": quantities,
            "capacity": quantities,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "images": [{"names": ["example.com/app:1"], "sizeBytes": 300_000_000}],
            "declaredFeatures": ["InPlacePodLevelResourcesVerticalScaling"],
        },
    }


def plain_pod(name: str, *, namespace: str = HONEST_NAMESPACE, **spec: Any) -> Body:
    container = {"name": "main", "image": "example.com/app:1", "resources": {"requests": {"cpu": "10m"}}}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": "7",
            "creationTimestamp": CREATED,
            "labels": {"honest": name},
        },
        "spec": {"schedulerName": "berth", "containers": [container], **spec},
        "status": {"phase": "Pending"},
    }


def asking_for_the_slot(name: str, **spec: Any) -> Body:
    body = plain_pod(name, **spec)
    body["spec"]["containers"][0]["resources"]["requests"][SLOT] = "1"
    return body


def cluster() -> Objects:
    """The nodes, and all that odd objects refer to beside their own."""
    nodes = [node(name, **({SLOT: "1"} if name == HONEST_NODES[0] else {})) for name in HONEST_NODES]
    return [
        *(("node", each) for each in nodes),
        *(("csinode", csi_node(name)) for name in HONEST_NODES),
        *(("namespace", {"metadata": {"name": name}}) for name in (HONEST_NAMESPACE, NAMESPACE)),
        ("storageclass", storage_class(CLASS)),
        ("csidriver", csi_driver(DRIVER)),
        ("csistoragecapacity", capacity("all") | {"storageClassName": CLASS}),
        ("pod", asking_for_the_slot("victim", namespace=NAMESPACE, nodeName=HONEST_NODES[0], priority=-10)),
    ]


# --- the rest, each with every field


def _selector(name: str) -> Body:
    return {"matchLabels": {"app": name}, "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}]}


def _pod_term(name: str) -> Body:
    return {
        "topologyKey": "zone",
        "labelSelector": _selector(name),
        "namespaces": [NAMESPACE],
        "namespaceSelector": _selector(NAMESPACE),
        "matchLabelKeys": ["app"],
        "mismatchLabelKeys": ["absent"],
    }


def _pod_affinity(name: str) -> Body:
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": [_pod_term(name)],
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm": _pod_term(name)}],
    }


def _node_term() -> Body:
    return {
        "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["nowhere"]}],
    }


def _container(name: str, **more: Any) -> Body:
    quantities = {"cpu": "10m", "memory": "1Mi", GPU: "0"}
    return {
        "name": name,
        "image": "example.com/app:1",
        "resources": {"requests": quantities, "limits": quantities},
        "restartPolicy": "Always",
        "restartPolicyRules": [{"action": "Restart"}],
        **more,
    }


def pod(name: str) -> Body:
    """A pod with every wish that a placed pod can have had."""
    body = plain_pod(name, namespace=NAMESPACE)
    body["metadata"] = metadata(name, namespace=NAMESPACE)
    body["spec"] |= {
        "nodeName": "",
        "priority": 1,
        "priorityClassName": "middle",
        "preemptionPolicy": "PreemptLowerPriority",
        "containers": [_container("main")],
        "initContainers": [_container("sidecar")],
        "overhead": {"cpu": "1m"},
        "resources": {"requests": {"cpu": "30m"}, "limits": {"cpu": "40m"}},
        "nodeSelector": {"zone": "a"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_node_term()]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": _node_term()}],
            },
            "podAffinity": _pod_affinity(name),
            "podAntiAffinity": _pod_affinity(f"other-{name}"),
        },
        "tolerations": [{"key": "soft", "operator": "Equal", "value": "1", "effect": "PreferNoSchedule"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 5,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": _selector(name),
                "minDomains": 1,
                "nodeAffinityPolicy": "Honor",
                "nodeTaintsPolicy": "Ignore",
                "matchLabelKeys": ["app"],
            }
        ],
        "hostNetwork": False,
        "hostUsers": True,
        "terminationGracePeriodSeconds": 30,
        "schedulingGroup": {"podGroupName": "crew"},
    }
    body["status"] = {
        "phase": "Pending",
        "nominatedNodeName": "",
        "startTime": CREATED,
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available",
                "lastTransitionTime": CREATED,
                "observedGeneration": 1,
            }
        ],
    }
    return body


def gated_pod(name: str) -> Body:
    return plain_pod(name, namespace=NAMESPACE, schedulingGates=[{"name": "wait"}])


def claiming_pod(name: str) -> Body:
    claims = [{"name": "gpu", "resourceClaimName": "gpu", "resourceClaimTemplateName": "gpus"}]
    body = plain_pod(name, namespace=NAMESPACE, resourceClaims=claims)
    mapping = {"containerName": "main", "resourceName": GPU, "requestName": "container-0-request-0"}
    body["status"] |= {
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": name}],
        "extendedResourceClaimStatus": {"resourceClaimName": name, "requestMappings": [mapping]},
    }
    return body


def pod_with_ports(name: str) -> Body:
    """With ports of its own, so that it keeps no other out."""
    number = 1 + sum(name.encode()) % 60_000
    port = {"containerPort": 80, "hostPort": number, "hostIP": "10.0.0.1", "protocol": "TCP"}
    return plain_pod(
        name,
        namespace=NAMESPACE,
        containers=[_container("main", ports=[port])],
        initContainers=[_container("sidecar", ports=[{**port, "protocol": "UDP"}])],
    )


def pod_with_volumes(name: str) -> Body:
    disks = {
        "persistentVolumeClaim": {"claimName": name, "readOnly": False},
        "gcePersistentDisk": {"pdName": f"pd-{name}", "readOnly": True},
        "awsElasticBlockStore": {"volumeID": f"vol-{name}"},
        "azureDisk": {"diskName": f"azure-{name}", "diskURI": f"uri-{name}"},
        "cinder": {"volumeID": f"cinder-{name}"},
        "portworxVolume": {"volumeID": f"px-{name}"},
        "rbd": {"monitors": ["10.0.0.1:6789"], "pool": "rbd", "image": name, "readOnly": True},
        "iscsi": {"iqn": f"iqn.2025-01.com.example:{name}", "readOnly": True},
        "csi": {"driver": DRIVER, "volumeHandle": f"inline-{name}"},
        "image": {"reference": "example.com/model:1"},
    }
    return plain_pod(name, namespace=NAMESPACE, volumes=[{"name": key.lower(), key: disks[key]} for key in disks])


def pod_with_ephemeral_volume(name: str) -> Body:
    return plain_pod(name, namespace=NAMESPACE, volumes=[{"name": "scratch", "ephemeral": {}}])


def placed_pod(name: str) -> Body:
    """A pod on a node whose container crashes, while its resources change."""
    body = pod(name)
    body["spec"]["nodeName"] = HONEST_NODES[1]
    reported = {"cpu": "11m", "memory": "2Mi"}
    whole = {"allocatedResources": reported, "resources": {"requests": reported}}
    crashes = {"waiting": {"reason": "CrashLoopBackOff"}, "terminated": {"finishedAt": CREATED}}
    whole_and_crashing = {**whole, "state": crashes, "lastState": crashes}
    body["status"] |= {
        "phase": "Running",
        "reason": "Evicted",
        "containerStatuses": [{"name": "main", **whole_and_crashing}],
        "initContainerStatuses": [{"name": "sidecar", **whole_and_crashing}],
        **whole,
    }
    return body


def _labels_kind(name: str) -> Body:
    return {"metadata": metadata(name, namespace=NAMESPACE), "spec": {"selector": {"app": name}}}


def _selector_kind(name: str) -> Body:
    return {"metadata": metadata(name, namespace=NAMESPACE), "spec": {"selector": _selector(name)}}


def budget(name: str) -> Body:
    status = {"disruptionsAllowed": 1, "disruptedPods": {"victim": CREATED}}
    chosen = {"key": "honest", "operator": "In", "values": ["victim"]}
    selector = {"matchLabels": {"honest": "victim"}, "matchExpressions": [chosen]}
    return {"metadata": metadata(name, namespace=NAMESPACE), "spec": {"selector": selector}, "status": status}


def volume(name: str) -> Body:
    return {
        "metadata": metadata(name),
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": NAMESPACE, "name": name, "uid": f"uid-{name}"},
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
            "volumeAttributesClassName": "fast",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [_node_term()]}},
            "csi": {"driver": DRIVER, "volumeHandle": f"handle-{name}"},
        },
        "status": {"phase": "Bound"},
    }


def volume_of_a_cloud(source: str, **content: Any) -> Callable[[str], Body]:
    def form(name: str) -> Body:
        body = volume(name)
        del body["spec"]["csi"]
        body["spec"][source] = {
            key: f"{value}{name}" if isinstance(value, str) else value for key, value in content.items()
        }
        return body

    return form


def claim(name: str) -> Body:
    body = {
        "metadata": metadata(name, namespace=NAMESPACE),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "selector": _selector(name),
            "storageClassName": CLASS,
            "volumeMode": "Filesystem",
            "volumeName": name,
            "volumeAttributesClassName": "fast",
        },
        "status": {"phase": "Bound"},
    }
    body["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = "yes"
    return body


def unbound_claim(name: str) -> Body:
    """A claim that gets a new volume, or takes a free one, once its pod has a node."""
    body = claim(name)
    del body["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"]
    del body["spec"]["volumeName"]
    del body["spec"]["selector"]
    return body | {"status": {"phase": "Pending"}}


def free_volume(name: str) -> Body:
    body = volume(name)
    del body["spec"]["claimRef"]
    return body | {"status": {"phase": "Available"}}


def storage_class(name: str) -> Body:
    topology = {"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}
    return {
        "metadata": metadata(name),
        "provisioner": DRIVER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [topology],
    }


def csi_node(name: str) -> Body:
    return {"metadata": metadata(name), "spec": {"drivers": [{"name": DRIVER, "allocatable": {"count": 1000}}]}}


def csi_driver(name: str) -> Body:
    return {"metadata": metadata(name), "spec": {"storageCapacity": True}}


def capacity(name: str) -> Body:
    topology = {
        "matchLabels": {"zone": "a"},
        "matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}],
    }
    return {
        "metadata": metadata(name, namespace=NAMESPACE),
        "storageClassName": name,
        "nodeTopology": topology,
        "capacity": "100Gi",
        "maximumVolumeSize": "50Gi",
    }


def attachment(name: str) -> Body:
    spec = {"attacher": DRIVER, "nodeName": HONEST_NODES[1], "source": {"persistentVolumeName": name}}
    return {"metadata": metadata(name), "spec": spec}


_ATTRIBUTE_OF_DEVICES: Final = "gpu.example.com/model"
_OPAQUE: Final = {"opaque": {"driver": DEVICE_DRIVER, "parameters": {"mode": "shared"}}}
_TOLERATION: Final = {
    "key": "worn",
    "operator": "Equal",
    "value": "1",
    "effect": "NoSchedule",
    "tolerationSeconds": 60,
}


def _is_model(name: str) -> Body:
    return {"cel": {"expression": f'device.attributes["gpu.example.com"].model == "{name}"'}}


def device_class(name: str) -> Body:
    resource = f"example.com/{name}"
    spec = {"selectors": [_is_model(name)], "config": [_OPAQUE], "extendedResourceName": resource, "leftOut": ""}
    return {"metadata": metadata(name), "spec": spec}


def _device(name: str, **more: Any) -> Body:
    return {
        "name": "gpu-0",
        "attributes": {
            _ATTRIBUTE_OF_DEVICES: {"string": name},
            "index": {"int": 0},
            "healthy": {"bool": True},
            "version": {"version": "1.2.3"},
        },
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "80Gi", "step": "1Gi"}},
            },
            "cores": {"value": "8", "requestPolicy": {"default": "1", "validValues": ["1", "2", "4", "8"]}},
        },
        "taints": [{"key": "worn", "value": "1", "effect": "NoSchedule"}],
        "bindsToNode": True,
        "bindingConditions": ["Ready"],
        "bindingFailureConditions": ["Failed"],
        "allowMultipleAllocations": True,
        **more,
    }


def _slice(name: str, **spec: Any) -> Body:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [] if "sharedCounters" in spec else [_device(name)]
    body = {"driver": DEVICE_DRIVER, "pool": pool, "devices": devices, "leftOut": "", **spec}
    return {"metadata": metadata(name), "spec": body}


def slice_of_a_node(name: str) -> Body:
    return _slice(name, nodeName=HONEST_NODES[1])


def slice_for_all_nodes(name: str) -> Body:
    return _slice(name, allNodes=True)


def slice_for_chosen_nodes(name: str) -> Body:
    return _slice(name, nodeSelector={"nodeSelectorTerms": [_node_term()]})


def slice_of_partitions(name: str) -> Body:
    counters = {"name": "card", "counters": {"memory": {"value": "80Gi"}}}
    taken = {"counterSet": "card", "counters": {"memory": {"value": "40Gi"}}}
    where = {"nodeName": "", "nodeSelector": {"nodeSelectorTerms": [_node_term()]}, "allNodes": False}
    devices = [_device(name, consumesCounters=[taken], **where)]
    return _slice(name, perDeviceNodeSelection=True, sharedCounters=[counters], devices=devices)


def _request(name: str) -> Body:
    return {
        "deviceClassName": name,
        "selectors": [_is_model(name)],
        "allocationMode": "ExactCount",
        "count": 1,
        "tolerations": [_TOLERATION],
        "capacity": {"requests": {"memory": "2Gi"}},
    }


def device_claim(name: str) -> Body:
    requests = [
        {"name": "gpu", "exactly": {**_request(name), "adminAccess": False}},
        {"name": "other", "firstAvailable": [{"name": "best", **_request(name)}]},
    ]
    constraints = [
        {"requests": ["gpu", "other"], "matchAttribute": _ATTRIBUTE_OF_DEVICES},
        {"requests": ["gpu"], "distinctAttribute": _ATTRIBUTE_OF_DEVICES},
    ]
    devices = {"requests": requests, "constraints": constraints, "config": [{"requests": ["gpu"], **_OPAQUE}]}
    body = {"metadata": metadata(name, namespace=NAMESPACE), "spec": {"devices": devices, "leftOut": ""}}
    body["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    return body


def allocated_claim(name: str) -> Body:
    named = {"driver": DEVICE_DRIVER, "pool": name, "device": "gpu-0", "shareID": f"share-{name}"}
    result = {
        **named,
        "request": "gpu",
        "adminAccess": False,
        "tolerations": [_TOLERATION],
        "bindingConditions": ["Ready"],
        "bindingFailureConditions": ["Failed"],
        "consumedCapacity": {"memory": "2Gi"},
    }
    condition = {"type": "Ready", "status": "False", "reason": "Starting", "message": "it starts"}
    status = {
        "allocation": {
            "devices": {"results": [result], "config": [{"source": "FromClaim", "requests": ["gpu"], **_OPAQUE}]},
            "nodeSelector": {"nodeSelectorTerms": [_node_term()]},
            "allocationTimestamp": CREATED,
        },
        "reservedFor": [{"apiGroup": "", "resource": "pods", "name": name, "uid": f"uid-{name}"}],
        "devices": [{**named, "conditions": [condition]}],
    }
    return {**device_claim(name), "status": status}


def pod_group(name: str, **spec: Any) -> Body:
    """A PodGroup of Kubernetes' own dialect."""
    condition = {
        "type": "PodGroupScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
        "lastTransitionTime": CREATED,
        "observedGeneration": 1,
    }
    ordinary = {
        "schedulingPolicy": {"gang": {"minCount": 1}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
        "disruptionMode": "PodGroup",
        "priorityClassName": "",
        "priority": 0,
        "preemptionPolicy": "Never",
        "parentCompositePodGroupName": "",
        "leftOut": "",
    }
    return {
        "metadata": metadata(name, namespace=NAMESPACE),
        "spec": {**ordinary, **spec},
        "status": {"conditions": [condition]},
    }


def coscheduling_pod_group(name: str) -> Body:
    spec = {"minMember": 1, "minResources": {"cpu": "1"}, "scheduleTimeoutSeconds": 60, "leftOut": ""}
    return {"metadata": metadata(name, namespace=NAMESPACE), "spec": spec}


FORMS: Final[Mapping[str, tuple[Callable[[str], Body], ...]]] = {
    "node": (node, lambda name: going(node(name))),
    "namespace": (lambda name: going({"metadata": metadata(name)}),),
    "service": (lambda name: going(_labels_kind(name)),),
    "replicationcontroller": (lambda name: going(_labels_kind(name)),),
    "replicaset": (lambda name: going(_selector_kind(name)),),
    "statefulset": (lambda name: going(_selector_kind(name)),),
    "poddisruptionbudget": (lambda name: going(budget(name)),),
    "pv": (
        volume,
        free_volume,
        lambda name: going(volume(name)),
        volume_of_a_cloud("gcePersistentDisk", pdName="pd", readOnly=True),
        volume_of_a_cloud("awsElasticBlockStore", volumeID="vol"),
        volume_of_a_cloud("azureDisk", diskName="disk", diskURI="uri"),
        volume_of_a_cloud("cinder", volumeID="cinder"),
        volume_of_a_cloud("portworxVolume", volumeID="px"),
    ),
    "pvc": (claim, unbound_claim, lambda name: going(claim(name))),
    "storageclass": (lambda name: going(storage_class(name)),),
    "csinode": (lambda name: going(csi_node(name)),),
    "csidriver": (lambda name: going(csi_driver(name)),),
    "csistoragecapacity": (lambda name: going(capacity(name)),),
    "volumeattachment": (lambda name: going(attachment(name)),),
    "deviceclass": (device_class, lambda name: going(device_class(name))),
    "resourceslice": (
        slice_of_a_node,
        slice_for_all_nodes,
        slice_for_chosen_nodes,
        slice_of_partitions,
        lambda name: going(slice_of_a_node(name)),
    ),
    "resourceclaim": (device_claim, allocated_claim, lambda name: going(device_claim(name))),
    "podgroup": (
        pod_group,
        lambda name: pod_group(name, schedulingPolicy={"basic": {}}, disruptionMode={"all": {}, "single": {}}),
        lambda name: going(pod_group(name)),
    ),
    "coschedulingpodgroup": (coscheduling_pod_group, lambda name: going(coscheduling_pod_group(name))),
    "pod": (
        pod,
        gated_pod,
        claiming_pod,
        pod_with_ports,
        pod_with_volumes,
        pod_with_ephemeral_volume,
        placed_pod,
        lambda name: going(placed_pod(name)),
    ),
}
"""By kind, each form by a name."""


def beside(kind: str, form: Callable[[str], Body], name: str) -> Objects:
    """What makes the three services read an object of this kind and name: pods that use it, and what these need."""
    # Only a pod without constraints of its own is spread by Services and controllers.
    user = plain_pod(f"user-{name}", namespace=NAMESPACE)
    user["metadata"] = metadata(f"user-{name}", namespace=NAMESPACE, labels={"app": name})
    found: Objects = []
    _join(user, kind, name)
    match kind:
        case "node" | "csinode":
            user = pod_with_volumes(f"user-{name}")
            user["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
            found = [("node", node(name))] if kind == "csinode" else [("csinode", csi_node(name))]
            found += [("pv", volume(f"user-{name}")), ("pvc", claim(f"user-{name}"))]
        case "namespace":
            user = plain_pod(f"user-{name}", namespace=name)
        case "pv" | "pvc" | "volumeattachment":
            user["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
            if kind != "pvc":
                found.append(("pvc", (unbound_claim if form is free_volume else claim)(name)))
            if kind != "pv":
                found.append(("pv", (free_volume if form is unbound_claim else volume)(name)))
        case "storageclass" | "csidriver" | "csistoragecapacity":
            user["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": f"user-{name}"}}]
            found = _provisioned(kind, name)
        case "deviceclass" | "resourceslice" | "resourceclaim":
            user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
            objects = (device_class, slice_of_a_node, device_claim)
            found = [(other, make(name)) for other, make in zip(DEVICE_KINDS, objects, strict=True) if other != kind]
        case "pod":
            return _needed_by(form, name)
        case "poddisruptionbudget":
            return []  # the victim of every world
    return [*found, ("pod", user)]


def _join(user: Body, kind: str, group: str) -> None:
    """Let the pod name the group, if the kind is one of PodGroups."""
    if kind == "podgroup":
        user["spec"]["schedulingGroup"] = {"podGroupName": group}
    elif kind == "coschedulingpodgroup":
        user["metadata"]["labels"][GROUP_LABEL] = group


def _needed_by(form: Callable[[str], Body], name: str) -> Objects:
    if form is pod_with_volumes:
        return [("pv", volume(name)), ("pvc", claim(name))]
    if form is pod_with_ephemeral_volume:
        scratch = unbound_claim(f"{name}-scratch")
        scratch["metadata"]["ownerReferences"][0] |= {"kind": "Pod", "apiVersion": "v1", "uid": f"uid-{name}"}
        return [("pvc", scratch)]
    return []


def _provisioned(kind: str, name: str) -> Objects:
    """A claim of a class, of a driver and of a capacity of its own."""
    own = storage_class(name) | {"provisioner": name}
    needed: Objects = [] if kind == "storageclass" else [("storageclass", own)]
    needed += [] if kind == "csidriver" else [("csidriver", csi_driver(name))]
    needed += [] if kind == "csistoragecapacity" else [("csistoragecapacity", capacity(name))]
    wanted = unbound_claim(f"user-{name}")
    wanted["spec"]["storageClassName"] = name
    return [*needed, ("pvc", wanted)]


# --- the messages of an attempt


def report(name: str) -> Body:
    """What RANKED and a Decision both have."""
    positions = {"cluster": 1, "decisions": 1, "bandwidth": 1, "facts": 1}
    candidate = {
        "node": HONEST_NODES[1],
        "total": 100,
        "scores": {"NodeResourcesFit": 100},
        "pods": 1,
        "loss": 0.5,
        "newcomers": 1,
        "place": 1,
        "details": {"NetworkTraffic": "unknown: no sample"},
    }
    rejection = {"plugin": "NodeName", "reason": "no", "nodes": 1, "examples": [HONEST_NODES[2]], "resolvable": True}
    victim = {"uid": "uid-victim", "namespace": NAMESPACE, "name": "victim"}
    return {
        "schema": 1,
        "config": "other",
        "attempt": f"uid-{name}.7.1",
        "profile": "berth",
        "failures": 1,
        "scorer": "scorer-2",
        "asked_at": NOW,
        "positions": positions,
        "view_age_seconds": 0.5,
        "evaluated": 5,
        "feasible": 5,
        "nodes": 5,
        "nominated_first": True,
        "candidates": [candidate],
        "weights": {"NodeResourcesFit": 1},
        "rejections": [rejection],
        "blockers": ["NodeName"],
        "preemption": {"node": HONEST_NODES[0], "victims": [victim], "violations": 1},
        "devices": {"uid-claim": allocated_claim(name)["status"]["allocation"]},
        "message": "0/5 nodes are available",
    }


def pending(name: str) -> Body:
    after = {"cluster": 1, "decisions": 1, "bandwidth": 1, "facts": 1}
    about = {"attempt": f"uid-{name}.7.1", "profile": "berth", "pod": pod(name)}
    return {"schema": 1, "config": "other", **about, "failures": 1, "after": after, "error": "", "suspect": False}


def ranked(name: str) -> Body:
    """With all that RANKED may have; the binder reads candidates first."""
    received = {"ranked": 2, "missed": 1, "pending": 1, "expired": ["uid-gone"]}
    flags = {"proposals_counted": True, "behind": False, "clears_nomination": False, "error": ""}
    return {**report(name), "pod": pod(name), "received": received, **flags}


def group_pending(name: str) -> Body:
    after = {"cluster": 1, "decisions": 1, "bandwidth": 1, "facts": 1}
    return {**_of_group(name), "after": after, "error": "", "suspect": False}


def group_ranked(name: str) -> Body:
    """With a plan, and all that a message without one has too."""
    of_pod = ranked(name)
    shared = ("scorer", "asked_at", "positions", "received", "view_age_seconds", "behind", "proposals_counted")
    of_class = {
        "members": 2,
        "placed": 2,
        "example": f"{name}-0",
        "alternates": [[1, 100, 1, 0.5, 1]],
        "scores": {"NodeResourcesFit": 100},
        "rejections": of_pod["rejections"],
    }
    plan = {
        "need": 2,
        "nodes": list(HONEST_NODES[1:3]),
        "members": [[f"uid-{name}-0", 0, 0], [f"uid-{name}-1", 0, 1]],
        "classes": [of_class],
        "topology_key": "rack",
        "domain": "r1",
        "note": "a note",
        "message": "0/5 nodes are available",
        "error": "",
        "is_impossible": False,
        "orders": 1,
        "steps": 2,
        "devices": {"uid-member": of_pod["devices"]},
    }
    of_plan = {"plan": plan, "preemption": of_pod["preemption"], "begun_after": "uid-x.7.1", "seconds": 0.25}
    return {**_of_group(name), **{each: of_pod[each] for each in shared}, **of_plan}


def group_ranked_without_plan(name: str) -> Body:
    body = group_ranked(name)
    return {**body, "plan": {**body["plan"], "members": [], "devices": {}}}


def _of_group(name: str) -> Body:
    """What messages about a group share. Its pods are those of ``gang``."""
    group = {
        "dialect": "scheduling.x-k8s.io",
        "namespace": NAMESPACE,
        "name": name,
        "uid": f"uid-{name}",
        "resource_version": "7",
        "created": CREATED,
        "minimum": 2,
        "min_resources": {"cpu": 1000},
        "timeout_seconds": 60,
        "topology": {"key": "rack", "required": False},
        "priority": 0,
        "may_preempt": True,
        "goes_as_one": False,
        "is_terminating": False,
        "problems": ["a problem"],
    }
    [_, *pods] = gang(name)
    shared = {**pods[0][1], "metadata": {"namespace": NAMESPACE}}
    members = [
        [pod["metadata"]["uid"], pod["metadata"]["name"], 0, "7", "digest", 1, CREATED, {"a": "b"}, {"c": "d"}, None]
        for _, pod in pods
    ]
    return {
        "schema": 2,
        "config": "other",
        "attempt": f"uid-{name}.7.1",
        "profile": "berth",
        "group": group,
        "bundle": {"classes": [shared], "members": members},
        "need": 2,
        "bound": ["uid-bound"],
        "failures": 1,
    }


def gang(name: str) -> Objects:
    """A PodGroup and its two pods."""
    spec = {"minMember": 2, "minResources": {"cpu": "1"}, "scheduleTimeoutSeconds": 60}
    pods = [plain_pod(f"{name}-{number}", namespace=NAMESPACE) for number in range(2)]
    for pod in pods:
        pod["metadata"]["labels"] = {GROUP_LABEL: name}
    group = {"metadata": metadata(name, namespace=NAMESPACE), "spec": spec}
    return [("coschedulingpodgroup", group), *(("pod", pod) for pod in pods)]


def decision(name: str) -> Body:
    about = {"namespace": NAMESPACE, "pod": name, "uid": f"uid-{name}", "node": HONEST_NODES[1], "reason": ""}
    versions = {"resource_versions": {"pod": "7"}, "ranked_at": NOW}
    rejection = {"plugin": "NodeResourcesFit", "reason": "Insufficient cpu", "nodes": 1, "examples": [HONEST_NODES[0]]}
    of_class = {"members": 4, "placed": 2, "example": name, "rejections": [{**rejection, "resolvable": False}]}
    group = {"need": 4, "bound": 2, "missing": [name], "classes": [of_class], "topology_key": "rack", "domain": "r1"}
    of_group = {"of_group": "uid-gang.7.1", "plan_seconds": 0.25, "group": {**group, "note": "two are outside"}}
    whose = {"dialect": "scheduling.k8s.io", "namespace": NAMESPACE, "name": "gang", "uid": "uid-gang"}
    nodes = {"profile": "berth", "priority": 0, "nodes": [HONEST_NODES[1]]}
    of_group |= {"earmark": {**whose, **nodes, "seconds": 300, "until": NOW}}
    return {**report(name), "epoch": 7, "outcome": "unschedulable", **about, "repeat": 1, **versions, **of_group}
