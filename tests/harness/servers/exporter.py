"""An exporter with a node-exporter's counters of network and processors, and its memory, at rates that a test sets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Exporter:
    """Serves /metrics at an address of its own; `rate` and `transmit` are bytes per second and may be changed.

    A changed value counts from the last scrape on; with `use`, from now on.
    """

    address: str
    port: int
    rate: float
    nodename: str
    transmit: float = 0.0
    device: str = "eth0"
    speed: float | None = 125e6
    release: str = "6.1.0-1"
    slaves: tuple[str, ...] = ()
    repeating: tuple[str, ...] = ()  # interfaces that carry the device's bytes again: VLANs, bridges, pods' own
    cpu: float = 0.0  # cores that are used
    cores: int = 4
    memory: float = 0.0  # bytes that are used
    memory_total: float = 16 * 2.0**30
    hugepages: float | None = None  # bytes kept for them, which is not available memory; None: of an old kernel
    _began: float = field(default_factory=time.monotonic)
    _received: float = 0.0
    _sent: float = 0.0
    _used: float = 0.0  # seconds of one core
    _idle: float = 0.0
    _runner: web.ServerRunner | None = None

    @property
    def instance(self) -> str:
        """The ``instance`` label in Prometheus."""
        return f"{self.address}:{self.port}"

    async def start(self) -> None:
        """Listen; the counters continue from their last values."""
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None), shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self.port, reuse_address=True).start()

    async def stop(self) -> None:
        """Stop listening. The traffic continues."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def reboot(self, *, nodename: str, release: str) -> None:
        """Start the counters at 0, with another kernel and another host name."""
        self._began, self._received, self._sent, self._used, self._idle = time.monotonic(), 0.0, 0.0, 0.0, 0.0
        self.nodename, self.release = nodename, release

    def use(self, cores: float) -> None:
        """Use so many cores from now on."""
        self._count()
        self.cpu = cores

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="\n".join([*self._lines(), ""]), content_type="text/plain")

    def _count(self) -> None:
        now = time.monotonic()
        elapsed, self._began = now - self._began, now
        self._received += self.rate * elapsed
        self._sent += self.transmit * elapsed
        self._used += self.cpu * elapsed / self.cores
        self._idle += (self.cores - self.cpu) * elapsed / self.cores

    def _lines(self) -> list[str]:
        self._count()
        uname = f'machine="x86_64",nodename="{self.nodename}",release="{self.release}",sysname="Linux"'
        lines = [
            "# TYPE node_network_receive_bytes_total counter",
            "# TYPE node_network_transmit_bytes_total counter",
            "# TYPE node_cpu_seconds_total counter",
            f"node_memory_MemTotal_bytes {self.memory_total:.0f}",
            f"node_memory_MemAvailable_bytes {self.memory_total - (self.hugepages or 0) - self.memory:.0f}",
            *([] if self.hugepages is None else [f"node_memory_Hugetlb_bytes {self.hugepages:.0f}"]),
            f"node_uname_info{{{uname}}} 1",
            'node_network_receive_bytes_total{device="lo"} 1e12',
        ]
        # A third of what is used is the kernel's, and a quarter of the rest waits for disks.
        modes = {"user": self._used * 2 / 3, "system": self._used / 3, "idle": self._idle * 3 / 4}
        for core in range(self.cores):
            for mode, seconds in {**modes, "iowait": self._idle / 4, "steal": 0.0}.items():
                lines.append(f'node_cpu_seconds_total{{cpu="{core}",mode="{mode}"}} {seconds:.6f}')
        for number, device in enumerate((self.device, *self.slaves, *self.repeating), start=2):
            flags = 0x1803 if device in self.slaves else 0x1003
            is_made = device in self.repeating
            lines += [
                f'node_network_receive_bytes_total{{device="{device}"}} {self._received:.0f}',
                f'node_network_transmit_bytes_total{{device="{device}"}} {self._sent:.0f}',
                f'node_network_flags{{device="{device}"}} {flags}',
                f'node_network_name_assign_type{{device="{device}"}} {3 if is_made else 4}',
                f'node_network_iface_id{{device="{device}"}} {number}',
                f'node_network_iface_link{{device="{device}"}} {2 if is_made else number}',
            ]
            if self.speed is not None:
                lines.append(f'node_network_speed_bytes{{device="{device}"}} {self.speed:.0f}')
        return lines


@asynccontextmanager
async def exporting(*exporters: Exporter) -> AsyncIterator[None]:
    """All of them listen."""
    async with AsyncExitStack() as stack:
        for exporter in exporters:
            await exporter.start()
            stack.push_async_callback(exporter.stop)
        yield
