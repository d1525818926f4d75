"""Pods that wait, as the cycle is asked about them."""

from __future__ import annotations

from typing import Any

from bench.population import HOSTNAME, ZONE, Application
from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
    TopologySpreadConstraint,
    Volume,
)
from berth.api.subjects import Attempt, Term, Uid


def attempt(pod: Pod) -> Attempt:
    """The pod's first attempt."""
    return Attempt(uid=Uid(pod.uid), term=Term(1), n=1)


def plain(number: int, cpu: str = "100m", *, app: str = "plain", **spec: Any) -> Pod:
    """A pod of nobody; equal cpu is equal class. Its token volume is not equal, as the API server has it."""
    container = Container(
        name="main",
        image="registry.example.com/plain:v1",
        resources=ResourceRequirements(requests={"cpu": cpu, "memory": "128Mi"}),
    )
    token = Volume(name=f"kube-api-access-{number:x}")
    metadata = ObjectMeta(name=f"{app}-{number}", namespace="default", uid=f"{app}-{number}", labels={"app": app})
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name="berth", containers=[container], volumes=[token], **spec))


def spread(number: int) -> Pod:
    """A pod that is to lie evenly over the zones."""
    by_zone = TopologySpreadConstraint(
        max_skew=1,
        topology_key=ZONE,
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": "spread"}),
    )
    return plain(number, app="spread", topology_spread_constraints=[by_zone])


def apart(number: int) -> Pod:
    """A pod that is to be alone of its kind on its node."""
    by_host = PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "apart"}))
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=[by_host])
    return plain(number, app="apart", affinity=Affinity(pod_anti_affinity=anti))


def of_application(application: Application, number: int) -> Pod:
    """A pod of a replica set with a service: default constraints prefer zones and hosts with fewer of its kind."""
    return application.pod(number)
