"""A 403 becomes the rule to add; the messages are those of kube-apiserver 1.36."""

import pytest

from berth.kube.errors import missing_right
from berth.kube.http1 import StatusDetails, StatusObject


def _forbidden(message: str, name: str = "") -> StatusObject:
    return StatusObject(message=message, reason="Forbidden", code=403, details=StatusDetails(name=name))


@pytest.mark.parametrize(
    ("status", "rule"),
    [
        pytest.param(
            _forbidden(
                'pods "web-0" is forbidden: User "system:serviceaccount:berth:binder" cannot create resource'
                ' "pods/binding" in API group "" in the namespace "default"',
                "web-0",
            ),
            "'system:serviceaccount:berth:binder' may not create pods/binding: add to the ClusterRole:"
            ' apiGroups: [""], resources: ["pods/binding"], verbs: ["create"] (docs/security.md#rights-in-the-cluster)',
            id="create names no object",
        ),
        pytest.param(
            _forbidden(
                'nodes is forbidden: User "u" cannot list resource "nodes" in API group "" at the cluster scope'
            ),
            "'u' may not list nodes: add to the ClusterRole:"
            ' apiGroups: [""], resources: ["nodes"], verbs: ["list"] (docs/security.md#rights-in-the-cluster)',
            id="cluster scope",
        ),
        pytest.param(
            _forbidden(
                'leases.coordination.k8s.io "berth-binder" is forbidden: User "u" cannot update resource "leases"'
                ' in API group "coordination.k8s.io" in the namespace "kube-system"',
                "berth-binder",
            ),
            "'u' may not update leases: add to the Role in namespace 'kube-system': apiGroups:"
            ' ["coordination.k8s.io"], resources: ["leases"], verbs: ["update"], resourceNames: ["berth-binder"]'
            " (docs/security.md#rights-in-the-cluster)",
            id="one Lease is enough",
        ),
        pytest.param(
            _forbidden(
                'pods "web-0" is forbidden: User "u" cannot patch resource "pods/status" in API group "" in the'
                ' namespace "shop": RBAC: clusterrole.rbac.authorization.k8s.io "x" not found',
                "web-0",
            ),
            '\'u\' may not patch pods/status: add to the ClusterRole: apiGroups: [""], resources: ["pods/status"],'
            ' verbs: ["patch"] (docs/security.md#rights-in-the-cluster)',
            id="one pod's name would be right once only",
        ),
    ],
)
def test_missing_right_is_told_with_the_rule_to_add(status: StatusObject, rule: str):
    assert missing_right(status) == rule


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(
            _forbidden(
                'pods "web" is forbidden: unable to create new content in namespace shop because it is being terminated'
            ),
            id="namespace going away",
        ),
        pytest.param(_forbidden('pods "web" is forbidden: exceeded quota: q, requested: pods=1'), id="quota"),
        pytest.param(StatusObject(message='User "u" cannot list resource "x" in API group ""', code=409), id="no 403"),
    ],
)
def test_refusal_for_another_reason_asks_for_no_rule(status: StatusObject):
    assert missing_right(status) is None


def test_a_right_that_is_asked_for_in_the_validation_of_an_object_is_named_too():
    right = (
        'User "b" cannot patch resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope'
    )
    message = f"status.allocation: Forbidden: changing status.allocation requires permission: {right}"
    named = missing_right(StatusObject(code=422, message=message)) or ""
    assert named.startswith("'b' may not patch resourceclaims/binding: add to the ClusterRole: ")
    assert missing_right(StatusObject(code=422, message="spec: field is immutable")) is None
