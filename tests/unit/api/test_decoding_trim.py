"""What is dropped from objects when they are read."""

from berth.api.decoding import LAST_APPLIED, trim
from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.pod import Pod


def _pod(**metadata: object) -> Pod:
    return Pod(metadata=ObjectMeta(name="web", **metadata))


def test_kubectls_copy_of_the_object_is_dropped_and_other_annotations_stay():
    assert trim(_pod(annotations={LAST_APPLIED: "{}", "a": "b"})).metadata.annotations == {"a": "b"}


def test_annotations_that_were_nothing_else_are_as_if_there_had_been_none():
    assert trim(_pod(annotations={LAST_APPLIED: "{}"})) == trim(_pod())


def test_only_the_controller_stays_among_the_owners():
    controller = OwnerReference(kind="ReplicaSet", name="web-1", uid="u1", controller=True)
    other = OwnerReference(kind="ConfigMap", name="web", uid="u2")
    assert trim(_pod(owner_references=[other, controller])).metadata.owner_references == [controller]
    assert trim(_pod(owner_references=[other])).metadata.owner_references is None


def test_object_without_any_of_these_is_not_copied():
    pod = _pod(annotations={"a": "b"}, owner_references=[OwnerReference(name="x", controller=True)])
    assert trim(pod) is pod


def test_trimming_twice_is_trimming_once():
    once = trim(_pod(annotations={LAST_APPLIED: "{}"}, owner_references=[OwnerReference(name="x")]))
    assert trim(once) is once
