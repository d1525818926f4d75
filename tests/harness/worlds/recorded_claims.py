"""A recorded world whose pods have ResourceClaims: two kinds of GPUs, shared claims, claims that are freed."""

from __future__ import annotations

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from berth.api.devices import AllocationResult
from berth.api.pod import Pod, PodResourceClaim
from berth.messages.attempts import Outcome, Ranked
from harness.builders.objects import a_container, a_pod
from harness.worlds.recorded_world import RecordedWorld

Json = dict[str, Any]
DRIVER = "gpu.acme.example"
LARGE = f'device.attributes["{DRIVER}"].model == "large"'
MANY = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0 && device.driver.endsWith("acme.example")'


class RecordedClaims(RecordedWorld):
    """The binder gives the devices that RANKED names, if they are free; else it is a conflict."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, chosen_of=1, **options)
        self._claims: dict[str, Json] = {}  # by name
        self._users: dict[str, set[str]] = {}
        self.bound = 0
        self.mirror("deviceclass.gpu", {"metadata": {"name": "gpu"}})
        for number in range(self._nodes):
            self._publish_slice(number, generation=1)

    def _publish_slice(self, number: int, generation: int) -> None:
        node = f"n{number}"
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {"model": {"string": "large" if number % 2 else "small"}, "numa": {"int": index // 2}},
                "capacity": {"memory": {"value": "80Gi" if number % 3 else "24Gi"}},
            }
            for index in range(self.random.randint(1, 3))
        ]
        pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        self.mirror(f"resourceslice.{node}-acme", {"metadata": {"name": f"{node}-acme"}, "spec": spec})

    def ask(self) -> None:
        if self.random.random() < 0.2:
            super().ask()
            return
        if self.random.random() < 0.05:
            self._publish_slice(self.random.randrange(self._nodes), generation=len(self.recording.of("cluster")))
        self._pods += 1
        name = f"train-{self._pods}"
        claim = self.random.choice([*self._claims, ""]) if self.random.random() < 0.2 else ""
        if not claim:
            claim = f"of-{name}"
            self._claims[claim] = self._claim(claim)
            self._mirror_claim(claim)
        pod = a_pod(
            name,
            uid=str(uuid5(NAMESPACE_DNS, name)),
            priority=self.random.choice((0, 0, 100)),
            containers=[a_container(cpu="100m")],
            resource_claims=[PodResourceClaim(name="gpu", resource_claim_name=claim)],
        )
        self.ask_for(pod, f"{pod.uid}.1.1")

    def _claim(self, name: str) -> Json:
        expression = self.random.choice(("", LARGE, MANY))
        selectors = [{"cel": {"expression": expression}}] if expression else []
        exactly = {"deviceClassName": "gpu", "count": self.random.choice((1, 1, 2)), "selectors": selectors}
        constraints = [{"matchAttribute": f"{DRIVER}/numa"}] if self.random.random() < 0.3 else []
        devices = {"requests": [{"name": "r", "exactly": exactly}], "constraints": constraints}
        metadata = {"name": name, "namespace": "default", "uid": str(uuid5(NAMESPACE_DNS, f"claim {name}"))}
        return {"metadata": metadata, "spec": {"devices": devices}, "status": {}}

    def _mirror_claim(self, name: str) -> None:
        claim = self._claims[name]
        self.mirror(f"resourceclaim.{claim['metadata']['uid']}", claim)

    def _of(self, pod: Pod) -> str:
        return next((each.resource_claim_name or "" for each in pod.spec.resource_claims or ()), "")

    def bound_to(self, message: Ranked, node: str) -> None:
        claim = self._of(message.pod)
        if claim and not self._gives(claim, message, node):
            self._decided(message, Outcome.CONFLICT)
            self._again(message)
            return
        self.bound += bool(claim)
        super().bound_to(message, node)

    def _gives(self, name: str, message: Ranked, node: str) -> bool:
        claim = self._claims[name]
        given = message.devices.get(claim["metadata"]["uid"])
        if "allocation" in claim["status"]:
            nodes = {each["pool"] for each in claim["status"]["allocation"]["devices"]["results"]}
            if nodes != {node}:
                return False
        elif given is None or self._in_use() & _keys(given):
            return False
        else:
            self._claims[name] = {**claim, "status": {"allocation": msgspec.to_builtins(given)}}
        self._users.setdefault(name, set()).add(message.pod.uid)
        self._mirror_claim(name)
        return True

    def _in_use(self) -> set[str]:
        allocations = (claim["status"].get("allocation") for claim in self._claims.values())
        return set().union(*(_keys(msgspec.convert(each, AllocationResult)) for each in allocations if each))

    def _remove(self, uid: str) -> None:
        name = self._of(self._placed[uid])
        super()._remove(uid)
        users = self._users.get(name)
        if users is not None:
            users.discard(uid)
            if not users:
                self._claims[name] = {**self._claims[name], "status": {}}
                self._mirror_claim(name)


def _keys(given: AllocationResult) -> set[str]:
    return {each.key for each in given.devices.results or ()}
