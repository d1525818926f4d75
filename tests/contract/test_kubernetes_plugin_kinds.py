"""Contract of the API server, real and simulated: the kinds that plugins read beyond pods, nodes and namespaces."""

import json

import pytest

from berth.api.kinds import PLUGIN_KINDS
from berth.kube.listwatch import Deleted, ObjectDecoder, Upserted
from berth_sim.apiserver.kinds import BY_ADDRESS
from harness.worlds.kubernetes_api import KubernetesApi

LABELS = {"app": "web"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "main", "image": "pause"}]}}
STORAGE = {"accessModes": ["ReadWriteOnce"], "storageClassName": "slow"}
POOL = {"name": "n", "generation": 1, "resourceSliceCount": 1}
BODIES = {
    "service": {"spec": {"selector": LABELS, "ports": [{"port": 80}]}},
    "replicationcontroller": {"spec": {"selector": LABELS, "template": TEMPLATE}},
    "replicaset": {"spec": {"selector": {"matchLabels": LABELS}, "template": TEMPLATE}},
    "statefulset": {"spec": {"selector": {"matchLabels": LABELS}, "template": TEMPLATE, "serviceName": "web"}},
    "pv": {"spec": {**STORAGE, "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}},
    "pvc": {"spec": {**STORAGE, "resources": {"requests": {"storage": "1Gi"}}}},
    "storageclass": {"provisioner": "example.com/disks", "volumeBindingMode": "WaitForFirstConsumer"},
    "csinode": {"spec": {"drivers": [{"name": "example.com", "nodeID": "n", "allocatable": {"count": 3}}]}},
    "csidriver": {"spec": {"storageCapacity": True}},
    "csistoragecapacity": {"storageClassName": "slow", "capacity": "1Gi", "nodeTopology": {"matchLabels": LABELS}},
    "volumeattachment": {
        "spec": {"attacher": "example.com", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    },
    "poddisruptionbudget": {"spec": {"selector": {"matchLabels": LABELS}, "minAvailable": 1}},
    "deviceclass": {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "d.example.com"'}}]}},
    "resourceslice": {"spec": {"driver": "d.example.com", "pool": POOL, "nodeName": "n", "devices": [{"name": "gpu"}]}},
    "resourceclaim": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}},
}


WORKLOAD_SPEC = {"replicas": 0, "selector": None, "template": {"metadata": {}, "spec": {"containers": None}}}
BOOKMARKS = {
    "service": {"spec": {}, "status": {"loadBalancer": {}}},
    "replicationcontroller": {"spec": {}, "status": {"replicas": 0}},
    "replicaset": {"spec": WORKLOAD_SPEC, "status": {"replicas": 0}},
    "statefulset": {
        "spec": {**WORKLOAD_SPEC, "serviceName": "", "updateStrategy": {}},
        "status": {"replicas": 0, "availableReplicas": 0},
    },
    "pv": {"spec": {}, "status": {}},
    "pvc": {"spec": {"resources": {}}, "status": {}},
    "storageclass": {"provisioner": ""},
    "csinode": {"spec": {"drivers": None}},
    "csidriver": {"spec": {}},
    "csistoragecapacity": {"storageClassName": ""},
    "volumeattachment": {"spec": {"attacher": "", "source": {}, "nodeName": ""}, "status": {"attached": False}},
    "poddisruptionbudget": {
        "spec": {},
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    },
    "deviceclass": {"spec": {}},
    "resourceslice": {"spec": {"driver": "", "pool": {"name": "", "generation": 0, "resourceSliceCount": 0}}},
    "resourceclaim": {"spec": {"devices": {"requests": None}}, "status": {}},
}


def in_namespace(api: KubernetesApi, kind: str) -> str:
    root, plural = PLUGIN_KINDS[kind].path.rsplit("/", 1)
    return f"{root}/namespaces/{api.namespace}/{plural}" if PLUGIN_KINDS[kind].is_namespaced else f"{root}/{plural}"


def test_every_plugin_kind_is_tested():
    # Most API servers lack PodGroups: tests/e2e/test_story_groups.py has their own.
    served = {name for name, kind in PLUGIN_KINDS.items() if not kind.is_rare}
    assert BODIES.keys() == BOOKMARKS.keys() == served


@pytest.mark.parametrize("kind", BODIES)
async def test_a_plugin_kind_is_listed_watched_and_deleted(kubernetes_api: KubernetesApi, kind: str):
    path, name = PLUGIN_KINDS[kind].path, f"thing-{kubernetes_api.namespace}"
    decoder = ObjectDecoder(PLUGIN_KINDS[kind])
    before = await kubernetes_api.get(path)
    created = await kubernetes_api.post(
        in_namespace(kubernetes_api, kind), {"metadata": {"name": name}, **BODIES[kind]}
    )
    assert created.code == 201, created.body
    served = BY_ADDRESS[PLUGIN_KINDS[kind].group, PLUGIN_KINDS[kind].version, PLUGIN_KINDS[kind].plural]
    assert ("generation" in created.body["metadata"]) is served.has_generation
    listed = decoder.page(json.dumps((await kubernetes_api.get(path)).body).encode())
    objects, _ = decoder.several(listed.items)
    assert name in {thing.metadata.name for thing in objects}
    only = {"resourceVersion": before.version, "fieldSelector": f"metadata.name={name}"}
    async with kubernetes_api.watch(path, **only) as events:
        added = decoder.event(json.dumps(await events.next()).encode())
        await kubernetes_api.patch(f"{in_namespace(kubernetes_api, kind)}/{name}", {"metadata": {"finalizers": None}})
        await kubernetes_api.delete(f"{in_namespace(kubernetes_api, kind)}/{name}", propagationPolicy="Background")
        while isinstance(gone := decoder.event(json.dumps(await events.next()).encode()), Upserted):
            pass  # a volume has a deletionTimestamp first
    assert isinstance(added, Upserted)
    assert isinstance(gone, Deleted)
    assert (added.object.metadata.name, gone.object.metadata.name) == (name, name)
    assert added.object == decoder.one(json.dumps(created.body).encode())


@pytest.mark.parametrize("kind", BODIES)
async def test_a_bookmark_has_the_members_that_are_always_written(kubernetes_api: KubernetesApi, kind: str):
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with kubernetes_api.watch(PLUGIN_KINDS[kind].path, **query) as events:
        while (event := await events.next())["type"] != "BOOKMARK":
            pass
    members = {member: value for member, value in event["object"].items() if member != "metadata"}
    api_version = PLUGIN_KINDS[kind].api_version
    assert members == {"kind": PLUGIN_KINDS[kind].kind, "apiVersion": api_version, **BOOKMARKS[kind]}


DEFAULTS = {
    "pv": {
        "spec": {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
        "status": {"phase": "Pending"},
    },
    "pvc": {"spec": {"volumeMode": "Filesystem"}, "status": {"phase": "Pending"}},
    "storageclass": {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
}


@pytest.mark.parametrize("kind", DEFAULTS)
async def test_storage_has_the_defaults_of_the_api_server(kubernetes_api: KubernetesApi, kind: str):
    body = {member: value for member, value in BODIES[kind].items() if member != "volumeBindingMode"}
    metadata, status = {"name": f"thing-{kubernetes_api.namespace}"}, {"status": {"phase": "Bound"}}
    given = {"metadata": metadata, **body, **({} if kind == "storageclass" else status)}
    created = (await kubernetes_api.post(in_namespace(kubernetes_api, kind), given)).body
    assert contains(created, DEFAULTS[kind]), created


def contains(whole: dict, part: dict) -> bool:
    pairs = [(whole.get(name), value) for name, value in part.items()]
    return all(contains(found, value) if isinstance(value, dict) else found == value for found, value in pairs)
