"""An overlay as a cluster's kubelets would run it, as processes of this machine.

    with Installation(overlay("production"), plane, folder) as installed:
        await installed.start(api)
        installed.servers[0].kill()

Commands, arguments, variables and files are those of the pods. What differs is where they are: servers listen on
loopback addresses of their own, files are below a folder, and an account's token is in a kubeconfig.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from berth_cli.pipeline.natsserver import find_nats_server
from harness.servers.child_processes import free_ports, spawn, stop
from harness.servers.control_plane import ControlPlane
from harness.worlds import manifests
from harness.worlds.accounts import token_of
from harness.worlds.cluster_user import eventually
from harness.worlds.kubernetes_api import KubernetesApi
from harness.worlds.manifests import Object, decoded, name_of, named, of_kind

START_SECONDS: Final = 60.0
PROGRAMS: Final = Path(sys.executable).parent


class Server:
    """One NATS server of an overlay."""

    def __init__(self, address: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = environment["NATS_NAME"]
        self._address = address
        self._command = list(command)
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = spawn(self._command, self._log, self._environment)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_healthy(self) -> bool:
        """What the startup probe asks."""
        try:
            return self._get("healthz")["status"] == "ok"
        except OSError:
            return False

    def streams(self) -> dict[str, dict[str, Any]]:
        """Of each stream that this server has: who leads it, and who has a copy."""
        accounts = self._get("jsz?streams=true&accounts=true")["account_details"]
        return {each["name"]: each["cluster"] for account in accounts for each in account.get("stream_detail", [])}

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self._address}:8222/{path}", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A process of a service."""

    process: subprocess.Popen[bytes]
    health_port: int

    def is_ready(self) -> bool:
        """What the readiness probe asks."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePod:
    """What each replica of a service runs."""

    service: str
    command: Sequence[str]
    environment: Mapping[str, str]
    files: Path
    """Logs and ready files are beside this folder."""

    def start(self, number: int) -> Replica:
        replica, (port,) = self.files.with_name(f"{self.files.name}-{number}"), free_ports(1)
        here = {"BERTH_HEALTH_HOST": "127.0.0.1", "BERTH_HEALTH_PORT": str(port)}
        program, *arguments = self.command
        environment = {**self.environment, **here, "BERTH_READY_FILE": f"{replica}.ready"}
        command = [str(PROGRAMS / program), *arguments]
        return Replica(process=spawn(command, replica.with_suffix(".log"), environment), health_port=port)


class Installation:
    """NATS servers, then the init container, then every replica of each service; all end with the block.

    ``known_as``: the servers' addresses in the overlay. ``starts``: which Deployments of services are started.
    ``secrets``: makes the Secrets for servers with these further addresses.
    """

    def __init__(
        self,
        objects: tuple[Object, ...],
        plane: ControlPlane,
        folder: Path,
        known_as: Sequence[str] = ("nats-0.nats", "nats-1.nats", "nats-2.nats"),
        starts: Callable[[Object], bool] = lambda _: True,
        secrets: Callable[[Sequence[str]], tuple[Object, ...]] = lambda names: manifests.secrets("berth", *names),
    ) -> None:
        self._plane = plane
        self._folder = folder
        network = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"  # other tests run beside this one
        self._addresses = {name: f"{network}.{number}" for number, name in enumerate(known_as, start=1)}
        self._secrets = secrets(list(self._addresses.values()))
        self._objects = (*objects, *self._secrets)
        self._starts = starts
        self._generation = 1
        self._replicas: dict[str, list[Replica]] = {}
        self.servers: list[Server] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        stop([replica.process for replicas in self._replicas.values() for replica in replicas])
        for server in self.servers:
            server.kill()

    async def start(self, api: KubernetesApi) -> None:
        """Apply the objects, and start everything in its order."""
        manifests.apply(self._plane, self._objects)
        self._start_servers()
        for deployment in self._deployments():
            pod = await self._pod_of(deployment, api)
            self._replicas[pod.service] = [pod.start(number) for number in range(_replicas(deployment))]

    async def roll_out(self, objects: tuple[Object, ...], api: KubernetesApi) -> None:
        """Apply other objects. All Deployments at once replace their pods, a new one before an old one."""
        self._generation += 1
        self._objects = (*objects, *self._secrets)
        manifests.apply(self._plane, self._objects)
        await asyncio.gather(*(self._replace(deployment, api) for deployment in self._deployments()))

    async def _replace(self, deployment: Object, api: KubernetesApi) -> None:
        assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        pod = await self._pod_of(deployment, api)
        replicas = self._replicas[pod.service]
        for number in range(len(replicas)):
            new = pod.start(number)
            replicas.append(new)
            await eventually(partial(asyncio.to_thread, new.is_ready), f"{pod.service} to be ready", START_SECONDS)
            await asyncio.to_thread(stop, [replicas.pop(0).process])

    def _deployments(self) -> list[Object]:
        """Those of the services that are started."""
        deployments = of_kind(self._objects, "Deployment")
        return [each for each in deployments if not _is_nats(each) and self._starts(each)]

    def ready_files(self, service: str) -> list[Path]:
        """Of the replicas that are ready and work; a standby has none."""
        return list(self._folder.glob(f"berth-{service}-*.ready"))

    def berth(self, *arguments: str) -> str:
        """Run the command as the user `people`, with the operator's Secret; returns what it prints."""
        folder = self._folder / "people"
        folder.mkdir(exist_ok=True)
        for key, text in decoded(named(self._objects, "Secret", "berth-nats-people")).items():
            (folder / key).write_text(text)
        environment = {
            "PATH": f"{PROGRAMS}:{os.defpath}",
            "BERTH_NATS_URL": ",".join(f"tls://{address}:4222" for address in self._addresses.values()),
            "BERTH_NATS_USER": "people",
            "BERTH_NATS_DOMAIN": "berth",
            "BERTH_NATS_PASSWORD_FILE": str(folder / "password"),
            "BERTH_NATS_CA_FILE": str(folder / "ca.crt"),
        }
        command = [str(PROGRAMS / "berth"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def logs(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self._folder.glob("berth-*.log"))

    def _start_servers(self) -> None:
        workloads = [each for each in of_kind(self._objects, "StatefulSet", "Deployment") if _is_nats(each)]
        pods = [
            (f"{each['metadata']['name']}-{number}", each["spec"]["template"])
            for each in workloads
            for number in range(each["spec"]["replicas"])
        ]
        for (pod, template), address in zip(pods, self._addresses.values(), strict=True):
            self.servers.append(self._server(pod, template, address))
        for server in self.servers:
            server.start()
        deadline = time.monotonic() + START_SECONDS
        while not all(server.is_healthy() for server in self.servers):
            goes_on = time.monotonic() < deadline and all(server.is_running for server in self.servers)
            assert goes_on, [log.read_text()[-2000:] for log in self._folder.glob("nats-*.log")]
            time.sleep(0.1)

    def _server(self, pod: str, template: Object, address: str) -> Server:
        different = {**self._addresses, "0.0.0.0": address, "127.0.0.1": address}  # noqa: S104 - what is replaced
        self._write_volumes(pod, template, different)
        (container,) = template["spec"]["containers"]
        given = {"metadata.name": pod, "spec.nodeName": template["spec"].get("nodeName", "")}
        environment = {
            each["name"]: _replaced(each.get("value") or given[each["valueFrom"]["fieldRef"]["fieldPath"]], different)
            for each in container["env"]
        }
        variables = {f"$({name})": value for name, value in environment.items()}
        places = self._mounts(pod, container)
        arguments = [_moved(_replaced(argument, variables), places) for argument in container["args"]]
        return Server(address, [str(find_nats_server()), *arguments], environment, self._folder / f"{pod}.log")

    async def _pod_of(self, deployment: Object, api: KubernetesApi) -> ServicePod:
        """What the replicas of a Deployment run, after its init containers have ended."""
        template, service = deployment["spec"]["template"], deployment["metadata"]["name"]
        pod = f"{service}-of-{self._generation}"
        self._write_volumes(pod, template, self._addresses)
        own = {"PATH": f"{PROGRAMS}:{os.defpath}"}
        if template["spec"]["automountServiceAccountToken"]:
            account = template["spec"]["serviceAccountName"]
            kubeconfig = self._plane.write_kubeconfig(account, await token_of(api, account))
            own["BERTH_KUBECONFIG"] = str(kubeconfig)
        for container in template["spec"].get("initContainers", []):
            await asyncio.to_thread(_run, container["command"], {**own, **self._variables(container, pod)})
        (container,) = template["spec"]["containers"]
        return ServicePod(
            service=service,
            command=container["command"],
            environment={**own, **self._variables(container, pod)},
            files=self._folder / pod,
        )

    def _variables(self, container: Object, pod: str) -> dict[str, str]:
        """As the kubelet puts them together: those of the container beat those of its ConfigMaps."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= named(self._objects, "ConfigMap", source["configMapRef"]["name"])["data"]
        found |= {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
        places = self._mounts(pod, container)
        return {name: _moved(_replaced(value, self._addresses), places) for name, value in found.items()}

    def _write_volumes(self, pod: str, template: Object, different: Mapping[str, str]) -> None:
        """Write what a pod's containers mount, each volume into a folder of its own."""
        for container in manifests.containers(template):
            places = self._mounts(pod, container)
            for volume in template["spec"]["volumes"]:
                place = self._folder / pod / volume["name"]
                for path, text in self._files(volume):
                    (place / path).parent.mkdir(parents=True, exist_ok=True)
                    (place / path).write_text(_moved(_replaced(text, different), places))

    def _mounts(self, pod: str, container: Object) -> dict[str, Path]:
        """The folder of each mount path of a container."""
        found = {mount["mountPath"]: self._folder / pod / mount["name"] for mount in container["volumeMounts"]}
        for place in found.values():
            place.mkdir(parents=True, exist_ok=True)
        return found

    def _files(self, volume: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for source, items in manifests.sources(volume):
            found = next(each for each in self._objects if name_of(each) == source)
            data = found["data"] if found["kind"] == "ConfigMap" else decoded(found)
            for key, path in ((item["key"], item["path"]) for item in items) if items else zip(data, data, strict=True):
                yield path, data[key]


def _replicas(deployment: Object) -> int:
    return int(deployment["spec"].get("replicas", 2))  # without: the autoscaler's, which begins with 2


def _is_nats(workload: Object) -> bool:
    return bool(workload["spec"]["template"]["spec"]["containers"][0]["name"] == "nats")


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    subprocess.run(command, check=True, env=environment, capture_output=True, timeout=START_SECONDS)


def _replaced(text: str, different: Mapping[str, str]) -> str:
    for old, new in different.items():
        text = text.replace(old, new)
    return text


def _moved(text: str, places: Mapping[str, Path]) -> str:
    """With the paths of mounts as they are on this machine."""
    paths = "|".join(sorted(map(re.escape, places), key=len, reverse=True))
    return re.sub(rf"(?<![\w/.])({paths})(?![\w-])", lambda found: str(places[found[1]]), text)
