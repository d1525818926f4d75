"""Among which messages namespaces take turns: pods that QueueSort puts at one place but for their age."""

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.framework.interface import QueueSortPlugin
from berth.messages.attempts import Pending
from berth.plugins.prioritysort import PrioritySort
from berth_scorer.core import rank_of


class Profile:
    """Of a profile, what is asked."""

    def __init__(self, queue_sort: QueueSortPlugin) -> None:
        self.queue_sort = queue_sort


class ByName(QueueSortPlugin):
    """Another order than that of priorities."""

    def sort_key(self, pod, since):
        return pod.metadata.name, since


class Broken(QueueSortPlugin):
    name = "Broken"

    def sort_key(self, pod, since):
        raise RuntimeError("broken")


def pending(name, *, namespace="default", priority=0, profile="berth"):
    pod = Pod(metadata=ObjectMeta(name=name, namespace=namespace), spec=PodSpec(priority=priority))
    return Pending(attempt=f"{name}.1.1", profile=profile, pod=pod)


def test_pods_of_one_priority_are_of_one_rank_whatever_their_namespace():
    profile = Profile(PrioritySort())
    assert rank_of(profile, pending("a")) == rank_of(profile, pending("b", namespace="other"))
    assert rank_of(profile, pending("a")) != rank_of(profile, pending("a", priority=1))


def test_the_profiles_own_order_says_which_pods_are_of_one_rank():
    profile = Profile(ByName())
    assert rank_of(profile, pending("a")) == rank_of(profile, pending("a", priority=1))
    assert rank_of(profile, pending("a")) != rank_of(profile, pending("b"))


def test_pods_of_two_profiles_are_of_two_ranks():
    profile = Profile(PrioritySort())
    assert rank_of(profile, pending("a")) != rank_of(profile, pending("a", profile="batch"))


def test_where_the_plugin_fails_the_priority_is_the_rank():
    profile = Profile(Broken())
    assert rank_of(profile, pending("a")) == rank_of(profile, pending("b"))
    assert rank_of(profile, pending("a")) != rank_of(profile, pending("a", priority=1))
