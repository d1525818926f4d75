"""Contract of the API server, real and simulated: PodGroups of Coscheduling, by their definition."""

import asyncio
import contextlib

import pytest

from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.podgroups import define_podgroups, is_served, podgroups_path

INT32 = '<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.minMember'
MANY = 'spec.minMember: Invalid value: "string": spec.minMember in body must be of type integer: "string"'
HALF = 'spec.minMember: Invalid value: "float64": spec.minMember in body must be of type int32: "float64"'
LIST = 'spec.minResources: Invalid value: "array": spec.minResources in body must be of type object: "array"'
REFUSED = [
    ({"minMember": "four"}, MANY),
    ({"minMember": ["4"]}, MANY.replace('"string"', '"array"')),
    ({"minMember": True}, MANY.replace('"string"', '""').replace("integer", "int32")),
    ({"minMember": 2.5}, f"[{HALF}, {INT32}]"),
    ({"minMember": 0}, "spec.minMember: Invalid value: 0: spec.minMember in body should be greater than or equal to 1"),
    ({"minMember": 2**31}, INT32),
    ({"minResources": []}, LIST),
    ("four", 'spec: Invalid value: "string": spec in body must be of type object: "string"'),
]


@contextlib.asynccontextmanager
async def served(api: KubernetesApi):
    """The API server serves PodGroups; the simulated one always does."""
    if await is_served(api):
        yield
        return
    async with define_podgroups(api):
        # The path answers later than the list of groups has it.
        while await api.post_text(podgroups_path(api.namespace), "{}") == 404:  # noqa: ASYNC110 - reported to nobody
            await asyncio.sleep(0.05)
        yield


def a_podgroup(name: str, spec: object) -> dict:
    return {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}


async def test_a_podgroup_of_wrong_types_is_refused(kubernetes_api: KubernetesApi):
    path = podgroups_path(kubernetes_api.namespace)
    async with served(kubernetes_api):
        for spec, why in REFUSED:
            answer = await kubernetes_api.post(path, a_podgroup("gang", spec))
            assert (answer.code, answer.body["reason"]) == (422, "Invalid"), spec
            assert answer.body["message"] == f'PodGroup.scheduling.x-k8s.io "gang" is invalid: {why}'
        two = await kubernetes_api.post(path, a_podgroup("gang", {"minMember": "four", "scheduleTimeoutSeconds": "x"}))
        assert {cause["field"] for cause in two.body["details"]["causes"]} == {  # in any order
            "spec.minMember",
            "spec.scheduleTimeoutSeconds",
        }
        wrong = await kubernetes_api.post(path, a_podgroup("gang", {"minResources": {"cpu": "4 cores"}}))
        assert (
            'spec.minResources.cpu: Invalid value: "4 cores": spec.minResources.cpu in body should match'
            in (wrong.body["message"])
        )
        [cause] = wrong.body["details"]["causes"]
        assert (cause["reason"], cause["field"]) == ("FieldValueInvalid", "spec.minResources.cpu")


@pytest.mark.parametrize("spec", [{}, {"minMember": 4, "minResources": {"cpu": "4", "nvidia.com/gpu": 8}}])
async def test_a_podgroup_is_changed_to_what_its_definition_takes_only(kubernetes_api: KubernetesApi, spec: dict):
    path = podgroups_path(kubernetes_api.namespace)
    async with served(kubernetes_api):
        assert (await kubernetes_api.post(path, a_podgroup("gang", spec))).code == 201
        changed = await kubernetes_api.patch(f"{path}/gang", {"spec": {"minMember": "four"}})
        assert (changed.code, changed.body["details"]["causes"][0]["reason"]) == (422, "FieldValueTypeInvalid")
        assert MANY in changed.body["message"]
        assert (await kubernetes_api.patch(f"{path}/gang", {"spec": {"minMember": 5}})).code == 200
