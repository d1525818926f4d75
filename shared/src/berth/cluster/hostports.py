"""Which host ports are taken on which nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from berth.api.pod import PodSpec

Mask = npt.NDArray[np.bool_]
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - how Kubernetes writes all addresses of a node; nothing is bound here
_FEW: Final = 64
"""Up to this many rows, each row is checked. With more, all rows that have the port are visited."""


class HostPort(NamedTuple):
    """A port of a node, on one of its addresses or on all."""

    protocol: str
    port: int
    address: str

    def conflicts(self, other: HostPort) -> bool:
        """Whether both cannot be on one node."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or EVERY_ADDRESS in (self.address, other.address)


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The host ports that a running pod takes: those of its containers and sidecars."""
    sidecars = [container for container in spec.init_containers or () if container.restart_policy == "Always"]
    return tuple(
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or EVERY_ADDRESS)
        for container in (*sidecars, *(spec.containers or ()))
        for port in container.ports or ()
        if port.host_port > 0
    )


class HostPorts:
    """The ports taken on each row, and the rows that have each port."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], dict[int, Counter[str]]] = {}

    def count(self, ports: Iterable[HostPort], row: int, by: int) -> None:
        """Add the ports of a pod to a row (``by`` 1) or remove them (-1)."""
        for protocol, port, address in ports:
            rows = self._taken.setdefault((protocol, port), {})
            addresses = rows.setdefault(row, Counter())
            addresses[address] += by
            if not addresses[address]:
                del addresses[address]
            if not addresses:
                del rows[row]
            if not rows:
                del self._taken[protocol, port]

    def are_free(self, wanted: Iterable[HostPort], row: int) -> bool:
        """Whether no pod on the row has one of these."""
        return not any(_conflicts(port, self._rows_of(port).get(row)) for port in wanted)

    def taken_mask(self, wanted: Iterable[HostPort], rows: npt.NDArray[np.intp], size: int) -> Mask:
        """bool[rows]: on which of the rows a pod has one of these; ``size`` is how many rows there are in all."""
        if len(rows) <= _FEW:
            wanted = tuple(wanted)
            return np.array([not self.are_free(wanted, row) for row in rows.tolist()], dtype=np.bool_)
        taken: Mask = np.zeros(size, dtype=np.bool_)
        for port in wanted:
            having = self._rows_of(port)
            taken[[row for row, addresses in having.items() if _conflicts(port, addresses)]] = True
        return taken[rows]

    def _rows_of(self, port: HostPort) -> dict[int, Counter[str]]:
        return self._taken.get((port.protocol, port.port), {})


def _conflicts(port: HostPort, addresses: Counter[str] | None) -> bool:
    if not addresses:
        return False
    return port.address == EVERY_ADDRESS or port.address in addresses or EVERY_ADDRESS in addresses
