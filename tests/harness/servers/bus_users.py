"""A nats-server with the users of deploy/compose, and the services as programs of their own, each under its user.

with bus_of_users() as server:
    settings_of(server, "scorer")
    with services(server, kubeconfig, folder) as running: ...
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from berth.bus.settings import BusSettings, NatsCredentials, TopologySettings
from berth.bus.topology import Names
from berth_cli.pipeline.accounts import DOMAIN
from berth_cli.pipeline.natsconf import nats_conf
from harness.servers.child_processes import spawn, stop
from harness.servers.nats_server import NatsServer, nats_server

USERS: Final = ("apply", "watcher", "scorer", "binder", "collector", "facts", "shadow", "people")
SERVICES: Final[Mapping[str, str]] = {
    "watcher": "berth_watcher",
    "scorer": "berth_scorer",
    "binder": "berth_binder",
    "collector": "berth_metrics_collector",
}
"""The module of each user that is a service."""
LOG_LINES: Final = 15
LOG_CHARACTERS: Final = 300


def password_of(user: str) -> str:
    """A password of this temporary server."""
    return f"{user}-of-a-test"


def passwords_of(*prefixes: str) -> str:
    """The passwords of all users of the berths with these prefixes, as the server's configuration has them."""
    users = [Names(prefix).word(user) for prefix in prefixes or ("",) for user in USERS]
    return "".join(f'{user}_PASSWORD: "{password_of(user)}"\n' for user in users)


def bus_of_users(*prefixes: str) -> AbstractContextManager[NatsServer]:
    """A server with the file's users and permissions, on a port and a store of its own."""
    return nats_server(passwords_of(*prefixes) + nats_conf(*prefixes))


def inbox_of(user: str) -> str:
    """The prefix of a user's inboxes; who uses NATS's own clients has their prefix."""
    return "_INBOX" if user in {"people", "facts"} else f"_INBOX_{user}"


def domain_of(user: str) -> str:
    """The JetStream domain under which the user reaches the streams."""
    return "" if user in {"apply", "watcher", "binder"} else DOMAIN


def settings_of(server: NatsServer, user: str, prefix: str = "") -> BusSettings:
    """The connection settings of this user of the berth with this prefix."""
    named = Names(prefix).word(user)
    return BusSettings(
        servers=(server.address,),
        credentials=NatsCredentials(user=named, password=password_of(named)),
        inbox_prefix=inbox_of(named),
        domain=domain_of(user),
        topology=TopologySettings(prefix=prefix),
    )


class Services:
    """The services as processes by user; each may be killed and started again."""

    def __init__(
        self,
        server: NatsServer,
        kubeconfig: Path,
        config: Path,
        folder: Path,
        prefix: str,
        *,
        users: bool,
        elects: bool,
    ) -> None:
        self.server = server
        self._prefix = prefix
        self._has_users = users
        self._elects = elects
        self._kubeconfig = kubeconfig
        self._config = config
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, user: str, config: Path | None = None, *, name: str = "") -> None:
        """Start the service of this user, connected as this user; ``config`` in place of the one of all services.

        ``name``: of a further process of it, such as one that stands by.
        """
        name = name or user
        command = [
            *(sys.executable, "-m", SERVICES[user]),
            *("--nats", self.server.address),
            *("--config", str(config or self._config)),
            *(("--kubeconfig", str(self._kubeconfig)) if user in {"watcher", "binder"} else ()),
            *("--leader-elect=false",) * (user in {"watcher", "binder"} and not self._elects),
        ]
        named, told = Names(self._prefix).word(user), {"BERTH_NATS_PREFIX": self._prefix}
        if self._has_users:
            told |= {
                "BERTH_NATS_USER": named,
                "BERTH_NATS_PASSWORD": password_of(named),
                "BERTH_NATS_INBOX_PREFIX": inbox_of(named),
                "BERTH_NATS_DOMAIN": domain_of(user),
            }
        self._processes[name] = spawn(command, self._folder / f"{name}.log", {**os.environ, **told})

    @property
    def pids(self) -> dict[str, int]:
        """The process of each user."""
        return {user: process.pid for user, process in self._processes.items()}

    def log(self, user: str) -> list[str]:
        """The messages that the service has logged."""
        lines = (self._folder / f"{user}.log").read_text(errors="replace").splitlines()
        return [json.loads(line).get("msg", "") for line in lines if line.startswith("{")]

    def kill(self, user: str) -> None:
        """End it as `kill -9` does."""
        self._processes[user].kill()
        self._processes[user].wait()

    def stop(self) -> None:
        """End all of them."""
        stop(list(self._processes.values()))

    def show_logs(self) -> None:
        """Print the ends of their logs, which pytest shows of a test that has failed."""
        for user in self._processes:
            lines = (self._folder / f"{user}.log").read_text(errors="replace").splitlines()
            ends = (line[:LOG_CHARACTERS] for line in lines[-LOG_LINES:])
            sys.stdout.write("\n".join((f"--- {user}", *ends, "")))


@contextmanager
def services(
    server: NatsServer,
    kubeconfig: Path,
    config: Path,
    folder: Path,
    *,
    prefix: str = "",
    users: bool = True,
    elects: bool = False,
) -> Iterator[Services]:
    """Start one of each service, stop them at the end. ``users``: whether the server has users; ``elects``: leaders."""
    running = Services(server, kubeconfig, config, folder, prefix, users=users, elects=elects)
    try:
        for user in SERVICES:
            running.start(user)
        yield running
    finally:
        running.stop()
        running.show_logs()
