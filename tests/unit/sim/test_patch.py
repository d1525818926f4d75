import copy

import pytest

from berth_sim.apiserver.patch import JSON, MERGE, STRATEGIC, apply, json_patch, merge, strategic_merge
from berth_sim.apiserver.status import StatusError


@pytest.mark.parametrize(
    ("value", "patch", "expected"),
    [
        pytest.param({"a": "b"}, {"a": "c"}, {"a": "c"}, id="replaces"),
        pytest.param({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}, id="adds"),
        pytest.param({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}, id="null removes"),
        pytest.param({"a": ["b"]}, {"a": ["c"]}, {"a": ["c"]}, id="lists are replaced"),
        pytest.param({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}, id="objects merge"),
        pytest.param({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}, id="lists of objects too"),
        pytest.param({"e": None}, {"a": 1}, {"e": None, "a": 1}, id="null in the value stays"),
        pytest.param({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}, id="null in a new object is left out"),
        pytest.param({"a": "b"}, ["c"], ["c"], id="a patch that is no object replaces all"),
    ],
)
def test_merge_patch_follows_rfc_7386(value: object, patch: object, expected: object):
    assert merge(value, patch) == expected


CONDITIONS = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "False", "reason": "r"}]


@pytest.mark.parametrize(
    ("value", "patch", "expected"),
    [
        pytest.param(
            {"conditions": CONDITIONS},
            {"conditions": [{"type": "PodScheduled", "status": "True", "reason": None}]},
            {"conditions": [CONDITIONS[0], {"type": "PodScheduled", "status": "True"}]},
            id="a condition is found by its type and keeps its place",
        ),
        pytest.param(
            {"conditions": CONDITIONS},
            {"conditions": [{"type": "berth/fence", "status": "True"}]},
            {"conditions": [{"type": "berth/fence", "status": "True"}, *CONDITIONS]},
            id="a new condition comes first",
        ),
        pytest.param(
            {"conditions": CONDITIONS},
            {"conditions": [{"type": "Ready", "$patch": "delete"}]},
            {"conditions": [CONDITIONS[1]]},
            id="a condition is deleted by a directive",
        ),
        pytest.param(
            {"conditions": CONDITIONS},
            {"$setElementOrder/conditions": [{"type": "PodScheduled"}, {"type": "Ready"}]},
            {"conditions": CONDITIONS[::-1]},
            id="order is set by a directive",
        ),
        pytest.param(
            {"conditions": CONDITIONS},
            {"conditions": [{"$patch": "replace"}, {"type": "New", "status": "True"}]},
            {"conditions": [{"type": "New", "status": "True"}]},
            id="a list is replaced by a directive",
        ),
        pytest.param(
            {"taints": [{"key": "a"}]}, {"taints": [{"key": "b"}]}, {"taints": [{"key": "b"}]}, id="taints are replaced"
        ),
        pytest.param({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}, id="finalizers"),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"]},
            {"finalizers": ["b"]},
            id="a finalizer is deleted by a directive",
        ),
        pytest.param({"labels": {"a": "b"}}, {"labels": {"a": None, "c": "d"}}, {"labels": {"c": "d"}}, id="labels"),
        pytest.param({"spec": {"a": 1}}, {"spec": {"$patch": "replace", "b": 2}}, {"spec": {"b": 2}}, id="replace"),
        pytest.param({"spec": {"a": 1}}, {"spec": {"$patch": "delete"}}, {}, id="delete"),
        pytest.param(
            {"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 443}]}]},
            {"containers": [{"name": "a", "ports": [{"containerPort": 443}, {"containerPort": 80}]}]},
            id="keys are known at every depth",
        ),
    ],
)
def test_strategic_merge_patch_merges_lists_by_key(value: dict, patch: dict, expected: dict):
    assert strategic_merge(value, patch) == expected


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/a/0", "value": 0}, {"a": [0, 1, 2], "b/c": {}}),
        ({"op": "add", "path": "/a/-", "value": 3}, {"a": [1, 2, 3], "b/c": {}}),
        ({"op": "remove", "path": "/a/1"}, {"a": [1], "b/c": {}}),
        ({"op": "replace", "path": "/b~1c", "value": 4}, {"a": [1, 2], "b/c": 4}),
        ({"op": "add", "path": "/b~1c/d", "value": 5}, {"a": [1, 2], "b/c": {"d": 5}}),
        ({"op": "test", "path": "/a/0", "value": 1}, {"a": [1, 2], "b/c": {}}),
        ({"op": "copy", "from": "/a/1", "path": "/b~1c/d"}, {"a": [1, 2], "b/c": {"d": 2}}),
        ({"op": "move", "from": "/a/1", "path": "/b~1c/d"}, {"a": [1], "b/c": {"d": 2}}),
    ],
)
def test_json_patch_applies_one_operation(operation: dict, expected: dict):
    assert json_patch({"a": [1, 2], "b/c": {}}, [operation]) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/none", "value": 1},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "move", "path": "/a", "from": "/b"},
        {"op": "move", "path": "/a"},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "add", "path": "/list/1", "value": 1},
        {"op": "frob", "path": "/a", "value": 1},
        {"path": "/a"},
    ],
)
def test_json_patch_that_does_not_apply_is_invalid_and_names_its_place(operation: dict):
    with pytest.raises(StatusError) as caught:
        json_patch({"a": 1, "list": []}, [operation])
    assert caught.value.code == 422
    assert f"{operation.get('op')} operation at '{operation['path']}'" in caught.value.message


@pytest.mark.parametrize("operations", [{"op": "add"}, ["nonsense"], "nonsense", 3])
def test_json_patch_without_a_list_of_operations_is_a_bad_request(operations: object):
    with pytest.raises(StatusError) as caught:
        json_patch({}, operations)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("content_type", "patch"),
    [
        (MERGE, {"metadata": {"labels": {"a": "c"}}, "status": {"conditions": []}}),
        (STRATEGIC, {"metadata": {"labels": {"a": "c"}}, "status": {"conditions": [{"type": "Ready", "x": "y"}]}}),
        (JSON, [{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]),
    ],
)
def test_patch_leaves_the_older_object_as_it_was(content_type: str, patch: object):
    value = {"metadata": {"labels": {"a": "b"}}, "spec": {}, "status": {"conditions": [{"type": "Ready"}]}}
    before = copy.deepcopy(value)
    after = apply(content_type, value, patch)
    assert after["metadata"]["labels"] == {"a": "c"}
    assert value == before
    assert after["spec"] is value["spec"]
